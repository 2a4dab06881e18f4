"""Runs what only a library can read in a child process with limits: it may die, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

_START: Final = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
_OURS: Final = Path(__file__).parents[3]
"""Where `toolkit` is."""
_PATIENCE: Final = 20
"""Times the seconds of the processor: on a busy machine they take that long, and a process that waits ends."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may take."""

    memory: int
    """Bytes, beyond what its libraries take."""
    seconds: float
    """Of the processor."""
    output: int
    """Bytes that it may write into any file."""

    def apply(self) -> None:
        """Limit this process; to be called after the imports."""
        try:
            import resource
            import signal

            with open("/proc/self/statm", "rb") as file:
                taken = int(file.read().split()[0]) * resource.getpagesize()
        except (ImportError, OSError):
            # Only the deadline is left.
            return
        for kind, most in (
            (resource.RLIMIT_AS, taken + self.memory),
            (resource.RLIMIT_CPU, int(self.seconds) + 2),
            (resource.RLIMIT_FSIZE, self.output),
            (resource.RLIMIT_CORE, 0),
        ):
            # A user's own limit may be lower, and cannot be raised.
            hard = resource.getrlimit(kind)[1]
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (least, least))
        # To the fraction of a second; by default the signal ends the process.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max(0.01, self.seconds))


def run_limited(
    program: str,
    arguments: Sequence[str],
    limits: Limits,
    *,
    files: Sequence[int] = (),
    cwd: str | None = None,
) -> tuple[IO[bytes], bool]:
    """Run Python code, which calls `Limits.apply`; return a file with what it printed, and whether it ended well.

    It imports from where this process does, and never from the folder it is in. `files` are open in it too.

    Raises:
        OSError: it could not be started.
    """
    # In a checkout that is installed in place, `sys.path` has a hook and not the folder.
    places = [*filter(None, sys.path), str(_OURS)]
    path = "\n".join(os.path.abspath(place) for place in places)
    printed: IO[bytes] = tempfile.TemporaryFile(prefix="telemetry-child-")  # noqa: SIM115
    environ: dict[str, Any] = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", f"{_START}{program}", path, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=subprocess.DEVNULL,
        env=environ,
        cwd=cwd,
        pass_fds=files if os.name == "posix" else (),
    )
    try:
        code: int | None = process.wait(timeout=_PATIENCE * limits.seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    printed.seek(0)
    return printed, code == 0
