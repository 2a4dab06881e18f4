"""A web server in a process of its own, from its start until it is no longer needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.child import ROOT
from benchmarks.timed_dashboard import TIMES_VARIABLE

_PATIENCE_S = 60.0
_OTHERS_SETTINGS = ("STREAMLIT_", "TELEMETRY_", "XDG_", "TRACKIO_", "GRADIO_", "PYTHON")


class Served:
    """A started server: where it answers, how long it took to get there, and what it uses."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, says: str, environ: Mapping[str, str] | None = None
    ) -> None:
        """Start `command` with `folder` as its home; `says` is what it prints around its address once it is ready."""
        folder.mkdir(parents=True, exist_ok=True)
        self._printed = folder / "printed.txt"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS_SETTINGS)}
        began = time.perf_counter()
        with open(self._printed, "wb") as printed:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**kept, "HOME": str(folder), "PYTHONUNBUFFERED": "1", **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        self.url = self._wait_for(says).rstrip("/")
        self.start_s = time.perf_counter() - began
        self.began = began
        self._usage = psutil.Process(self._process.pid)

    def _wait_for(self, says: str) -> str:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            said = self._printed.read_text(encoding="utf-8", errors="replace")
            found = re.search(says, said)
            if found is not None:
                return found[1]
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end()
                raise RuntimeError(f"the server did not come up: {said[-2000:]}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def rss_mb(self) -> float:
        """Memory that the process holds now."""
        return float(self._usage.memory_info().rss) / 1e6

    @property
    def cpu_s(self) -> float:
        """Processor time that all its threads have used so far."""
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def dashboard(log_dir: Path, home: Path, *, times: Path | None = None) -> Served:
    """Start the dashboard as people do; the columns it keeps lie under `home`.

    With `times`, what computing each page takes goes into that file.
    """
    program = ["-m", "benchmarks.timed_dashboard"] if times else [str(ROOT / "run_dashboard.py")]
    return Served(
        [sys.executable, *program, "--port", "0", "--no-browser", "--log-dir", str(log_dir)],
        home,
        says=r"Dashboard: (http://\S+) ",
        environ={TIMES_VARIABLE: str(times)} if times else None,
    )


def empty_page(home: Path) -> Served:
    """Start a page with one title in it, behind the very server and options that the dashboard has."""
    return Served([sys.executable, "-m", "benchmarks.empty_page"], home, says=r"Empty page: (http://\S+)")
