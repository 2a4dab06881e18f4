"""How often `telemetry verdict` is right: loops of changes with and without effect, on the noise of real runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any, Final

from benchmarks.answers import repeated_runs
from benchmarks.command import say
from toolkit.telemetry.answers.repeats import Result
from toolkit.telemetry.answers.sequential_test import ALPHA, Noise, critical, judge, pooled, share_of_try
from toolkit.telemetry.answers.verdict import _within, verdict

TRIES: Final = 50
RUNS: Final = 4
"""One run of each change, and three more."""
OF_BEST: Final = (3, 5, 10, 20)
LOOPS: Final = f"""\
A loop compares {TRIES} changes **without effect** with the best one, and looks after each of {RUNS} runs of a change.
{{:,}} loops of each kind; the share with at least one false *better* (goal: at most 5 %):"""
HARD: Final = """\
The same with drawn noise that the test does not assume: the tails of Student's t with three degrees of freedom, a long
tail to the better side, and normal noise that differs from change to change (mostly by less than the factor):"""
POWER: Final = f"""\
**Power**: how often a change of two standard deviations is called *better* with at most {RUNS - 1} more runs (goal:
0.8), all trainings together, by the number of the try and how often the best one was run.
*Bound*: what the best possible test reaches if the noise is known exactly and normal, one looks once, and the try may
be wrong as often as ours may; *5 % for all alike*: if each of {TRIES} tries may be wrong equally often."""
ADVICE: Final = """\
At the first try, with a best one of 10 runs and 20 more repeats, if one stops wherever it says *discard*: {:.2f}."""
_LOOP_HEAD: Final = [
    "training",
    "runs of the best",
    "`verdict`",
    "the smaller number of one run",
    "a t-test at 5 % for each change",
]
_NORMAL: Final = NormalDist()
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
        LOOPS.format(loops),
        _false_table(pools, loops),
        HARD,
        _hard_table(loops),
        "Without a repeated run, one run of each, by the noise of the evaluations within the runs:",
        _single_table(pools, loops),
        POWER,
        _power_table(pools, 200 if quick else 2000),
        ADVICE.format(_power_by_advice(pools, 10 if quick else 100)),
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
    rows = []
    for name, (last, _) in pools.items():
        for of_best in OF_BEST[:3]:
            say(f"{loops} loops without effect: {name}, best of {of_best}")
            found = [_loop(last, of_best, random.Random(number)) for number in range(loops)]
            rows.append(
                [name, str(of_best), *(f"{100 * fmean(each):.1f} %" for each in zip(*found, strict=True))]
            )
    return _table(_LOOP_HEAD, rows)


def _hard_table(loops: int) -> str:
    """Drawn, not trained: numbers with a mean of 0."""
    kinds: dict[str, tuple[Callable[[random.Random], float], float]] = {
        "Student, 3": (lambda one: one.gauss(0, 1) / math.sqrt(one.gammavariate(1.5, 2.0) / 3), 0.0),
        "long better tail": (lambda one: one.expovariate(1.0) - 1, 0.0),
        "factor 1.35": (lambda one: one.gauss(0, 1), 0.3),
        "factor 1.65": (lambda one: one.gauss(0, 1), 0.5),
    }
    rows = []
    for name, (draw, uneven) in kinds.items():
        for of_best in (2, *OF_BEST[:3]):
            say(f"{loops} loops without effect: {name}, best of {of_best}")
            found = []
            for number in range(loops):
                source = random.Random(number)
                pool = [draw(source) for _ in range(of_best + TRIES * RUNS)]
                found.append(_loop(pool, of_best, source, uneven))
            rows.append(
                [name, str(of_best), *(f"{100 * fmean(each):.1f} %" for each in zip(*found, strict=True))]
            )
    return _table(["noise", *_LOOP_HEAD[1:]], rows)


def _loop(
    last: Sequence[float], of_best: int, source: random.Random, uneven: float = 0.0
) -> tuple[bool, bool, bool]:
    """Return whether ours, the smaller number and a t-test called any of the changes better."""
    best = source.sample(last, of_best)
    squares, freedom = _squares(best), of_best - 1
    ours = smaller = tested = False
    left = [value for value in last if value not in best] or last
    for number in range(1, TRIES + 1):
        scale = math.exp(source.gauss(0, uneven)) if uneven else 1.0
        new = [scale * value for value in source.sample(left, RUNS)]
        smaller |= new[0] > best[0]
        for look in range(1, RUNS + 1):
            noise = Noise(
                math.sqrt((squares + _squares(new[:look])) / (freedom + look - 1)), freedom + look - 1
            )
            ours |= judge(new[:look], best, noise, look=look, tries=number).outcome == "better"
        own = pooled([best, new])
        width = math.sqrt(1 / RUNS + 1 / of_best)
        tested |= (
            own is not None
            and fmean(new) - fmean(best) >= critical(0.05, own.freedom) * own.deviation * width
        )
        squares, freedom = squares + _squares(new), freedom + RUNS - 1
    return ours, smaller, tested


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)


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


def _power_table(pools: dict[str, Pool], draws: int) -> str:
    rows = []
    for number in (1, 5, 10, 50):
        for of_best in OF_BEST:
            alone, known = (
                fmean(
                    _is_found(last, of_best, number, more, random.Random(at))
                    for last, _ in pools.values()
                    for at in range(draws)
                )
                for more in (0, 20)
            )
            away = 2 / math.sqrt(1 / RUNS + 1 / of_best)
            bounds = [
                _NORMAL.cdf(away + _NORMAL.inv_cdf(level))
                for level in (ALPHA * share_of_try(number), ALPHA / TRIES)
            ]
            rows.append([str(number), str(of_best), *(f"{share:.2f}" for share in (alone, known, *bounds))])
    head = [
        "try",
        "runs of the best",
        "nothing else repeated",
        "20 more repeats in the folder",
        "bound",
        "bound, 5 % for all alike",
    ]
    return _table(head, rows)


def _is_found(last: Sequence[float], of_best: int, number: int, more: int, source: random.Random) -> bool:
    drawn = source.sample(last, of_best + RUNS + more + 1)
    best, new, others = drawn[:of_best], drawn[of_best : of_best + RUNS], drawn[of_best + RUNS :]
    new = [value + 2 * stdev(last) for value in new]
    squares, freedom = _squares(best) + (_squares(others) if more else 0.0), of_best - 1 + more
    for look in range(1, RUNS + 1):
        noise = Noise(math.sqrt((squares + _squares(new[:look])) / (freedom + look - 1)), freedom + look - 1)
        if judge(new[:look], best, noise, look=look, tries=number).outcome == "better":
            return True
    return False


def _power_by_advice(pools: dict[str, Pool], draws: int) -> float:
    found = []
    for name, (last, _) in pools.items():
        say(f"advice followed: {name}")
        for number in range(draws):
            drawn = random.Random(number).sample(last, 10 + RUNS + 21)
            new = [_result("new", at, value + 2 * stdev(last)) for at, value in enumerate(drawn[:RUNS])]
            rest = [
                _result("best" if at < 10 else "other", at, value) for at, value in enumerate(drawn[RUNS:])
            ]
            answer = "not decided"
            for size in range(1, RUNS + 1):
                if answer == "not decided":
                    answer = verdict(new[:size], rest[:10], rest[10:], metric="m", goal="max", tries=1).answer
            found.append(answer == "better")
    return fmean(found)


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
