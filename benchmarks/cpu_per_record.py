"""What a run costs from its first call on: processor time per record, the caller's share, threads and processes."""

from __future__ import annotations

import resource
import statistics
import threading
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
_FIRST_STEPS = 600
_LIMITS = (
    (OURS, "a record in a burst, with the defaults", 35.0),
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
            **measure_in_child(first_seconds, contender.name),
        }

    ours = figures.get(OURS.name)
    return Report(
        name="cpu_per_record",
        title="Processor time per record over all threads and helper processes, mirrors drained and the run closed, "
        "and the first three seconds of a run",
        columns=[
            *("logger", "burst µs", "x us", "one every 5 ms µs", "open ms", "call p50 µs", "mean µs"),
            *("share of the caller's thread", "threads", "processes"),
        ],
        rows=[
            [
                contender.title,
                f"{figures[contender.name]['burst_us']:.1f}",
                f"{figures[contender.name]['burst_us'] / ours['burst_us']:.1f}" if ours else "",
                f"{figure['paced_us']:.0f}",
                f"{figure['open_ms']:.0f}",
                f"{figure['call_us']:.1f}",
                f"{figure['mean_us']:.1f}",
                f"{figure['share']:.2%}",
                f"{figure['threads']:.0f}",
                f"{figure['processes']:.0f}",
            ]
            for contender in contenders
            for figure in [figures[contender.name]]
        ],
        figures=figures,
        claims=[
            *(
                Claim(text=text, measured=figures[contender.name]["burst_us"], limit=limit, unit=" µs")
                for contender, text, limit in _LIMITS
                if contender.name in figures
            ),
            *(_claims_of_start(ours) if ours else ()),
        ],
        notes=[
            "one every 5 ms: minus the same loop without a logger",
            "it includes background work such as samplers and polling",
            f"the first three seconds: {_FIRST_STEPS} steps of 5 ms right after it was opened",
            "the calls by the time of their thread, so that other work on the machine does not count",
            "our process is git, as this script is in a repository",
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


def first_seconds(folder: Path, name: str) -> dict[str, float]:
    """Return what opening a logger and its first calls cost, and the threads and processes that came with it."""
    threads = threading.active_count()
    opened = time.perf_counter()
    logger = ALL[name].open(folder)
    took = time.perf_counter() - opened
    calls, processes = [], 0
    due = time.perf_counter()
    for step in range(_FIRST_STEPS):
        vary()
        due += _PAUSE_S
        while time.perf_counter() < due:
            pass
        before = time.thread_time()
        logger.log(step)
        calls.append(time.thread_time() - before)
        if not step % 50:
            processes = max(processes, len(psutil.Process().children(recursive=True)))
    found = threading.active_count() - threads
    logger.close()
    # Also one that has ended in between.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt > 0
    return {
        "open_ms": took * 1e3,
        "call_us": statistics.median(calls) * 1e6,
        "mean_us": statistics.fmean(calls) * 1e6,
        "share": sum(calls) / (_FIRST_STEPS * _PAUSE_S),
        "threads": found,
        "processes": max(processes, ended),
    }


def _claims_of_start(ours: dict[str, Any]) -> list[Claim]:
    ratio = ours["mean_us"] / ours["call_us"]
    return [
        Claim(text="opening a logger", measured=ours["open_ms"], limit=60.0, unit=" ms"),
        Claim(text="mean of the first calls by their median", measured=ratio, limit=1.2, unit=""),
        Claim(text="share of the caller's thread", measured=100 * ours["share"], limit=0.7, unit=" %"),
        Claim(text="threads of one logger", measured=ours["threads"], limit=4, unit=""),
    ]


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
