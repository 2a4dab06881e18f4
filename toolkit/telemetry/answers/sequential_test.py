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
_LOOKS: Final = (0.01, 0.01, 0.05, 0.85)
"""Most is kept for the fourth run: three more than one. What is left halves with each further look."""
FEWEST: Final = 3
"""Fewer new runs are never *better*: one lucky run is from the tail of the noise, and that is seldom a normal one."""
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
    """The improvement from which on it is *better*; infinite for fewer than `FEWEST` new runs."""
    level: float
    """The chance that a change without effect is called better at this look."""
    error: float
    """The standard error of the improvement."""


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
    # Where the two groups vary more than the other runs do, their own noise counts: the pooled one would be too small
    # for an unstable change, for a rare result far off, and for a best one that was unlucky.
    own = math.sqrt(sum((_variance(group) or noise.deviation**2) / len(group) for group in (new, best)))
    error = max(own, noise.deviation * _width(len(new), len(best)))
    part = ALPHA * share_of_look(look)
    level = part * share_of_try(tries)
    needed = error * critical(level, noise.freedom) if len(new) >= FEWEST else math.inf
    worse = noise.deviation * largest_of(tries) / len(best) + error * critical(part, noise.freedom)
    return Judged(
        outcome="better" if improvement >= needed else "worse" if -improvement >= worse else "not decided",
        improvement=improvement,
        needed=needed,
        level=level,
        error=error,
    )


def forecast(
    new: Sequence[float], best: Sequence[float], noise: Noise, *, look: int, tries: int = 1, more: int = 1
) -> list[tuple[float, float]]:
    """Return the chances that the comparison ends as *better* and as *worse* with 1, 2, … `more` runs, by drawing them.

    Each is a run of the group that is smaller by then, the new one first.
    """
    source = random.Random(0)
    improvement, width = fmean(new) - fmean(best), _width(len(new), len(best))
    shrunk = 1 / (1 + (width / _PRIOR) ** 2)
    ends = [{"better": 0, "worse": 0, "not decided": 0} for _ in range(more)]
    for _ in range(_DRAWS):
        spread = noise.deviation * math.sqrt(noise.freedom / source.gammavariate(noise.freedom / 2, 2.0))
        luck = improvement - source.gauss(improvement * shrunk, spread * width * math.sqrt(shrunk))
        # The luck in the difference is that of both groups, by their numbers of runs.
        groups = [list(new), list(best)]
        truths = [fmean(new) - luck / (width**2 * len(new)), fmean(best) + luck / (width**2 * len(best))]
        squares = noise.freedom * noise.deviation**2
        outcome: Outcome = "not decided"
        for added, end in enumerate(ends, 1):
            if outcome == "not decided":
                at = 0 if len(groups[0]) <= len(groups[1]) else 1
                group = groups[at]
                value = source.gauss(truths[at], spread)
                squares += (value - fmean(group)) ** 2 * len(group) / (len(group) + 1)
                group.append(value)
                now = Noise(math.sqrt(squares / (noise.freedom + added)), noise.freedom + added)
                outcome = judge(groups[0], groups[1], now, look=look + added, tries=tries).outcome
            end[outcome] += 1
    return [(end["better"] / _DRAWS, end["worse"] / _DRAWS) for end in ends]


def _width(new: int, best: int) -> float:
    """Return the error of the difference of two means, in standard deviations of one result."""
    return math.sqrt(1 / new + 1 / best)


def _variance(values: Sequence[float]) -> float | None:
    """Return that of a few values; None for one."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else None


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
