"""Where two runs depart: to the last digit, else by a change test on the difference of their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.diagnostics.robust import change_sigma, median

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of a metric by step, in the order of steps, of which each is there once."""

    steps: Steps = field(default_factory=lambda: np.empty(0, np.int64))
    values: Values = field(default_factory=lambda: np.empty(0, np.float64))

    def then(self, steps: Sequence[int], values: Sequence[float], offset: int = 0) -> Curve:
        """Return it with these, whose steps begin at `offset`; of a step that comes twice the last value counts."""
        at, found = np.asarray(steps, np.int64), np.asarray(values, np.float64)
        at = at + offset if offset else at
        if len(self.steps):
            at, found = np.concatenate([self.steps, at]), np.concatenate([self.values, found])
        if bool((at[1:] > at[:-1]).all()):
            return Curve(at, found)
        order, places = np.unique(at[::-1], return_index=True)
        return Curve(order, found[::-1][places])

    def at(self, step: int) -> float | None:
        """Return the value of a step, or None."""
        place = int(np.searchsorted(self.steps, step))
        there = place < len(self.steps) and self.steps[place] == step
        return float(self.values[place]) if there else None

    def before(self, step: float) -> Curve:
        """Return the part before a step."""
        place = int(np.searchsorted(self.steps, step))
        return Curve(self.steps[:place], self.values[:place])


def shared(a: Curve, b: Curve) -> tuple[Steps, Values, Values]:
    """Return the steps that both have, and the values of each."""
    if np.array_equal(a.steps, b.steps):
        return a.steps, a.values, b.values
    steps, one, two = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    return steps, a.values[one], b.values[two]


def equal(x: Values, y: Values) -> npt.NDArray[np.bool_]:
    """Return where both are the same, to the last digit."""
    found: npt.NDArray[np.bool_] = (x == y) | (np.isnan(x) & np.isnan(y))
    return found


_LARGE_AFTER: Final = 4
"""Records that are equal to the last digit before a large difference counts as the first one."""
_MANY: Final = 12
"""Equal records after which a difference of the size of rounding counts as the first one, if they depart at all."""
_AT_ONCE: Final = 2
"""Records from the first digit that differs to a change, within which the two are one."""
ROUNDING: Final = {False: -6.0, True: -3.0}
"""How much of a loss rounding alone changes, as a power of ten; True: in half precision."""
_JUMP: Final = {False: 1.6, True: 1.0}
"""How far, in powers of ten, a difference jumps that is not rounding which grows."""
_WINDOW: Final = 3
_BLOCKS: Final = 8
_FAR, _TWICE_FAR = 6.0, 4.0
"""Standard errors by which the mean of one block differs, or of two neighbouring ones in the same direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What the shared records say. Steps are those that are done, so the first is 1."""

    steps: Steps = field(default_factory=lambda: np.empty(0, np.int64))
    """At which both have a record."""
    how: Literal["bits", "jump", "level", "growth"] | None = None
    """What shows that they differ; None if nothing does."""
    metric: str = ""
    after: int = 0
    """The last shared step at which they do not differ yet; 0 if there is none."""
    at: int | None = None
    """The first shared step at which they differ."""
    first_digit: int | None = None
    """The first shared step at which any digit differs; None if all are equal."""
    size: float = 0.0
    """By how much of its value the metric differs at the departure, or at most where they do not depart."""
    before: float = 0.0
    """By how much it differed before."""
    noise: float = 0.0
    """How much of its value the metric changes from one record to the next in both runs."""
    few_digits: bool = False
    """Whether the log has rounded the values, so that equal digits say less."""
    half: bool = False
    """Whether both train in half precision, where rounding is coarser."""

    @property
    def beyond_noise(self) -> bool:
        """Whether no noise does this: they are alike for some records and then are not, or a value is not finite."""
        alike = int(np.sum(self.steps <= self.after))
        return self.size == 1.0 or (self.how in ("bits", "jump") and alike >= _LARGE_AFTER)


