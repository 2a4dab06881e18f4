"""How often `telemetry verdict` is right: loops of changes with and without effect, on the noise of real runs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Any, Final

from benchmarks.answers import repeated_runs
from benchmarks.answers.verdict_loops import DRAWN, Draw, loops_with_a_better, of_pool, power
from benchmarks.command import say
from toolkit.telemetry.answers.repeats import Result
from toolkit.telemetry.answers.sequential_test import ALPHA, share_of_try
from toolkit.telemetry.answers.verdict import _within, verdict

TRIES: Final = 50
FALSE: Final = f"""\
**False *better***: a loop compares {TRIES} changes **without effect** with the best one, and looks after each run.
{{:,}} loops of each kind; the share with at least one false *better* (goal: at most 5 %):"""
POWER: Final = """\
**Power**: how often a change is called *better* by its 4th, 8th, 16th and 32nd run, of {:,} comparisons, the best one
run ten times, by the number of the try. *Whole on the first*: if the first try had all 5 %, and no other try any."""
HALF: Final = """\
A change of one standard deviation, the best one run as often as the new one and at least ten times, first try:"""
Pool = tuple[Sequence[float], Sequence[Sequence[float]]]


def run(quick: bool) -> str:
    """Return the part of the document about `telemetry verdict`."""
    pools: dict[str, Pool] = {}
    for name, training in repeated_runs.read().items():
        sign = 1.0 if training["goal"] == "max" else -1.0
        curves = [[sign * value for value in curve] for curve in training["curves"]]
        pools[name] = [curve[-1] for curve in curves], curves
    loops = 100 if quick else 1000
    parts = [
        "## Is it really better?",
        "Higher is better in all of these, and nothing but the seed differs between the runs of one training:",
        _noise_table(pools),
        FALSE.format(2 * loops),
        _false_table(pools, 2 * loops),
        "Without a repeated run, one run of each, by the noise of the evaluations within the runs:",
        _single_table(pools, loops),
        POWER.format(4 * loops),
        _power_table(pools, 4 * loops),
        HALF,
        _small_table(4 * loops),
        "**“N more seeds decide with P %”**: how often they did, for changes between -1 and 4 standard deviations:",
        _forecast_table(pools, 40 if quick else 250),
    ]
    return "\n\n".join(parts)


def _noise_table(pools: dict[str, Pool]) -> str:
    about = repeated_runs.read()
    rows = []
    for name, (last, curves) in pools.items():
        ratios = sorted(stdev(last) / math.sqrt(_within(curve) or 1.0) for curve in curves)
        few, middle, most = (ratios[int(len(ratios) * share)] for share in (0.05, 0.5, 0.95))
        rows.append(
            [
                name,
                about[name]["about"],
                str(len(last)),
                f"{stdev(last):.3g}",
                f"{middle:.1f} ({few:.1f} to {most:.1f})",
            ]
        )
    head = [
        "training",
        "about",
        "seeds",
        "standard deviation",
        "that, of the noise within a run: median (90 % of runs)",
    ]
    return _table(head, rows)


# ---------------------------------------------------------------- false better


def _false_table(pools: dict[str, Pool], loops: int) -> str:
    kinds: dict[str, tuple[Draw, dict[str, Any]]] = {name: (draw, {}) for name, draw in DRAWN.items()}
    kinds["normal, variance of a change twice or half that of the best"] = DRAWN["normal"], {"ratio": 2.0}
    kinds["normal, half of the noise shared by seeds"] = DRAWN["normal"], {"shares_seeds": True}
    kinds |= {f"training: {name}": (of_pool(last), {}) for name, (last, _) in pools.items()}
    rows = []
    for name, (draw, how) in kinds.items():
        for of_best in (3, 10, 20):
            say(f"{loops} loops without effect: {name}, best of {of_best}")
            found = loops_with_a_better(draw, of_best=of_best, loops=loops, runs=16, tries=TRIES, **how)
            rows.append([name, str(of_best), *(f"{100 * each:.1f} %" for each in found.values())])
    head = ["noise", "runs of the best", "after 20 changes, 16 runs each", f"after {TRIES}"]
    return _table([*head, "the smaller number of one run", "a t-test of four runs at 5 %"], rows)


def _single_table(pools: dict[str, Pool], loops: int) -> str:
    rows = []
    for name, (_, curves) in pools.items():
        false = smaller = decided = 0
        for number in range(loops):
            source = random.Random(number)
            best, *tries = source.sample(list(curves), TRIES + 1)
            outcomes = [_single(new, best, at) for at, new in enumerate(tries, 1)]
            false += "better" in outcomes
            decided += sum(outcome == "worse" for outcome in outcomes)
            smaller += any(new[-1] > best[-1] for new in tries)
        rows.append(
            [
                name,
                *(
                    f"{100 * each:.1f} %"
                    for each in (false / loops, smaller / loops, decided / loops / TRIES)
                ),
            ]
        )
    return _table(
        ["training", "loops with a false *better*", "the smaller number", "changes called *worse*"], rows
    )


def _single(new: Sequence[float], best: Sequence[float], number: int) -> str:
    runs = [
        Result(key=name, name=name, value=curve[-1], points=curve)
        for name, curve in (("new", new), ("best", best))
    ]
    return verdict(runs[:1], runs[1:], metric="m", goal="max", tries=number).answer


# ---------------------------------------------------------------- power


_SIZES: Final = (4, 8, 16, 32)


def _power_table(pools: dict[str, Pool], loops: int) -> str:
    levels = {str(number): ALPHA * share_of_try(number) for number in (1, 2, 5, 10, 50)}
    rows = [
        _power_row([name, "1"], draw, 2.0, loops, levels["1"])
        for name, draw in [
            *DRAWN.items(),
            *((f"training: {name}", _scaled(last)) for name, (last, _) in pools.items()),
        ]
    ]
    levels = {**levels, "1, whole on the first": ALPHA}
    for number, level in list(levels.items())[1:]:
        rows.append(_power_row(["normal", number], DRAWN["normal"], 2.0, loops, level))
    return _table(["noise, effect of 2 standard deviations", "try", *map(str, _SIZES)], rows)


def _scaled(values: Sequence[float]) -> Draw:
    middle, width = fmean(values), stdev(values)
    return of_pool([(value - middle) / width for value in values])


def _power_row(names: list[str], draw: Draw, effect: float, loops: int, level: float) -> list[str]:
    found = power(draw, effect, of_best=10, runs=_SIZES[-1], loops=loops, level=level)
    return [*names, *(f"{found[size - 1]:.2f}" for size in _SIZES)]


def _small_table(loops: int) -> str:
    level = ALPHA * share_of_try(1)
    rows = [
        [name, *(f"{found[size - 1]:.2f}" for size in (8, 16, 40))]
        for name, draw in DRAWN.items()
        for found in (power(draw, 1.0, of_best=10, runs=40, loops=loops, level=level, grows=True),)
    ]
    return _table(["noise", "8 runs", "16", "40"], rows)


# ---------------------------------------------------------------- the forecast


def _forecast_table(pools: dict[str, Pool], draws: int) -> str:
    said: list[tuple[float, bool]] = []
    for name, (last, _) in pools.items():
        say(f"forecasts: {name}")
        said += _forecasts(last, draws)
    rows = []
    for low, high in ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.01)):
        inside = [(chance, came) for chance, came in said if low <= chance < high]
        if inside:
            chances, came = zip(*inside, strict=True)
            rows.append(
                [
                    f"{100 * low:.0f} to {min(100, 100 * high):.0f} %",
                    str(len(inside)),
                    f"{100 * fmean(chances):.0f} %",
                    f"{100 * fmean(came):.0f} %",
                ]
            )
    return _table(["said", "times", "said on average", "decided"], rows)


def _forecasts(last: Sequence[float], draws: int) -> Iterator[tuple[float, bool]]:
    source = random.Random(7)
    for _ in range(draws):
        size, of_best, number = source.randint(1, 3), source.choice((3, 5, 10)), source.choice((1, 2, 5))
        shift = source.uniform(-1, 4) * stdev(last)
        drawn = source.sample(last, of_best + 20)
        groups = [[value + shift for value in drawn[:10]], drawn[10:]]
        how: Any = {"metric": "m", "goal": "max", "tries": number}
        runs = [
            [_result(side, at, value) for at, value in enumerate(group)]
            for side, group in zip("ab", groups, strict=True)
        ]
        found = verdict(runs[0][:size], runs[1][:of_best], **how)
        if found.answer != "not decided" or not found.numbers["chances"]:
            continue
        chances = [chance["better"] + chance["worse"] for chance in found.numbers["chances"]]
        more = next((at for at, chance in enumerate(chances, 1) if chance >= 0.8), len(chances))
        came = False
        for _ in range(more):
            size, of_best = (size + 1, of_best) if size <= of_best else (size, of_best + 1)
            now = verdict(runs[0][:size], runs[1][:of_best], more=1, **how)
            came |= now.answer in ("better", "worse")
        yield chances[more - 1], came


def _result(side: str, at: int, value: float) -> Result:
    return Result(key=f"{side}{at}", name=side, value=value, settings={"change": side, "seed": at})


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows])
