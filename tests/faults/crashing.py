"""The same script with telemetry and without it: what it left behind, and that it ended the same way."""

from __future__ import annotations

import re
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.children import Child, Ended

PREAMBLE = """\
import os, signal, sys, threading, time

class NotLogged:
    "What a script does without telemetry: nothing."

    def __getattr__(self, name):
        return lambda *args, **fields: NotLogged()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return None

    def __call__(self, function):
        return function

def begin(*, errors=True, **options):
    if os.environ["LOGGED"] == "0":
        return NotLogged()
    from toolkit.telemetry import TelemetryLogger
    # A machine that is busy elsewhere is no disk that does not answer.
    chosen = {"log_every": 1, "system": False, "csv": False, "control": False, "close_timeout": 60.0}
    chosen.update(options)
    return TelemetryLogger("run", log_dir="logs", errors=errors, **chosen)

def say(line):
    print(line, flush=True)

"""


Meanwhile = Callable[[Child], None]


class Twice:
    """A script that is run with telemetry in one folder, and without it in another."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self._source = PREAMBLE + textwrap.dedent(source)

    def run(self, meanwhile: Meanwhile | None = None) -> tuple[Ended, Ended]:
        """Return how both ended; `meanwhile` is done to each while it runs."""
        return self.run_logged(meanwhile), self.run_plain(meanwhile)

    def run_logged(self, meanwhile: Meanwhile | None = None) -> Ended:
        """Run it with telemetry."""
        return self._run("logged", meanwhile)

    def run_plain(self, meanwhile: Meanwhile | None = None) -> Ended:
        """Run it without."""
        return self._run("plain", meanwhile)

    @property
    def run_folder(self) -> Path:
        """Where the run was written."""
        return self.folder / "logged" / "logs" / "run"

    def _run(self, name: str, meanwhile: Meanwhile | None) -> Ended:
        place = self.folder / name
        place.mkdir()
        (place / "train.py").write_text(self._source)
        child = Child(
            Path("train.py"), cwd=place, folder=self.folder, env={"LOGGED": "1" if name == "logged" else "0"}
        )
        try:
            if meanwhile is not None:
                meanwhile(child)
            ended = child.end(200)
        finally:
            if child.poll() is None:
                child.kill()
        return Ended(ended.code, *(text.replace(str(place), "FOLDER") for text in (ended.out, ended.err)))


def kill_when_it_says(text: str, number: signal.Signals, after_s: float = 0.0) -> Meanwhile:
    """Return what sends a signal once the script has said `text`."""

    def meanwhile(child: Child) -> None:
        child.wait_for_line(text)
        time.sleep(after_s)
        child.process.send_signal(number)

    return meanwhile


def script_stack(stack: list[str]) -> list[str]:
    """Return the stack without the frames of the server that forked the process."""
    below = [number for number, frame in enumerate(stack) if "fork_server.py:" in frame]
    return stack[below[-1] + 1 :] if below else stack


def assert_same_end(logged: Ended, plain: Ended) -> None:
    """Exit code, standard error and the script's own output are what they would have been."""
    assert logged.code == plain.code, logged.err
    assert _comparable(logged.err) == _comparable(plain.err), (
        f"{logged.err}\n\nwithout telemetry:\n{plain.err}"
    )
    assert _comparable(logged.out) == _comparable(plain.out)


def _comparable(text: str) -> list[str]:
    # A thread's and a process's number may differ; findings say that a loss of always 1 is one. Where Python waits for
    # the result of a pool depends on whether it is there already.
    text = re.sub(r'0x[0-9a-f]+|(?<=Process-)\d+|(?<=Thread-)\d+|(?<=futures/_base.py", line )\d+', "…", text)
    # What failed in a thread of ours while memory had run out is reported, with the lines that it was at.
    text = re.sub(
        r"^\[telemetry\] .*\(MemoryError\).*\n(?:Traceback .*\n(?: .*\n)*MemoryError.*\n)?",
        "",
        text,
        flags=re.MULTILINE,
    )
    return [line for line in text.splitlines() if not line.startswith("[telemetry] ")]
