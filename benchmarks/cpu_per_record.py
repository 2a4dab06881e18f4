"""Processor time per record over all threads and helper processes, until it is on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import (
    ALL,
    BARE,
    EVERY_TENTH,
    NO_DIAGNOSTICS,
    NOTHING,
    OURS,
    PEERS,
    TENSORBOARD,
    WANDB,
    vary,
)
from benchmarks.report import Claim, Report

_PAUSE_S = 0.005
_LIMITS = (
    (OURS, "a record in a burst, with the defaults", 25.0),
    (NO_DIAGNOSTICS, "a record in a burst, without diagnostics", 12.0),
    (EVERY_TENTH, "a step in a burst, with a record every tenth step", 4.0),
)


def build(options: Options) -> Report:
    """Measure every contender in a burst, and at the pace of a training loop."""
    burst, paced = (2000, 200) if options.quick else (20_000, 2000)
    contenders, notes = options.choose((BARE, OURS, NO_DIAGNOSTICS, EVERY_TENTH, *PEERS))
    say("cpu: the idle loop")
    idle = measure_in_child(cpu_of_paced, NOTHING.name, paced)
    figures: dict[str, Any] = {}
    for contender in contenders:
        say(f"cpu: {contender.title}")
        in_burst = measure_in_child(
            cpu_of_burst, contender.name, burst // 4 if contender in (WANDB, TENSORBOARD) else burst
        )
        at_pace = measure_in_child(cpu_of_paced, contender.name, paced)
        figures[contender.name] = {
            "burst_us": in_burst * 1e6,
            "paced_us": max(at_pace - idle, 0.0) * 1e6,
        }

    ours = figures.get(OURS.name)
    return Report(
        name="cpu_per_record",
        title="Processor time per record over all threads and helper processes, mirrors drained and the run closed",
        columns=["logger", "burst µs", "x us", "one every 5 ms µs"],
        rows=[
            [
                contender.title,
                f"{figures[contender.name]['burst_us']:.1f}",
                f"{figures[contender.name]['burst_us'] / ours['burst_us']:.1f}" if ours else "",
                f"{figures[contender.name]['paced_us']:.0f}",
            ]
            for contender in contenders
        ],
        figures=figures,
        claims=[
            Claim(text=text, measured=figures[contender.name]["burst_us"], limit=limit, unit=" µs")
            for contender, text, limit in _LIMITS
            if contender.name in figures
        ],
        notes=[
            "one every 5 ms: minus the same loop without a logger",
            "it includes background work such as samplers and polling",
            "a record every tenth step: per step",
            *notes,
        ],
    )


def cpu_of_burst(folder: Path, name: str, records: int) -> float:
    """Return the processor seconds per record, logged as fast as the logger accepts them."""
    logger = ALL[name].open(folder)
    for step in range(200):
        vary()
        logger.log(step)
    meter = _Meter()
    for step in range(200, 200 + records):
        vary()
        logger.log(step)
    return meter.spent_with(logger.close) / records


def cpu_of_paced(folder: Path, name: str, records: int) -> float:
    """Return the processor seconds per record at one record every 5 ms."""
    logger = ALL[name].open(folder)
    for step in range(20):
        vary()
        logger.log(step)
    meter = _Meter()
    due = time.perf_counter()
    for step in range(20, 20 + records):
        vary()
        logger.log(step)
        due += _PAUSE_S
        time.sleep(max(0.0, due - time.perf_counter()))
    return meter.spent_with(logger.close) / records


class _Meter:
    """Processor seconds of this process, its threads and its child processes, minus the cost of measuring."""

    def __init__(self) -> None:
        self._helpers = cpu_of_helpers()
        self._own = time.process_time()

    def spent_with(self, close: Callable[[], None]) -> float:
        """Call `close` and return the seconds used until it is done."""
        logged = time.process_time() - self._own
        # A helper process is gone after close, so it is measured before as well.
        helpers = cpu_of_helpers()
        before = time.process_time()
        close()
        closed = time.process_time() - before
        helpers |= cpu_of_helpers()
        return logged + closed + sum(spent - self._helpers.get(pid, 0.0) for pid, spent in helpers.items())


def cpu_of_helpers() -> dict[int, float]:
    """Return the processor time of each child process so far."""
    spent = {}
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent[child.pid] = times.user + times.system
    return spent


if __name__ == "__main__":
    run_alone(build)
