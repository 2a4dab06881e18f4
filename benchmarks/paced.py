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
from benchmarks.report import Claim, Report, median_and_quartiles

_STEP_S = 0.0055
# The first steps of a block still include background work of the one before.
_SETTLING = 10
# Beyond this, "no difference" would only mean that the machine was busy.
_WIDEST_MARGIN = 0.01
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
    rows = []
    for contender in contenders:
        row = [contender.title]
        for kind in _KINDS:
            figure = figures[contender.name][kind]
            row += [
                f"{figure['call_us']:.1f}",
                f"{figure['slowdown']:+.2%}",
                f"{figure['slowdown_q1']:+.2%} … {figure['slowdown_q3']:+.2%}",
            ]
        rows.append(row)
    return Report(
        name="paced",
        title="One call after each 5 to 6 ms of work: its own time, and the slowdown of the whole step",
        columns=[
            "logger",
            *(f"{kind}: {what}" for kind in _KINDS for what in ("call µs", "slowdown", "quartiles")),
        ],
        rows=rows,
        figures=figures,
        claims=_claims(figures),
        notes=[
            *(f"{kind} = {what}" for kind, what in _KINDS.items()),
            "slowdown: median over pairs of blocks with and without the call, then the two quartiles",
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
    middle, low, high = median_and_quartiles(slowdowns)
    return {
        "slowdown": middle,
        "slowdown_q1": low,
        "slowdown_q3": high,
        "call_us": statistics.median(calls_s) * 1e6,
    }


def _claims(figures: dict[str, dict[str, dict[str, float]]]) -> list[Claim]:
    if OURS.name not in figures or NOTHING.name not in figures:
        return []
    claims = []
    for kind, what in _KINDS.items():
        # Two medians are never equal: the question is whether the difference exceeds the noise.
        noise = figures[NOTHING.name][kind]
        margin = (noise["slowdown_q3"] - noise["slowdown_q1"]) / 2
        claims.append(
            Claim(
                text=f"slowdown with {what}, against half the spread of two loops without logging",
                measured=round(figures[OURS.name][kind]["slowdown"] * 100, 3),
                limit=round(margin * 100, 3),
                unit=" %",
                too_noisy=margin > _WIDEST_MARGIN,
            )
        )
    return claims


if __name__ == "__main__":
    run_alone(build)
