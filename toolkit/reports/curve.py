"""A curve of logged values, thinned so that a report stays small: extremes, NaN and infinity are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

STEP: Final = "step"
SECONDS: Final = "seconds"
"""The x axis of values that were logged without a step: seconds since the run's first record."""

_MAX_STRETCHES: Final = 400


class Point(NamedTuple):
    """A logged value; `y` may be NaN or infinite."""

    x: float
    y: float


class Stretch(NamedTuple):
    """Values in a row that are NaN or infinite."""

    first: float
    last: float
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric of one run. Every point was logged as it is here."""

    metric: str
    run: str = ""
    event: str = "step"
    """The kind of record that it is from: step, eval, epoch or system."""
    axis: str = STEP
    parts: tuple[tuple[Point, ...], ...] = ()
    """Points in the order of the file; a new part begins where the step goes back, as after a resume."""
    records: int = 0
    """How many values were logged."""
    not_finite: int = 0
    stretches: tuple[Stretch, ...] = ()
    last: float = math.nan
    low: Point | None = None
    high: Point | None = None
    """The lowest and the highest finite value."""

    @property
    def drawn(self) -> int:
        """How many points there are here."""
        return sum(map(len, self.parts))

    def best(self, direction: str | None) -> Point | None:
        """Return the best finite value; None if neither direction is better."""
        return None if direction is None else self.low if direction == "min" else self.high

    def within(self, start: float, end: float) -> Curve:
        """Return the points in a range of x, with the counts of the whole curve."""
        parts = tuple(tuple(point for point in part if start <= point.x <= end) for part in self.parts)
        return Curve(
            metric=self.metric,
            run=self.run,
            event=self.event,
            axis=self.axis,
            parts=tuple(part for part in parts if part),
            records=self.records,
            not_finite=self.not_finite,
            stretches=tuple(one for one in self.stretches if one.last >= start and one.first <= end),
            last=self.last,
            low=self.low,
            high=self.high,
        )


class CurveBuilder:
    """Takes the values of one metric in order and keeps first, lowest, highest and last of each bucket.

    Buckets double in size when there are too many, so memory use does not depend on the length of the run.
    """

    def __init__(
        self, metric: str, *, axis: str = STEP, run: str = "", event: str = "step", points: int = 2_000
    ) -> None:
        self._metric = metric
        self._event = event
        self._run = run
        self._axis = axis
        # Up to twice as many buckets, of up to four points each.
        self._most = max(2, points // 8)
        self._size = 1
        self._buckets: list[list[tuple[int, int, Point]]] = []
        """Of each bucket: number, part and point of what is kept."""
        self._in_last = 0
        self._records = self._not_finite = self._part = 0
        self._previous = -math.inf
        self._last = math.nan
        self._low: Point | None = None
        self._high: Point | None = None
        self._stretches: list[Stretch] = []
        self._was_odd = False

    def take(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Add values in the order in which they were logged."""
        at = 0
        while at < len(ys):
            room = self._size - self._in_last if self._buckets and self._in_last < self._size else self._size
            until = min(len(ys), at + room)
            self._take_slice(xs[at:until], ys[at:until])
            at = until
            if len(self._buckets) > 2 * self._most:
                self._merge()

    def curve(self) -> Curve:
        """Return what was kept."""
        parts: list[list[Point]] = []
        before = -1
        for bucket in self._buckets:
            for _, part, point in bucket:
                if part != before:
                    parts.append([])
                    before = part
                parts[-1].append(point)
        return Curve(
            metric=self._metric,
            run=self._run,
            event=self._event,
            axis=self._axis,
            parts=tuple(map(tuple, parts)),
            records=self._records,
            not_finite=self._not_finite,
            stretches=tuple(self._stretches),
            last=self._last,
            low=self._low,
            high=self._high,
        )

    def _take_slice(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        first, goes_on = self._records, xs[0] >= self._previous
        # A sum is not finite if one of its parts is not: most slices need no look at each value.
        is_plain = math.isfinite(sum(ys)) and goes_on and (self._size == 1 or _rises(xs))
        if is_plain:
            places: Iterable[int] = range(len(ys))
            if len(ys) > 4:
                places = sorted({0, ys.index(min(ys)), ys.index(max(ys)), len(ys) - 1})
            kept = [(first + place, self._part, Point(xs[place], ys[place])) for place in places]
            self._was_odd = False
        else:
            kept = self._kept_of(first, xs, ys)
        self._previous = xs[-1]
        self._records += len(ys)
        self._last = ys[-1]
        for _, _, point in kept:
            if math.isfinite(point.y):
                if self._low is None or point.y < self._low.y:
                    self._low = point
                if self._high is None or point.y > self._high.y:
                    self._high = point
        if self._buckets and self._in_last < self._size:
            self._buckets[-1] = _thin([*self._buckets[-1], *kept])
            self._in_last += len(ys)
        else:
            self._buckets.append(kept)
            self._in_last = len(ys)

    def _kept_of(self, first: int, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[int, int, Point]]:
        found = []
        previous = self._previous
        for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
            if x < previous:
                self._part += 1
                self._was_odd = False
            previous = x
            if math.isfinite(y):
                self._was_odd = False
            else:
                self._add_odd(x)
            found.append((first + place, self._part, Point(x, y)))
        return _thin(found)

    def _add_odd(self, x: float) -> None:
        self._not_finite += 1
        if self._was_odd and self._stretches:
            before = self._stretches[-1]
            self._stretches[-1] = Stretch(before.first, x, before.values + 1)
        else:
            self._stretches.append(Stretch(x, x, 1))
            if len(self._stretches) > 2 * _MAX_STRETCHES:
                self._stretches = _joined(self._stretches)
        self._was_odd = True

    def _merge(self) -> None:
        pairs = zip(self._buckets[::2], [*self._buckets[1::2], []], strict=False)
        is_alone = len(self._buckets) % 2 == 1
        self._buckets = [_thin([*one, *other]) for one, other in pairs]
        # The last bucket has room again if it was not full, or had no neighbour.
        self._in_last = self._in_last if is_alone else self._size + self._in_last
        self._size *= 2


def _thin(points: list[tuple[int, int, Point]]) -> list[tuple[int, int, Point]]:
    """Return first, lowest, highest and last, of each part and of what is not finite, in order."""
    if len(points) <= 4 and all(math.isfinite(point.y) for _, _, point in points):
        return points
    keep: set[int] = {0, len(points) - 1}
    start = 0
    for at in range(1, len(points) + 1):
        is_over = at == len(points) or points[at][1] != points[start][1]
        is_over = is_over or math.isfinite(points[at][2].y) != math.isfinite(points[start][2].y)
        if is_over:
            keep |= {start, at - 1}
            if math.isfinite(points[start][2].y):
                places = range(start, at)
                keep.add(min(places, key=lambda place: points[place][2].y))
                keep.add(max(places, key=lambda place: points[place][2].y))
            start = at
    if len(keep) > 16:
        # Values that are finite and not by turns: the stretches have the counts.
        finite = [place for place in keep if math.isfinite(points[place][2].y)]
        odd = [place for place in keep if not math.isfinite(points[place][2].y)]
        keep = {0, len(points) - 1, min(odd), max(odd)} if odd else {0, len(points) - 1}
        if finite:
            keep.add(min(finite, key=lambda place: points[place][2].y))
            keep.add(max(finite, key=lambda place: points[place][2].y))
    return [points[place] for place in sorted(keep)]


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    """Return half as many, each of two neighbours."""
    found = []
    for at in range(0, len(stretches), 2):
        pair = stretches[at : at + 2]
        first, last = min(one.first for one in pair), max(one.last for one in pair)
        found.append(Stretch(first, last, sum(one.values for one in pair)))
    return found


def _rises(xs: Iterable[float]) -> bool:
    before = -math.inf
    for x in xs:
        if x < before:
            return False
        before = x
    return True
