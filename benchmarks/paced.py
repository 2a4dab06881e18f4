"""The cost of one log call after each 5 to 6 ms of work, with cold caches and the GIL in use."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, NOTHING, OURS, PEERS, Logger, vary
from benchmarks.report import Claim, Report, interval_of_median, median_and_quartiles

_STEP_S = 0.0055
# The first steps of a block still include background work of the one before.
_SETTLING = 10
# Beyond this, "no difference" would only mean that the machine was busy.
_WIDEST_MARGIN = 0.01
_KINDS = {"big": "matrix products", "small": "many small operations"}


def build(options: Options) -> Report:
    """Measure the slowdown of a step for every contender, in alternating blocks with and without the call."""
    turns, steps, rounds = (4, 30, 1) if options.quick else (30, 40, 2)
    contenders, notes = options.choose((NOTHING, BARE, OURS, *PEERS))
    found: dict[str, dict[str, list[dict[str, list[float]]]]] = {
        contender.name: {kind: [] for kind in _KINDS} for contender in contenders
    }
    for number in range(rounds):
        for kind in _KINDS:
            for contender in contenders:
                say(f"paced, round {number + 1} of {rounds}, {_KINDS[kind]}: {contender.title}")
                baseline = BARE.name if contender is OURS else None
                answer = measure_in_child(time_turns, contender.name, baseline, kind, turns, steps)
                found[contender.name][kind].append(answer)

    figures = {
        name: {kind: _summary(answers) for kind, answers in kinds.items()} for name, kinds in found.items()
    }
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


def time_turns(
    folder: Path, name: str, baseline: str | None, kind: str, turns: int, steps: int
) -> dict[str, list[float]]:
    """Return the slowdown in each turn, the excess over contender `baseline` if given, and the seconds per call."""
    work = work_of(kind)
    loggers: dict[str, Logger | None] = {"none": None}
    for role, contender in (("own", name), ("baseline", baseline)):
        if contender is not None:
            (folder / role).mkdir()
            loggers[role] = ALL[contender].open(folder / role)
    calls: dict[str, list[float]] = {role: [] for role in loggers}
    clock = time.perf_counter
    step = 0

    def block(role: str) -> float:
        nonlocal step
        logger = loggers[role]
        took: list[float] = []
        for _ in range(steps):
            step += 1
            vary()
            before = clock()
            work()
            if logger is not None:
                called = clock()
                logger.log(step)
                calls[role].append(clock() - called)
            took.append(clock() - before)
        return statistics.fmean(took[_SETTLING:])

    found: dict[str, list[float]] = {"slowdowns": [], "beyond": []}
    order = list(loggers)
    for turn in range(turns + 1):
        # Later positions meet a warmer machine, so the order rotates.
        order = order[1:] + order[:1]
        took = {role: block(role) for role in order}
        if turn == 0:
            # The first blocks touch memory for the first time.
            continue
        found["slowdowns"].append(took["own"] / took["none"] - 1)
        if "baseline" in took:
            found["beyond"].append((took["own"] - took["baseline"]) / took["none"])
    for logger in loggers.values():
        if logger is not None:
            logger.close()
    return {**found, "calls_s": calls["own"]}


def operation_of(kind: str, *, width: int) -> Callable[[], None]:
    """Return one operation of torch: a product of matrices of this width, or a small one."""
    import torch

    torch.set_grad_enabled(False)
    if kind == "big":
        left, right = torch.randn(width, width), torch.randn(width, width)

        def once() -> None:
            torch.mm(left, right)
    else:
        values = torch.randn(64)

        def once() -> None:
            values.add(1.0)

    return once


def work_of(kind: str) -> Callable[[], None]:
    """Return a function that keeps torch busy for about `_STEP_S` seconds."""
    once = operation_of(kind, width=256)
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


def _summary(answers: list[dict[str, list[float]]]) -> dict[str, float]:
    slowdowns, beyond, calls = (
        [value for answer in answers for value in answer[key]] for key in ("slowdowns", "beyond", "calls_s")
    )
    middle, low, high = median_and_quartiles(slowdowns)
    summary = {
        "slowdown": middle,
        "slowdown_q1": low,
        "slowdown_q3": high,
        "turns": len(slowdowns),
        "call_us": statistics.median(calls) * 1e6,
    }
    if beyond:
        low, high = interval_of_median(beyond)
        summary |= {
            "beyond_bare": statistics.median(beyond),
            "beyond_bare_low": low,
            "beyond_bare_high": high,
        }
    return summary


def _claims(figures: dict[str, dict[str, dict[str, float]]]) -> list[Claim]:
    if OURS.name not in figures:
        return []
    claims = []
    for kind, what in _KINDS.items():
        ours = figures[OURS.name][kind]
        # Two medians are never equal: the question is whether the difference exceeds the noise.
        margin = (ours["beyond_bare_high"] - ours["beyond_bare_low"]) / 2
        claims.append(
            Claim(
                text=f"slowdown with {what} beyond the bare append's in the same process, against its margin",
                measured=round(ours["beyond_bare"] * 100, 3),
                limit=round(margin * 100, 3),
                unit=" %",
                too_noisy=margin > _WIDEST_MARGIN,
            )
        )
    return claims


if __name__ == "__main__":
    run_alone(build)