def find_departure(a: Mapping[str, Curve], b: Mapping[str, Curve], *, half: bool) -> Departure:
    """Compare the metrics that both have at the steps that both have; the first metric counts most."""
    both = {name: shared(a[name], b[name]) for name in a if name in b}
    steps = np.empty(0, np.int64)
    for at, _, _ in both.values():
        steps = steps if np.array_equal(at, steps) else np.union1d(at, steps) if len(steps) else at
    some = [value for name in both for value in a[name].values[:50].tolist() if math.isfinite(value)]
    few = all(float(f"{value:.5g}") == value for value in some)
    found = Departure(steps=steps, few_digits=few, half=half)
    apart = {name: np.flatnonzero(~equal(x, y)) for name, (_, x, y) in both.items()}
    differing = {name: int(both[name][0][places[0]]) for name, places in apart.items() if len(places)}
    if not differing:
        return found
    first = min(differing.values())
    metric = next(name for name, step in differing.items() if step == first)
    place = int(np.searchsorted(steps, first))
    size = _ratio(a[metric].at(first) or 0.0, b[metric].at(first) or 0.0)
    found = replace(found, first_digit=first, metric=metric, size=size)
    exact = replace(found, how="bits", after=int(steps[place - 1]) if place else 0, at=first)
    above = math.log10(size) - ROUNDING[half]
    if few or (place >= _LARGE_AFTER and above >= 1):
        return exact
    tests = [
        _change(replace(found, metric=name), at.tolist(), x.tolist(), y.tolist())
        for name, (at, x, y) in both.items()
        if name in differing
    ]
    departed = [test for test in tests if test.at is not None]
    if not departed:
        # Rounding begins small; a setting that acts on each update a little begins above it, and grows as steadily.
        _, x, y = both[metric]
        begin = median([_ratio(x[at], y[at]) for at in apart[metric][:_WINDOW]])
        return tests[0] if begin <= 10 ** ROUNDING[half] else replace(exact, how="growth")
    earliest = min(departed, key=lambda test: test.at or 0)
    # Without rounding before it, or after many equal records, a change began at the first digit that differs.
    between = int(np.sum((steps >= first) & (steps < (earliest.at or 0))))
    # What differs from the first record on by no more than rounding does is no change.
    is_at_once = between <= max(_AT_ONCE, place // 2) and (place > 0 or above > 0)
    is_exact = is_at_once or (place >= _MANY and above >= -0.5)
    return exact if is_exact else earliest


def _change(found: Departure, steps: Sequence[int], one: Sequence[float], two: Sequence[float]) -> Departure:
    """Return where the difference of one metric jumps, or its level departs from zero, in either direction."""
    ratios = [_ratio(x, y) for x, y in zip(one, two, strict=True)]
    level = median([abs(x) for x in one if math.isfinite(x)] or [0.0])
    noise = math.hypot(*(change_sigma(filter(math.isfinite, curve)) for curve in (one, two)))
    found = replace(found, size=max(ratios), noise=noise / level if level else 0.0)
    floor, least = ROUNDING[found.half], _JUMP[found.half]
    logs = [max(floor, math.log10(ratio) if ratio else floor) for ratio in ratios]
    how: Literal["jump", "level"] | None = None
    until = 0
    for at in _risen(logs, floor, least):
        before = [*[floor] * (2 * _WINDOW - at), *logs[max(0, at - 2 * _WINDOW) : at]]
        near, far = median(before[-_WINDOW:]), median(before[:_WINDOW])
        here, later = (
            median(logs[at : at + _WINDOW]),
            median(logs[at + _WINDOW : at + 2 * _WINDOW] or logs[-1:]),
        )
        # Rounding that grows does so at a steady pace: only what is above that pace is a jump.
        if here - near - max(0.0, near - far, later - here) >= least and logs[at] - near >= 0.5 * least:
            how, found = "jump", replace(found, before=10**near)
            until = next(up for up in range(at, len(logs)) if logs[up] - near >= 0.75 * (here - near))
            break
    else:
        block = _level(one, two)
        if block is None:
            return found
        how, at, until = "level", block, block + len(one) // _BLOCKS - 1
    size = median(ratios[at : at + _WINDOW])
    return replace(found, how=how, after=steps[at - 1] if at else 0, at=steps[until], size=size)


def _risen(logs: Sequence[float], floor: float, least: float) -> Sequence[int]:
    """Return the places where the next values may be so far above those before: only these are looked at."""
    places = range(len(logs) - min(_WINDOW, len(logs)) + 1)
    if len(logs) < 4 * _WINDOW:
        return places
    padded = np.concatenate([np.full(_WINDOW, floor), logs])
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=1)
    found: list[int] = np.flatnonzero(medians[_WINDOW:] - medians[:-_WINDOW] >= least).tolist()
    return found


def _level(one: Sequence[float], two: Sequence[float]) -> int | None:
    """Return where the block begins in which the means differ by more than the noise of both."""
    size = len(one) // _BLOCKS
    last = 0.0
    for at in range(0, size * _BLOCKS, size) if size >= _WINDOW else ():
        x, y = one[at : at + size], two[at : at + size]
        if not all(map(math.isfinite, (*x, *y))):
            return at
        error = math.hypot(change_sigma(x), change_sigma(y)) / math.sqrt(size)
        score = (sum(x) - sum(y)) / size / error if error else 0.0
        if abs(score) >= _FAR:
            return at
        if min(abs(score), abs(last)) >= _TWICE_FAR and score * last > 0:
            return at - size
        last = score
    return None


def _ratio(x: float, y: float) -> float:
    """Return by how much of its size a value differs; 1 where one of them is not finite."""
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0
    if not (math.isfinite(x) and math.isfinite(y)):
        return 1.0
    return min(1.0, abs(x - y) / max(abs(x), abs(y)))
