"""The cost of one log call, or of an empty span, in a tight loop."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import (
    ALL,
    BARE,
    ITERATION,
    NOT_DUE,
    ONE_LOGGER,
    OURS,
    PEERS,
    RECORDED_SPAN,
    SPAN,
    SPANS,
    TRACKIO,
    WANDB,
    Logger,
    vary,
)
from benchmarks.report import Claim, Report, percentile

_SECONDS_A_BLOCK = 0.4
_MOST_US = (
    ("a step between two records", NOT_DUE, 0.8),
    ("a span, summed", SPAN, 2.0),
    ("a span with its own record", RECORDED_SPAN, 30.0),
)
_CHEAPER = ((OURS, TRACKIO, 10.0), (OURS, WANDB, 50.0), (ITERATION, ONE_LOGGER, 10.0))
_SHOWN = ("p50_us", "p99_us", "bare_p50_us", "times_bare")


def build(options: Options) -> Report:
    """Measure every contender in its own process, in blocks that alternate with orjson + os.write."""
    blocks, calls, rounds = (6, 500, 1) if options.quick else (20, 1000, 2)
    contenders, notes = options.choose((BARE, OURS, NOT_DUE, *PEERS, *SPANS))
    timings: dict[str, dict[str, list[int]]] = {c.name: {"own": [], "bare": []} for c in contenders}
    for number in range(rounds):
        for contender in contenders:
            say(f"log cost, round {number + 1} of {rounds}: {contender.title}")
            found = measure_in_child(time_calls, contender.name, blocks, calls)
            for key, values in timings[contender.name].items():
                values.extend(found[key])

    figures = {name: _summary(**found) for name, found in timings.items()}
    return Report(
        name="log_cost",
        title="One step of ten scalars, or one empty span, in a tight loop: time on the caller's thread",
        columns=["logger", "p50 µs", "p99 µs", "bare append µs", "x bare"],
        rows=[
            [contender.title, *(f"{figures[contender.name][name]:.2f}" for name in _SHOWN)]
            for contender in contenders
        ],
        figures=figures,
        claims=_claims(figures),
        notes=notes,
    )


def time_calls(folder: Path, name: str, blocks: int, calls: int) -> dict[str, list[int]]:
    """Return the nanoseconds of each call of contender `name`, and of the bare appends in between."""
    for sub in ("own", "bare"):
        (folder / sub).mkdir()
    own, bare = ALL[name].open(folder / "own"), BARE.open(folder / "bare")
    _block(own, 0, 50)
    _block(bare, 0, 50)

    found: dict[str, list[int]] = {"own": [], "bare": []}
    step = 50
    for _ in range(blocks):
        found["bare"] += _block(bare, step, calls)
        found["own"] += _block(own, step, calls)
        step += calls
    own.close()
    bare.close()
    return found


def _block(logger: Logger, first: int, calls: int) -> list[int]:
    clock, log = time.perf_counter_ns, logger.log
    took: list[int] = []
    # A slow logger gets fewer calls, not a longer benchmark.
    end = clock() + int(_SECONDS_A_BLOCK * 1e9)
    for step in range(first, first + calls):
        vary()
        before = clock()
        log(step)
        after = clock()
        took.append(after - before)
        if after > end:
            break
    return took


def _summary(own: list[int], bare: list[int]) -> dict[str, float]:
    p50, bare_p50 = percentile(own, 0.5) / 1e3, percentile(bare, 0.5) / 1e3
    times = {"bare_p50_us": bare_p50, "times_bare": p50 / bare_p50}
    return {"p50_us": p50, "p99_us": percentile(own, 0.99) / 1e3, **times}


def _claims(figures: dict[str, dict[str, float]]) -> list[Claim]:
    p50 = {name: found["p50_us"] for name, found in figures.items()}
    claims = [
        Claim(text=text, measured=p50[contender.name], limit=limit, unit=" µs")
        for text, contender, limit in _MOST_US
        if contender.name in p50
    ]
    if OURS.name in figures:
        times, text = figures[OURS.name]["times_bare"], "a logged step against the bare append"
        claims.append(Claim(text=text, measured=times, limit=2.6, unit="x"))
    for ours, peer, limit in _CHEAPER:
        if ours.name in p50 and peer.name in p50:
            times, text = p50[peer.name] / p50[ours.name], f"cheaper than {peer.title}"
            claims.append(Claim(text=text, measured=times, limit=limit, unit="x", at_least=True))
    return claims


if __name__ == "__main__":
    run_alone(build)
