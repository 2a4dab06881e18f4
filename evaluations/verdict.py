"""How often `telemetry verdict` is right: loops of changes with and without effect, on the noise of real runs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Any, Final

from evaluations import repeated_runs
from evaluations.figures import Options, say, table
from evaluations.verdict_loops import DRAWN, Draw, loops_with_a_better, of_pool, power
from toolkit.telemetry.answers.repeats import Result
from toolkit.telemetry.answers.sequential_test import ALPHA, share_of_try
from toolkit.telemetry.answers.verdict import verdict

PAGE: Final = "answers.md"
TRIES: Final = 50
BEST: Final = (3, 10, 20)
SIZES: Final = (4, 8, 16, 32)


def run(options: Options) -> str:
    """Return the figures."""
    pools: dict[str, list[float]] = {}
    for name, training in repeated_runs.train(40 if options.quick else repeated_runs.SEEDS).items():
        sign = 1.0 if training["goal"] == "max" else -1.0
        pools[name] = [sign * curve[-1] for curve in training["curves"]]
    loops = 200 if options.quick else 2000
    return "\n\n".join(
        [
            (
                f"A loop compares {TRIES} changes **without effect** with the best one, after each of 16 runs; "
                f"{loops:,} loops of each kind, the last four from small trainings with {repeated_runs.SEEDS} seeds. "
                "A false *better* in a loop (goal: 5 %; in brackets: the better number of one run); then how often a "
                "change of 2 standard deviations is called *better* by its 4th, 8th, 16th and 32nd run, the best run "
                "ten times:"
            ),
            _kinds(pools, loops),
            "The same power by the number of the try, normal noise; *whole on the first*: if it had all 5 %:",
            _tries(2 * loops),
            _seeds_that_decide(pools, 40 if options.quick else 250),
        ]
    )


def _kinds(pools: dict[str, list[float]], loops: int) -> str:
    kinds: dict[str, tuple[Draw, dict[str, Any], Draw | None]] = {
        name: (draw, {}, draw) for name, draw in DRAWN.items()
    }
    kinds["normal, variance of a change twice or half"] = DRAWN["normal"], {"ratio": 2.0}, None
    kinds["normal, half of the noise shared by seeds"] = DRAWN["normal"], {"shares_seeds": True}, None
    kinds |= {name: (of_pool(last), {}, _scaled(last)) for name, last in pools.items()}
    rows = []
    for name, (draw, how, scaled) in kinds.items():
        say(f"{loops} loops without effect: {name}")
        found = [
            loops_with_a_better(draw, of_best=best, loops=loops, runs=16, tries=TRIES, **how) for best in BEST
        ]
        false = "/".join(f"{100 * each['verdict']:.1f}" for each in found)
        by_number = f"{100 * fmean(each['number'] for each in found):.0f}"
        rows.append([name, f"{false} % ({by_number} %)", _power(scaled, 2 * loops) if scaled else "-"])
    return table(["noise", f"false *better*, best of {'/'.join(map(str, BEST))}", "power"], rows)


def _scaled(values: Sequence[float]) -> Draw:
    middle, width = fmean(values), stdev(values)
    return of_pool([(value - middle) / width for value in values])


def _power(draw: Draw, loops: int, level: float = ALPHA * share_of_try(1)) -> str:
    found = power(draw, 2.0, of_best=10, runs=SIZES[-1], loops=loops, level=level)
    return "/".join(f"{found[size - 1]:.2f}" for size in SIZES)


def _tries(loops: int) -> str:
    levels = {str(number): ALPHA * share_of_try(number) for number in (2, 5, 10, 50)}
    levels["1, whole on the first"] = ALPHA
    rows = [[number, _power(DRAWN["normal"], loops, level)] for number, level in levels.items()]
    return table(["try", f"by run {'/'.join(map(str, SIZES))}"], rows)


def _seeds_that_decide(pools: dict[str, list[float]], draws: int) -> str:
    said: list[tuple[float, bool]] = []
    for name, last in pools.items():
        say(f"how many seeds decide: {name}")
        said += _forecasts(last, draws)
    parts = []
    for low, high in ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.01)):
        inside = [(chance, came) for chance, came in said if low <= chance < high]
        if inside:
            chances, came = zip(*inside, strict=True)
            parts.append(f"{100 * fmean(chances):.0f} %: {100 * fmean(came):.0f} % of {len(inside)}")
    return f"“N more seeds decide with P %”, said and come: {'; '.join(parts)}."


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
