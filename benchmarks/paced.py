"""The cost of one log call after each 5 to 6 ms of work, with cold caches and the GIL in use."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, NOTHING, OURS, PEERS, vary
from benchmarks.report import SLOWDOWN, Report, no_slower, slowdown, slowdown_cells

_STEP_S = 0.0055
# The first steps of a block still include background work of the one before.
_SETTLING = 10
_KINDS = {"big": "matrix products", "small": "many small operations"}


def build(options: Options) -> Report:
    """Measure the slowdown of a step for every contender, in alternating blocks with and without the call."""
    turns, steps = (4, 30) if options.quick else (24, 40)
    contenders, notes = options.choose((NOTHING, BARE, OURS, *PEERS))
    figures: dict[str, dict[str, dict[str, float]]] = {contender.name: {} for contender in contenders}
    for kind, what in _KINDS.items():
        for contender in contenders:
            say(f"paced, {what}: {contender.title}")
            found = measure_in_child(time_turns, contender.name, kind, turns, steps)
            figures[contender.name][kind] = _summary(**found)
    return Report(
        name="paced",
        title="One call after each 5 to 6 ms of work: its own time, and the slowdown of the whole step",
        columns=[
            "logger",
            *(f"{kind}: {what}" for kind in _KINDS for what in ("call µs", "slowdown", "quartiles")),
        ],
        rows=[
            [contender.title, *(cell for kind in _KINDS for cell in _cells(figures[contender.name][kind]))]
            for contender in contenders
        ],
        figures=figures,
        claims=[
            no_slower(f"slowdown with {what}", figures[OURS.name][kind], figures[NOTHING.name][kind])
            for kind, what in _KINDS.items()
            if {OURS.name, NOTHING.name} <= figures.keys()
        ],
        notes=[
            *(f"{kind} = {what}" for kind, what in _KINDS.items()),
            SLOWDOWN,
            *notes,
        ],
    )


def time_turns(folder: Path, name: str, kind: str, turns: int, steps: int) -> dict[str, list[float]]:
    """Return the slowdown in each turn, and the seconds per call."""
    work, logger = work_of(kind), ALL[name].open(folder)
    slowdowns: list[float] = []
    calls: list[float] = []
    clock = time.perf_counter
    step = 0

    def block(*, with_logger: bool) -> float:
        nonlocal step
        took: list[float] = []
        for _ in range(steps):
            step += 1
            vary()
            before = clock()
            work()
            if with_logger:
                called = clock()
                logger.log(step)
                calls.append(clock() - called)
            took.append(clock() - before)
        return statistics.fmean(took[_SETTLING:])

    for turn in range(turns + 1):
        # The second position meets a warmer machine, so they change places.
        took = {with_logger: block(with_logger=with_logger) for with_logger in (turn % 2 > 0, turn % 2 == 0)}
        # The first blocks touch memory for the first time.
        if turn:
            slowdowns.append(took[True] / took[False] - 1)
    logger.close()
    return {"slowdowns": slowdowns, "calls_s": calls}


def work_of(kind: str) -> Callable[[], None]:
    """Return a function that keeps torch busy for about `_STEP_S` seconds."""
    import torch

    torch.set_grad_enabled(False)
    if kind == "big":
        once = partial(torch.mm, torch.randn(256, 256), torch.randn(256, 256))
    else:
        once = partial(torch.randn(64).add, 1.0)
    for _ in range(200):
        once()
    before = time.perf_counter()
    for _ in range(400):
        once()
    repeats = max(1, round(_STEP_S / ((time.perf_counter() - before) / 400)))

    def work() -> None:
        for _ in range(repeats):
            once()

    return work


def _summary(slowdowns: list[float], calls_s: list[float]) -> dict[str, float]:
    return {**slowdown(slowdowns), "call_us": statistics.median(calls_s) * 1e6}


def _cells(found: dict[str, float]) -> list[str]:
    return [f"{found['call_us']:.1f}", *slowdown_cells(found)]


if __name__ == "__main__":
    run_alone(build)
