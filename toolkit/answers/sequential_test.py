"""Whether one group of results is better than another, at any time that one looks. Plain numbers, no numpy.

The chance of a false *better* in a whole loop is shared out beforehand: to each try (a change that is compared with the
best one) by its number, and of that to each look, by how many runs were added since the comparison began. The shares
add up to 1 over any number of tries and looks, so the sum of all chances stays below `ALPHA`, however the tries depend
on each other, whenever one stops, and whichever of them is picked afterwards.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import Final, Literal

ALPHA: Final = 0.05
"""The chance of a false *better* in a whole loop of changes without effect, and of a false *worse* in a comparison."""
_LOOP: Final = 50
_ALIKE: Final = 0.3
"""This part of `ALPHA` is shared alike by the first fifty tries, the rest falls with the number of the try."""
_LOOKS: Final = (0.01, 0.04, 0.12, 0.7)
"""Most is kept for the fourth run: three more than one. What is left halves with each further look."""
_DRAWS: Final = 400
_PRIOR: Final = 2.0
"""For a forecast: most changes move a result by no more than so many standard deviations of its noise."""
_MANY: Final = 1000
_NORMAL: Final = NormalDist()

Outcome = Literal["better", "worse", "not decided"]


@dataclass(frozen=True, slots=True)
class Noise:
    """How much one run differs from another that has equal settings."""

    deviation: float
    freedom: int
    """Degrees of freedom of the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a comparison says."""

    outcome: Outcome
    improvement: float
    """How much better the new results are on average; below 0 they are worse."""
    needed: float
    """The improvement from which on it is *better*."""
    level: float
    """The chance that a change without effect is called better at this look."""
    p: float
    """The chance that a change without effect looks this good."""


def pooled(groups: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise within groups of repeated runs; None if nothing was repeated, or nothing differs."""
    freedom = sum(len(values) - 1 for values in groups if len(values) > 1)
    squares = sum((value - fmean(values)) ** 2 for values in groups if len(values) > 1 for value in values)
    return Noise(math.sqrt(squares / freedom), freedom) if freedom and squares > 0 else None


def share_of_try(number: int) -> float:
    """Return the share of `ALPHA` of a loop's try, the first of which is 1."""
    number = max(number, 1)
    return (1 - _ALIKE) / (number * (number + 1)) + (_ALIKE / _LOOP if number <= _LOOP else 0.0)


def share_of_look(number: int) -> float:
    """Return the share of a try's part for a look, the first of which is 1."""
    if number <= len(_LOOKS):
        return _LOOKS[max(number, 1) - 1]
    return max((1.0 - sum(_LOOKS)) * 0.5 ** (number - len(_LOOKS)), 1e-12)


def judge(new: Sequence[float], best: Sequence[float], noise: Noise, *, look: int, tries: int = 1) -> Judged:
    """Compare results, of which higher ones are better.

    `look` counts the runs since the comparison began, those of `new` included. The best of several tries owes a part
    of its first result to luck, as much as the largest of so many draws does: so much worse is not yet *worse*.
    """
    improvement = fmean(new) - fmean(best)
    needed, worse = limits(len(new), len(best), noise, look, tries)
    return Judged(
        outcome=_outcome(improvement, needed, worse),
        improvement=improvement,
        needed=needed,
        level=ALPHA * share_of_try(tries) * share_of_look(look),
        p=upper_tail(improvement / (noise.deviation * _width(len(new), len(best))), noise.freedom),
    )


def forecast(
    new: Sequence[float], best: Sequence[float], noise: Noise, *, look: int, tries: int = 1, more: int = 1
) -> tuple[float, float]:
    """Return the chances that the comparison ends as *better* and as *worse* with `more` runs, by drawing them.

    Each is a run of the group that is smaller by then, the new one first.
    """
    source = random.Random(0)
    first = {"new": (len(new), fmean(new)), "best": (len(best), fmean(best))}
    improvement, width = first["new"][1] - first["best"][1], _width(len(new), len(best))
    shrunk = 1 / (1 + (width / _PRIOR) ** 2)
    ends = dict.fromkeys(("better", "worse", "not decided"), 0)
    for _ in range(_DRAWS):
        spread = noise.deviation * math.sqrt(noise.freedom / source.gammavariate(noise.freedom / 2, 2.0))
        luck = improvement - source.gauss(improvement * shrunk, spread * width * math.sqrt(shrunk))
        # The luck in the difference is that of both groups, by their numbers of runs.
        truth = {
            group: mean + sign * luck / (width**2 * count)
            for sign, (group, (count, mean)) in zip((-1, 1), first.items(), strict=True)
        }
        groups, squares, outcome = dict(first), noise.freedom * noise.deviation**2, "not decided"
        for added in range(1, more + 1):
            group = "new" if groups["new"][0] <= groups["best"][0] else "best"
            count, mean = groups[group]
            away = source.gauss(truth[group], spread) - mean
            squares += away * away * count / (count + 1)
            groups[group] = count + 1, mean + away / (count + 1)
            now = Noise(math.sqrt(squares / (noise.freedom + added)), noise.freedom + added)
            both = limits(groups["new"][0], groups["best"][0], now, look + added, tries)
            outcome = _outcome(groups["new"][1] - groups["best"][1], *both)
            if outcome != "not decided":
                break
        ends[outcome] += 1
    return ends["better"] / _DRAWS, ends["worse"] / _DRAWS


def _width(new: int, best: int) -> float:
    """Return the error of the difference of two means, in standard deviations of one result."""
    return math.sqrt(1 / new + 1 / best)


def limits(new: int, best: int, noise: Noise, look: int, tries: int) -> tuple[float, float]:
    """Return how much better is *better*, and how much worse is *worse*."""
    part = ALPHA * share_of_look(look)
    error = noise.deviation * _width(new, best)
    luck = noise.deviation * largest_of(tries) / best
    needed = error * critical(part * share_of_try(tries), noise.freedom)
    return needed, luck + error * critical(part, noise.freedom)


def _outcome(improvement: float, needed: float, worse: float) -> Outcome:
    return "better" if improvement >= needed else "worse" if -improvement >= worse else "not decided"


def largest_of(count: int) -> float:
    """Return how far the largest of so many normal numbers is above their mean, in standard deviations."""
    return _NORMAL.inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def upper_tail(t: float, freedom: int) -> float:
    """Return the chance that Student's t is above `t`."""
    if freedom > _MANY:
        return _NORMAL.cdf(-t)
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    is_odd = freedom % 2
    term = math.cos(angle) if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for place in range(2 + is_odd, freedom - 1, 2):
        term *= square * (place - 1) / place
        total += term
    inside = math.sin(angle) * total
    inside = 2 / math.pi * (angle + inside) if is_odd else inside
    return max((1 - inside) / 2, 0.0)


@lru_cache(maxsize=4096)
def critical(level: float, freedom: int) -> float:
    """Return what Student's t is above with the chance `level`, below one half."""
    low, high = 0.0, 1.0
    while upper_tail(high, freedom) > level and high < 1e12:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, freedom) > level else (low, middle)
    return high
