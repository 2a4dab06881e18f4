"""Whether one group of results is better than another, at any time that one looks. Plain numbers, no numpy.

The test of one comparison is a t-test that may be looked at after every run (a mixture sequential test: Robbins 1970;
with unknown noise Lindon and others, "Anytime-valid linear models", 2022; Grünwald, de Heide and Koolen, "Safe
testing", 2024; Wang and Ramdas, "Anytime-valid t-tests", 2024). Its evidence is the ratio of how likely the results are
if effects are spread around zero by `_SPREADS`, and if there is none. Without an effect that ratio ever reaches 1/level
with at most the chance `level` (Ville 1939), however many runs are added. Such a bound leaves room: it also holds for a
look before `FEWEST` runs. `_ROOM` is how much of it is needed, by simulation (docs/figures/verdict.md).

The chance of a false *better* in a whole loop is shared out beforehand to its tries, which are the changes that are
compared with the best one, and not to the looks at one of them (online testing: Foster and Stine 2008; Javanmard and
Montanari 2018). The shares add up to less than 1 over any number of tries, so the sum of all chances stays below
`ALPHA`, however the tries depend on each other, and whichever of them is picked afterwards.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Final, Literal

ALPHA: Final = 0.05
"""The chance of a false *better* in a whole loop of changes without effect, and of a false *worse* in a comparison."""
_LOOP: Final = 50
_FALLS: Final = 0.7
"""This part of `ALPHA` falls with the number of the try."""
_ALIKE: Final = 0.15
"""This part is shared alike by the first fifty tries; the rest is kept for noise that differs between changes."""
FEWEST: Final = 3
"""Fewer new runs are never *better*: one lucky run is from the tail of the noise, and that is seldom a normal one."""
_SPREADS: Final = ((3.0, 0.95), (100.0, 0.05))
"""The variances of effects that are looked for, in variances of one result, and the parts of the level: large effects
are rare, but only if they are expected do a few runs show them where little is known of the noise."""
_ROOM: Final = 0.28
_DRAWS: Final = 400
_PRIOR: Final = 2.0
"""For a forecast: most changes move a result by no more than so many standard deviations of its noise."""
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
    """The chance that a change without effect is ever called better."""
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
    return _FALLS / (number * (number + 1)) + (_ALIKE / _LOOP if number <= _LOOP else 0.0)


def judge(new: Sequence[float], best: Sequence[float], noise: Noise, *, tries: int = 1) -> Judged:
    """Compare results, of which higher ones are better.

    The best of several tries owes a part of its first result to luck, as much as the largest of so many draws does: so
    much worse is not yet *worse*.
    """
    improvement = fmean(new) - fmean(best)
    # Where the two groups vary more than the other runs do, their own noise counts: the pooled one would be too small
    # for an unstable change, for a rare result far off, and for a best one that was unlucky.
    own = math.sqrt(sum((_variance(group) or noise.deviation**2) / len(group) for group in (new, best)))
    error = max(own, noise.deviation * _width(len(new), len(best)))
    sizes = len(new), len(best)
    level = ALPHA * share_of_try(tries)
    needed = error * limit(level, *sizes, noise.freedom) if len(new) >= FEWEST else math.inf
    # From the first run on, which costs about as much again as all looks from the third on.
    worse = noise.deviation * largest_of(tries) / len(best) + error * limit(ALPHA / 2, *sizes, noise.freedom)
    return Judged(
        outcome="better" if improvement >= needed else "worse" if -improvement >= worse else "not decided",
        improvement=improvement,
        needed=needed,
        level=level,
        error=error,
    )


def forecast(
    new: Sequence[float], best: Sequence[float], noise: Noise, *, tries: int = 1, more: int = 1
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
                outcome = judge(groups[0], groups[1], now, tries=tries).outcome
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


def limit(level: float, new: int, best: int, freedom: int) -> float:
    """Return what t of a comparison of so many results is above with at most the chance `level`, at any look.

    Infinite where so few results never are enough.
    """
    return min(_limit(part * level, spread, new * best / (new + best), freedom) for spread, part in _SPREADS)


def chance(t: float, new: int, best: int, freedom: int) -> float:
    """Return with which chance t of so many results is ever that high without an effect: the reverse of `limit`."""
    found = [1.0]
    for spread, part in _SPREADS:
        wider = 1 + spread * new * best / (new + best)
        ratio = (1 + t * t / freedom) / (1 + t * t / (freedom * wider))
        found.append(_ROOM / 2 * math.sqrt(wider) / part / ratio ** ((freedom + 1) / 2))
    # One look at normal noise shows as much more often than that where little is shown.
    return max(min(found), _NORMAL.cdf(-t))


def _limit(level: float, spread: float, size: float, freedom: int) -> float:
    wider = 1 + spread * size
    ratio = (_ROOM / (2 * level) * math.sqrt(wider)) ** (2 / (freedom + 1))
    return math.sqrt(freedom * (ratio - 1) / (1 - ratio / wider)) if ratio < wider else math.inf
