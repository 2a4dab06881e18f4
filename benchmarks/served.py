"""A web server in its own process: the dashboard, the smallest Streamlit page, or another tool's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.child import ROOT

_PATIENCE_S = 60.0
_OTHERS_SETTINGS = ("STREAMLIT_", "TELEMETRY_", "XDG_", "TRACKIO_", "GRADIO_", "PYTHON")


class Served:
    """A started server: its address, start-up time and resource use."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, says: str, environ: Mapping[str, str] | None = None
    ) -> None:
        """Start `command` with `folder` as its home; `says` matches the line with its address."""
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
                raise RuntimeError(f"the server did not start: {said[-2000:]}")
            time.sleep(0.01)

    @property
    def rss_mb(self) -> float:
        """Resident memory of the process."""
        return float(self._usage.memory_info().rss) / 1e6

    @property
    def cpu_s(self) -> float:
        """Processor time of all its threads so far."""
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def dashboard(log_dir: Path, home: Path) -> Served:
    """Start the dashboard as users do, with its cache under `home`."""
    program = str(ROOT / "run_dashboard.py")
    return Served(
        [sys.executable, program, "--port", "0", "--no-browser", "--log-dir", str(log_dir)],
        home,
        says=r"Dashboard: (http://\S+) ",
    )


def empty_page(home: Path) -> Served:
    """Start a page with only a title, on the dashboard's server and options."""
    return Served(
        [sys.executable, "-m", "benchmarks.served", str(home)], home, says=r"Empty page: (http://\S+)"
    )


def _serve_empty_page(home: str) -> None:
    from dashboard.listening import DEFAULT_HOST, listen
    from dashboard.server import DashboardServer

    listener = listen(DEFAULT_HOST, 0)
    script = Path(home) / "empty.py"
    script.write_text('import streamlit as st\n\nst.title("Nothing but a title")\n', encoding="utf-8")
    DashboardServer(listener, script=script, warm_up=False).serve_until_stopped(
        on_ready=lambda: print(f"Empty page: {listener.url}", flush=True)
    )


if __name__ == "__main__":
    _serve_empty_page(sys.argv[1])
