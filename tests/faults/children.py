"""Training processes of their own, for tests that kill, stop or starve them."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tests.fork_server import A_RUN, start_python
from tests.lengths import longer
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main as telemetry_command

ROOT = Path(__file__).parents[2]

PROGRAMS = Path(__file__).with_name("programs")

PREAMBLE = """
import mmap, os, signal, struct, sys, threading, time
from tests.faults.child_program import Acknowledged, SlowestCall, TelemetryLogger, log_for_ever
from tests.waiting import wait_until
"""
"""What a program in a test file begins with; one in `PROGRAMS` imports what it needs."""

LONGEST_PAUSE_S = longer(40.0, 10.0)
"""A machine that is busy elsewhere may hold up any call, but hardly for so long.

A call that waits for what fails in these tests takes longer: that fails for ever, or until the loop went on.
"""


def _script(program: str | Path, folder: Path, name: str) -> Path:
    """Return the file to run: one of `PROGRAMS`, or a new one in `folder` with `PREAMBLE` and the program in it."""
    if isinstance(program, Path):
        return program
    # A file and not `-c`, so that spawned processes of its own find its classes.
    script = folder / f"{name}.py"
    script.write_text(PREAMBLE + textwrap.dedent(program))
    return script


class Child:
    """A Python process that runs a program: a file, or source after `PREAMBLE`; `arguments` are `sys.argv[1:]`.

    `launcher` comes between the interpreter and the script, such as `-m torch.distributed.run`; `container` before the
    interpreter, such as `unshare --pid`. It is forked where it can be, from a process that has `imported` that;
    `fresh` starts a new interpreter, `always_fork` does not even under `make faults`. What it prints goes to files in
    `folder`, so that it can be read while it runs and never fills a pipe.
    """

    def __init__(
        self,
        program: str | Path,
        *arguments: object,
        cwd: Path,
        folder: Path | None = None,
        env: dict[str, str] | None = None,
        launcher: Sequence[str] = (),
        container: Sequence[str] = (),
        fresh: bool = False,
        always_fork: bool = False,
        imported: tuple[str, ...] = A_RUN,
    ) -> None:
        folder, name = folder or cwd, os.urandom(4).hex()
        self.acknowledged_at = folder / f"acknowledged-{name}"
        self.acknowledged_at.write_bytes(struct.pack("<q", -1))
        self._out, self._err = (folder / f"{name}.{kind}" for kind in ("out", "err"))
        self._seen = 0
        script = _script(program, folder, f"child_{name}")
        with self._out.open("w") as out, self._err.open("w") as err:
            how = {
                "cwd": cwd,
                "env": {
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
                    "ACKNOWLEDGED": str(self.acknowledged_at),
                    **(env or {}),
                },
                "stdin": subprocess.PIPE,
                "stdout": out,
                "stderr": err,
                "text": True,
            }
            self.process: subprocess.Popen[str]
            if fresh or launcher or container:
                command = [*container, sys.executable, *launcher, script, *arguments]
                self.process = subprocess.Popen([*map(str, command)], **how)
            else:
                self.process = start_python([script, *arguments], imported, always_fork=always_fork, **how)
        self.pid = self.process.pid

    @property
    def acknowledged(self) -> int:
        """The last step whose call returned; -1 before the first."""
        return int(struct.unpack("<q", self.acknowledged_at.read_bytes())[0])

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What it has printed on standard error so far."""
        return self._err.read_text()

    def communicate(self) -> tuple[str, str]:
        """Return both."""
        return self.out, self.err

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""
        return self.process.poll()

    def wait_for_step(self, step: int, timeout_s: float = 120.0) -> None:
        """Wait until the call for `step` returned."""
        wait_until(lambda: self.acknowledged >= step, self, timeout_s=timeout_s)

    def tell(self, line: str) -> None:
        """Send `line` to the child's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_for_line(self, text: str) -> str:
        """Return the first line that contains `text`, of those that the child prints after the last one waited for."""
        return wait_until(lambda: self._next_line(text), self)

    def _next_line(self, text: str) -> str | None:
        said = self.out
        while end := said.find("\n", self._seen) + 1:
            line, self._seen = said[self._seen : end], end
            if text in line:
                return line
        return None

    def limit_files(self, size: int | None) -> None:
        """Let no file of the child grow beyond `size` bytes, as a quota or a full disk would."""
        hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def kill(self) -> None:
        """Kill it as the kernel does when memory runs out, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self._close_stdin()
        self.process.wait()

    def ask(self, line: str) -> None:
        """Send `line` to the child's stdin, and wait until it has printed that it is done."""
        self.tell(line)
        self.wait_for_line("done")

    def end(self, timeout_s: float = 150.0, *, line: str = "", code: int | None = None) -> Ended:
        """Wait until the child has ended, by itself or because of `line`, with exit code `code` if that is given."""
        if line:
            self.tell(line)
        self._close_stdin()
        self.process.wait(timeout_s)
        ended = Ended(self.process.returncode, self.out, self.err)
        assert code in (None, ended.code), (ended.code, ended.err)
        return ended

    def _close_stdin(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Ended:
    """How a child ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def trouble(self) -> str:
        """What it said on standard error, but for findings: a loss that is always 1 is one, and no trouble."""
        return "".join(
            line
            for line in self.err.splitlines(keepends=True)
            if not line.startswith("[telemetry] warning: ")
        )

    def number(self, name: str) -> float:
        """Return the number of the line `name=...` that the child printed."""
        for line in self.out.splitlines():
            if line.startswith(f"{name}="):
                return float(line.partition("=")[2])
        raise AssertionError(f"the child did not print {name}: {self.out}\n{self.err}")


def repair(*runs: Path) -> str:
    """Do what `telemetry repair` does to folders, without a start of Python for it, and return what it says."""

    def try_it() -> tuple[int, str] | None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = telemetry_command(["repair", *map(str, runs)])
        # Any run that starts on this machine recovers the killed ones it finds, and may be at this one now.
        return None if "a running process" in said.getvalue() else (code, said.getvalue())

    code, said = wait_until(try_it)
    assert code == 0, said
    return said
