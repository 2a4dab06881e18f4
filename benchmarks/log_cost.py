"""The cost of one log call in a tight loop."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, NOT_DUE, OURS, PEERS, TRACKIO, WANDB, Logger, vary
from benchmarks.report import Claim, Report, percentile

_SECONDS_A_BLOCK = 0.4


def build(options: Options) -> Report:
    """Measure every contender in its own process, in blocks that alternate with orjson + os.write."""
    blocks, calls, rounds = (6, 500, 1) if options.quick else (20, 1000, 2)
    contenders, notes = options.choose((BARE, OURS, NOT_DUE, *PEERS))
    timings: dict[str, dict[str, list[int]]] = {c.name: {"own": [], "bare": []} for c in contenders}
    for number in range(rounds):
        for contender in contenders:
            say(f"log cost, round {number + 1} of {rounds}: {contender.title}")
            found = measure_in_child(time_calls, contender.name, blocks, calls)
            for key, values in timings[contender.name].items():
                values.extend(found[key])

    figures = {name: _summary(**found) for name, found in timings.items()}
    ours = figures.get(OURS.name)
    rows = [
        [
            contender.title,
            f"{figure['p50_us']:.2f}",
            f"{figure['p99_us']:.1f}",
            f"{figure['bare_p50_us']:.2f}",
            f"{figure['times_bare']:.2f}",
            f"{figure['p50_us'] / ours['p50_us']:.1f}" if ours else "",
        ]
        for contender in contenders
        for figure in [figures[contender.name]]
    ]
    return Report(
        name="log_cost",
        title="One 10-scalar step in a tight loop, time on the caller's thread",
        columns=["logger", "p50 µs", "p99 µs", "bare append µs", "x bare", "x us"],
        rows=rows,
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
    return {
        "p50_us": p50,
        "p99_us": percentile(own, 0.99) / 1e3,
        "max_us": max(own) / 1e3,
        "bare_p50_us": bare_p50,
        "times_bare": p50 / bare_p50,
        "calls": len(own),
    }


def _claims(figures: dict[str, dict[str, float]]) -> list[Claim]:
    claims: list[Claim] = []
    ours = figures.get(OURS.name)
    if ours is None:
        return claims
    claims.append(
        Claim(text="a logged step against the bare append", measured=ours["times_bare"], limit=1.6, unit="x")
    )
    if NOT_DUE.name in figures:
        between = figures[NOT_DUE.name]["p50_us"]
        claims.append(Claim(text="a step between two records", measured=between, limit=0.8, unit=" µs"))
    for peer, limit in ((TRACKIO, 10.0), (WANDB, 50.0)):
        if peer.name in figures:
            claims.append(
                Claim(
                    text=f"cheaper than {peer.title}",
                    measured=figures[peer.name]["p50_us"] / ours["p50_us"],
                    limit=limit,
                    unit="x",
                    at_least=True,
                )
            )
    return claims


if __name__ == "__main__":
    run_alone(build)
