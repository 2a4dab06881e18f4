"""Whole loops of changes that are compared with the best one, many at once: how often one is called better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.answers.sequential_test import ALPHA, FEWEST, limit, share_of_try

Numbers = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Numbers]


def _long_tail(source: np.random.Generator, size: tuple[int, int]) -> Numbers:
    return (np.exp(source.standard_normal(size)) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


DRAWN: Final[Mapping[str, Draw]] = {
    "normal": lambda source, size: source.standard_normal(size),
    "Student's t, 3 degrees of freedom": lambda source, size: source.standard_t(3, size) / math.sqrt(3),
    "lognormal, long tail to the better side": _long_tail,
    "lognormal, long tail to the worse side": lambda source, size: -_long_tail(source, size),
    "an accuracy of 200 samples": lambda source, size: (
        (source.binomial(200, 0.9, size) / 200 - 0.9) / math.sqrt(0.09 / 200)
    ),
}
"""Noise with a standard deviation of 1."""


def of_pool(values: Any) -> Draw:
    """Return what draws from the results of repeated trainings."""
    pool = np.asarray(values, dtype=np.float64)
    return lambda source, size: source.choice(pool, size)


def loops_with_a_better(
    draw: Draw,
    *,
    of_best: int,
    loops: int,
    runs: int,
    tries: int = 50,
    ratio: float = 1.0,
    shares_seeds: bool = False,
) -> dict[str, float]:
    """Return in which part of loops without effect a change is called better: by us, by the number of one run.

    One looks after each of the `runs` of a change. `ratio` is that of the variance of a change to that of the best, or
    its reverse, by chance. With `shares_seeds` half of the noise of the first runs is that of the best one's.
    """
    source = np.random.default_rng(of_best)
    best = draw(source, (loops, of_best))
    squares, freedom = _squares(best), of_best - 1
    found = {name: np.zeros(loops, bool) for name in ("verdict", "number")}
    for number in range(1, tries + 1):
        new = draw(source, (loops, runs))
        if shares_seeds:
            shared = min(runs, of_best)
            new[:, :shared] = (new[:, :shared] + best[:, :shared]) / math.sqrt(2)
        new *= np.sqrt(ratio) ** source.choice([-1.0, 1.0], (loops, 1))
        found["number"] |= new[:, 0] > best[:, 0]
        looks = _better(new, best, squares, freedom, ALPHA * share_of_try(number))
        found["verdict"] |= looks[-1]
        squares, freedom = squares + _squares(new), freedom + runs - 1
    return {name: float(each.mean()) for name, each in found.items()}


def power(draw: Draw, effect: float, *, of_best: int, runs: int, loops: int, level: float) -> list[float]:
    """Return in which part a change with an effect was called better by each run."""
    source = np.random.default_rng(7)
    best = draw(source, (loops, of_best))
    new = draw(source, (loops, runs)) + effect
    found, by_run = np.zeros(loops, bool), []
    for size in range(1, runs + 1):
        if size >= FEWEST:
            found |= is_better(new[:, :size], best, _squares(best), of_best - 1, level)
        by_run.append(float(found.mean()))
    return by_run


def _better(new: Numbers, best: Numbers, squares: Numbers, freedom: int, level: float) -> list[Any]:
    found = [np.zeros(len(new), bool)]
    for size in range(FEWEST, new.shape[1] + 1):
        found.append(found[-1] | is_better(new[:, :size], best, squares, freedom, level))
    return found


def is_better(new: Numbers, best: Numbers, squares: Numbers, freedom: int, level: float) -> Any:
    """As `judge` does it, for many comparisons at once; the tests compare both."""
    sizes = new.shape[1], best.shape[1]
    free = freedom + sizes[0] - 1
    pooled = (squares + _squares(new)) / free
    own = sum(
        np.where(_squares(group) > 1e-18, _squares(group) / max(size - 1, 1), pooled) / size
        for group, size in zip((new, best), sizes, strict=True)
    )
    error = np.sqrt(np.maximum(own, pooled * (1 / sizes[0] + 1 / sizes[1])))
    return new.mean(1) - best.mean(1) >= limit(level, *sizes, free) * error


def _squares(values: Numbers) -> Numbers:
    squares: Numbers = ((values - values.mean(1, keepdims=True)) ** 2).sum(1)
    return squares
