"""Training processes by fork from one that has everything imported: some milliseconds each instead of a start.

The nursery itself never makes a logger, so what is forked is as clean as a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.faults.children import PREAMBLE, ROOT
from toolkit.runfolder.process import process_started

_SERVER = """
import json, traceback

# Whatever a run needs sooner or later, so that no child imports it again.
import toolkit.telemetry.machine.environment, toolkit.telemetry.live_run
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def grow_up(order):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, order["out"], APPEND), (2, order["err"], APPEND)):
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = order["argv"]
    exec(compile(order["source"], "child.py", "exec"), {**globals(), "__name__": "__main__"})

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
print("ready", flush=True)
orders = open(os.dup(0), "rb", buffering=0)
while line := orders.readline():
    pid = os.fork()
    if not pid:
        grow_up(json.loads(line))
        break
    os.write(1, b"%d\\n" % pid)
"""


class Grown:
    """A process out of the nursery."""

    def __init__(self, pid: int, out: Path, err: Path) -> None:
        self.pid = pid
        # Numbers are used again, and some other process must not be killed in its place.
        self._started = process_started(pid)
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        if self.is_there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = 150.0) -> None:
        """Wait until it is gone."""
        deadline = time.monotonic() + timeout_s
        while self.is_there:
            assert time.monotonic() < deadline, f"it does not end: {self.err[-500:]}"
            time.sleep(0.002)

    @property
    def is_there(self) -> bool:
        # One that is dead and not yet gone may have threads that still hold files.
        return self._started is not None and process_started(self.pid) == self._started


class Nursery:
    """Forks processes that run a source behind the preamble of `tests/faults/children.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._one_at_a_time = threading.Lock()
        self._grown: list[Grown] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + _SERVER],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def start(self, source: str, *arguments: object) -> Grown:
        """Fork a process that runs `source`, with `arguments` in `sys.argv[1:]`; its exit code is not known here."""
        with self._one_at_a_time:
            self._count += 1
            out, err = (self._folder / f"{self._count}.{kind}" for kind in ("out", "err"))
            order = {
                "source": source,
                "argv": ["child.py", *map(str, arguments)],
                "out": str(out),
                "err": str(err),
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            grown = Grown(int(self._line()), out, err)
            self._grown.append(grown)
        return grown

    def close(self) -> None:
        """End it, and every process that still runs."""
        for grown in self._grown:
            grown.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
