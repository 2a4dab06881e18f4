"""Robust levels and spreads over a sliding window."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at

MAD_TO_SIGMA: Final = 1.4826
"""The median distance from the median of a normal distribution, times this, is its standard deviation."""
IQR_TO_SIGMA: Final = 1.0 / 1.349


CHANGE_TO_SIGMA: Final = MAD_TO_SIGMA / math.sqrt(2.0)
"""The same from one value to the next: their difference has twice the variance."""


class Window:
    """The last `size` values, in their order and in order of size."""

    __slots__ = ("newest", "ordered", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.newest: deque[float] = deque(maxlen=size)
        """The values, oldest first."""
        self.ordered: list[float] = []
        """The same values, lowest first."""

    def __len__(self) -> int:
        return len(self.ordered)

    def push(self, value: float) -> None:
        """Add the finite `value`, and drop the oldest if the window is full."""
        newest, ordered = self.newest, self.ordered
        if len(newest) == self.size:
            del ordered[bisect_left(ordered, newest[0])]
        newest.append(value)
        insort(ordered, value)

    def clear(self) -> None:
        """Forget everything."""
        self.newest.clear()
        self.ordered.clear()

    @property
    def median(self) -> float:
        """The middle value; there is at least one."""
        ordered = self.ordered
        middle = len(ordered) >> 1
        if len(ordered) & 1:
            return ordered[middle]
        return 0.5 * (ordered[middle - 1] + ordered[middle])

    def quantile(self, share: float) -> float:
        """The value that `share` of the values do not exceed; there is at least one."""
        ordered = self.ordered
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def sigma(self) -> float:
        """The standard deviation, from the distance between the quartiles."""
        ordered = self.ordered
        quarter = len(ordered) >> 2
        return (ordered[-1 - quarter] - ordered[quarter]) * IQR_TO_SIGMA

    def values(self) -> list[float]:
        """The values, oldest first."""
        return list(self.newest)


def median(values: Sequence[float]) -> float:
    """Return the middle of `values`, of which there is at least one."""
    return _middle(sorted(values))


def _middle(ordered: list[float]) -> float:
    middle = len(ordered) >> 1
    return ordered[middle] if len(ordered) & 1 else 0.5 * (ordered[middle - 1] + ordered[middle])


def change_sigma(values: Iterable[float]) -> float:
    """Return the standard deviation of `values` from one to the next: a slow trend does not count as noise."""
    in_order = list(values)
    changes = [abs(later - earlier) for earlier, later in pairwise(in_order)]
    return CHANGE_TO_SIGMA * median(changes) if changes else 0.0


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the Theil-Sen slope of equally spaced `values`, and Mann-Kendall's z for its sign (normal if no trend)."""
    count = len(values)
    if count < 2:
        return 0.0, 0.0
    slopes = sorted(
        (values[late] - values[early]) / (late - early) for late in range(count) for early in range(late)
    )
    signs = len(slopes) - bisect_right(slopes, 0.0) - bisect_left(slopes, 0.0)
    # The variance under ties is smaller; a constant curve has no sign to judge, and its z is 0 either way.
    return _middle(slopes), signs / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


def start_of_streak(flags: Sequence[bool]) -> int:
    """Return where the streak up to the end begins in which four of five `flags` are set."""
    first, up = len(flags) - 1, 0
    for place in range(len(flags) - 1, -1, -1):
        up += flags[place]
        if flags[place] and up >= 0.8 * (len(flags) - place):
            first = place
    return first


_FIRST_LOSSES = 3
_AROUND_ZERO = 3.0


class LossAxis:
    """A logarithmic axis while losses are positive; linear from the first that is not."""

    __slots__ = ("_first", "_spread", "bottom", "has_changed", "is_plain")

    def __init__(self) -> None:
        self.is_plain = False
        """Whether it is linear, so that ratios are meaningless."""
        self._first: list[float] = []
        self.bottom = 0.0
        """Losses below it are equal; 0 while it is not known, and on a linear axis."""
        self._spread = Window(at.LEVEL_WINDOW)
        self.has_changed = False
        """Whether the last loss switched to the linear axis."""

    def place(self, loss: float) -> float:
        """Return the position of the finite `loss`."""
        if loss > self.bottom > 0.0:
            return math.log(loss)
        return self._place_with_care(loss)

    def value(self, y: float) -> float:
        """Return the loss at position `y`."""
        return y if self.is_plain else math.exp(min(y, 700.0))

    def gap(self, level: float, share: float) -> float:
        """Return the distance that a rise by `share` of its value makes at `level`."""
        if not self.is_plain:
            return math.log1p(share)
        # A loss that changes its sign has no ratios: use its spread.
        return share * max(abs(level), 3.0 * self._spread.sigma)

    def is_around_zero(self, level: float) -> bool:
        """Return whether losses at `level` have either sign: single ones are then often many times the usual ones."""
        return self.is_plain and abs(level) < _AROUND_ZERO * self._spread.sigma

    @property
    def spread(self) -> float:
        """The spread of the values of a loss that changes its sign, else 0."""
        return self._spread.sigma if self.is_plain else 0.0

    def floor(self, level: float) -> float:
        """Return the smallest noise to assume: logs are rounded, and a loss that repeats itself is not exact."""
        return max(self.gap(level, at.LEAST_NOISE), 1e-12)

    def _place_with_care(self, loss: float) -> float:
        self.has_changed = False
        if self.is_plain:
            self._spread.push(loss)
            return loss
        if loss < 0.0 or (loss == 0.0 and not self.bottom):
            self.is_plain = self.has_changed = True
            # `place` uses its shortcut only for losses above the bottom, and now there is no bottom.
            self.bottom = 0.0
            self._spread.push(loss)
            return loss
        if not self.bottom:
            self._first.append(loss)
            if len(self._first) == _FIRST_LOSSES:
                self.bottom = at.NOTHING_LEFT * sorted(self._first)[1]
        return math.log(max(loss, self.bottom, 1e-300))


def paces(points: Sequence[tuple[float, float]], longest: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds a step took: without the `longest` part, and in the later half of `points`.

    A point has seconds and steps, as has `longest`. The first part is left out: it may have waited for a compilation.
    """
    (first_s, first), (half_s, half), (last_s, last) = points[1], points[len(points) // 2], points[-1]
    whole = (last_s - first_s - longest[0]) / (last - first - longest[1])
    return whole, (last_s - half_s) / (last - half)
