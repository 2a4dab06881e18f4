"""How much of a core `telemetry top` takes with 1, 50 and 1,000 runs, one of them live, and how soon it lists them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from benchmarks.command import Options, run_alone, say
from benchmarks.large_run import write_many_runs
from benchmarks.report import Claim, Report
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.waiting import wait_until

_RUNS: Final = (1, 50, 1_000)
_LIVE: Final = """
import sys, time
from toolkit.telemetry import TelemetryLogger

with TelemetryLogger("the-live-run", log_dir=sys.argv[1], log_every=1) as log:
    log.log_start(training={"max_steps": 10**6})
    for step in range(1, 10**6):
        log.log_step(step, train_loss=1 / step, lr=1e-4, grad_norm=1.0)
        time.sleep(0.1)
"""
_SETTLE_S: Final = 15.0
_MOST: Final = 5.0


def build(options: Options) -> Report:
    """Watch runs in a pseudo-terminal of 120 columns and 40 lines, in the list and in the live run."""
    seconds = 10.0 if options.quick else 60.0
    figures: dict[str, dict[str, float]] = {}
    for runs in _RUNS:
        say(f"telemetry top with {runs:,} runs, {2 * seconds:.0f} s")
        figures[f"{runs:,}"] = _measure(runs, seconds)
    return Report(
        name="top_cost",
        title=f"telemetry top, one run live with 10 steps a second, over {seconds:.0f} s",
        columns=["runs", "first list s", "list % of a core", "live run % of a core", "memory MB"],
        rows=[
            [runs, f"{one['first_s']:.2f}", f"{one['list']:.2f}", f"{one['run']:.2f}", f"{one['mb']:.0f}"]
            for runs, one in figures.items()
        ],
        figures=figures,
        claims=[
            Claim(text=f"the {screen} of {runs} runs", measured=one[screen], limit=_MOST, unit=" % of a core")
            for runs, one in figures.items()
            for screen in ("list", "run")
        ],
    )


def _measure(runs: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "logs"
        if runs > 1:
            write_many_runs(folder, runs - 1)
        command = [sys.executable, "-c", _LIVE, str(folder)]
        live = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until((folder / "the-live-run" / "run.json").exists, live)
        began = time.monotonic()
        command = [sys.executable, "-m", "toolkit.telemetry.cli", "top", str(folder)]
        terminal = PseudoTerminal(command, columns=120, rows=40, env={"XDG_CACHE_HOME": name})
        try:
            terminal.wait_for("the-live-run")
            first_s = time.monotonic() - began
            process = psutil.Process(terminal.process.pid)
            shares = {"list": _share(terminal, process, seconds)}
            terminal.send("\r")
            shares["run"] = _share(terminal, process, seconds)
            megabytes = process.memory_info().rss / 1e6
        finally:
            terminal.close()
            live.kill()
            live.wait()
    return {"first_s": first_s, **shares, "mb": megabytes}


def _share(terminal: PseudoTerminal, process: psutil.Process, seconds: float) -> float:
    """Return the percentage of a core that the process takes, once it has read what there is."""
    used: list[float] = []
    for pause_s in (_SETTLE_S, seconds):
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            # A terminal that is not read would stop the program.
            terminal.drain()
            time.sleep(0.2)
        used.append(sum(process.cpu_times()[:2]))
    return 100 * (used[1] - used[0]) / seconds


if __name__ == "__main__":
    run_alone(build)
