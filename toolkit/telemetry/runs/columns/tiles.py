"""A curve at the level of detail that is asked for: as tiles for a chart, or as points.

A tile has minimum, maximum, mean and weight of buckets of 4, 16, 64 ... consecutive points.

The levels are built from the columns when they are first asked for and kept in memory, not on disk: a million points of
a mapped column take about 10 ms of processor time, and the columns are read anyway.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.runs.columns.curve_points import CurvePoints, Places, Slice
from toolkit.telemetry.runs.columns.run_columns import MetricColumn, RunColumns
from toolkit.telemetry.runs.columns.smoothing import may_be_smoothed
from toolkit.telemetry.runs.columns.thinning import first_lowest_highest_last, level_for
from toolkit.telemetry.runs.curve_tiles import (
    FACTOR,
    FIT,
    METRIC_AXIS,
    TILE,
    Block,
    CurveTiles,
    Piece,
    TileQuery,
)
from toolkit.telemetry.runs.store import CurveSegment, Floats, Series

_BASE: Final = 3
"""The finest level that is kept; a tile of a finer one is made from at most 512 * 16 points."""
_AT_ONCE: Final = 1 << 16
"""Points turned into buckets at once: they fit into the processor's cache."""
_MOST_BYTES: Final = 32_000_000
"""The levels of one run; the ones used longest ago are built again when needed."""
_MOST_NEW: Final = 20_000
"""More new points than these are answered as the whole curve."""
_MOST_PIECES: Final = 1_000
_LARGEST_SINGLE: Final = float(np.finfo(np.float32).max)
_SMALLEST_SINGLE: Final = float(np.finfo(np.float32).tiny)
_FINE: Final = 2.0**-12
"""A spread below this fraction of the largest value is not drawn well with the 24 bits of a single float."""


_Buckets: TypeAlias = npt.NDArray[np.float64]
"""Rows: minimum, maximum, mean and weight of the finite values, and how many are not finite; a column for each bucket.

One without a finite value has inf, -inf, 0 and the weight 0."""
_EMPTY: Final = np.array([[np.inf], [-np.inf], [0.0], [0.0], [0.0]])


@dataclass(slots=True)
class _Levels:
    """The kept levels of one piece, from `_BASE` up to the one with a single bucket; the last bucket may be growing."""

    points: int = 0
    levels: list[_Buckets] = field(default_factory=list)


@dataclass(slots=True)
class _Kept:
    """What is kept about one column."""

    column: MetricColumn
    number: int
    pieces: dict[int, _Levels] = field(default_factory=dict)
    smooth: tuple[int, bool] = (0, False)
    """How many points there were, and whether they may be smoothed."""

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for piece in self.pieces.values() for level in piece.levels)


class CurveBuilder:
    """Returns curves from one run's columns; the caller holds the lock of the columns."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._points = CurvePoints(columns)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._numbers = count()
        self._token = secrets.token_hex(4)

    @property
    def nbytes(self) -> int:
        """Memory used by the levels."""
        return sum(kept.nbytes for kept in self._kept.values())

    def tiles(
        self,
        name: str,
        metric: MetricColumn | None,
        axis: str,
        along: MetricColumn | None,
        query: TileQuery,
        planned: tuple[int | None, bool],
    ) -> CurveTiles:
        """Return what `query` asks for of the metric `name`.

        `along` is the metric that is the x axis, and `planned` are the last step and whether steps begin at 0.
        """
        if metric is None:
            return CurveTiles(version=f"{self._token}.none")
        kept = self._keep(name, metric)
        place, suffix, problem = self._place(axis, along, planned)
        line, superseded = self._points.slices(metric)
        smooth = self._may_be_smoothed(name, kept, line)
        parts = sorted([*line, *superseded], key=lambda part: part.start)
        if len(parts) > _MOST_PIECES:
            problem = f"the session changes {len(parts):,} times: the last {_MOST_PIECES:,} parts are shown"
            suffix += f".{len(parts)}"
            parts = parts[-_MOST_PIECES:]
        version = f"{self._token}.{kept.number}.{self._columns.line_version}{suffix}"
        old = {part.start for part in superseded}
        ends = [
            self._points.x_of(metric, place, part, np.array([part.start, part.stop - 1])).tolist()
            for part in parts
        ]
        blocks, has_bad = self._blocks(kept, place, parts, query, is_known=query.version == version)
        shown = {part.start for part in parts}
        return CurveTiles(
            version=version,
            pieces=tuple(
                Piece(
                    session=part.segment.session,
                    is_superseded=part.start in old,
                    points=len(part),
                    first_x=first,
                    last_x=last,
                )
                for part, (first, last) in zip(parts, ends, strict=True)
            ),
            smooth=smooth,
            low=metric.low if metric.low <= metric.high else None,
            high=metric.high if metric.low <= metric.high else None,
            non_finite=self._points.non_finite(metric, place, parts) if has_bad else None,
            ranges=self._points.ranges(metric, place, [part for part in line if part.start in shown])
            if has_bad
            else None,
            blocks=blocks,
            problem=problem,
        )

    def series(
        self,
        name: str,
        metric: MetricColumn | None,
        axis: str,
        along: MetricColumn | None,
        buckets: int,
        planned: tuple[int | None, bool],
        window: tuple[float, float] | None,
    ) -> Series:
        """Return the points to draw of the metric `name`; of each bucket there are up to four.

        With a `window` there is one more point on either side, so that the line reaches the edge.
        """
        if metric is None:
            return Series(metric=name, axis=axis, segments=())
        place, _, problem = self._place(axis, along, planned)
        line, superseded = self._points.slices(metric)
        bad = [*line, *superseded]
        if window is not None:
            bad = self._points.inside(metric, place, bad, window)
            line, superseded = (_with_edges(parts, bad) for parts in (line, superseded))
        level = level_for(map(len, (*line, *superseded)), buckets)
        drawn = tuple(self._segment(metric, place, part, level) for part in line)
        return Series(
            metric=name,
            axis=axis,
            segments=drawn,
            superseded=tuple(self._segment(metric, place, part, level) for part in superseded),
            non_finite=self._points.non_finite(metric, place, bad),
            drawn=sum(len(segment.x) for segment in drawn),
            total=sum(map(len, line)),
            problem=problem,
        )

    def _segment(self, metric: MetricColumn, place: Places, part: Slice, level: int) -> CurveSegment:
        values = metric.values.values
        chosen = first_lowest_highest_last(values[part.start : part.stop], level) + part.start
        return CurveSegment(
            x=self._points.x_of(metric, place, part, chosen),
            y=values[chosen],
            session=part.segment.session,
            time=self._points.x_of(metric, "time", part, chosen),
        )

    def _keep(self, name: str, metric: MetricColumn) -> _Kept:
        kept = self._kept.get(name)
        if kept is None or kept.column is not metric:
            kept = self._kept[name] = _Kept(metric, next(self._numbers))
        self._kept.move_to_end(name)
        while len(self._kept) > 1 and self.nbytes > _MOST_BYTES:
            self._kept.popitem(last=False)
        return kept

    def _may_be_smoothed(self, name: str, kept: _Kept, line: list[Slice]) -> bool:
        values = kept.column.values.values
        # Looked at again once there are a tenth more: a live curve is asked for every few seconds.
        if len(values) > 1.1 * kept.smooth[0]:
            found = may_be_smoothed(
                name, kept.column.event, [values[part.start : part.stop] for part in line]
            )
            kept.smooth = (len(values), found)
        return kept.smooth[1]

    # ------------------------------------------------------------ which buckets

    def _blocks(
        self, kept: _Kept, place: Places, parts: list[Slice], query: TileQuery, *, is_known: bool
    ) -> tuple[tuple[Block, ...], bool]:
        """Return the blocks asked for, and whether the places of NaN and infinity belong to the answer."""
        lengths = [*map(len, parts)]
        if is_known and query.tiles is not None:
            found = [
                self._block(kept, place, parts[piece], piece, level, (tile * TILE, (tile + 1) * TILE), query)
                for piece, level, tile in query.tiles
                if piece < len(parts)
            ]
            return tuple(block for block in found if len(block.x)), False
        if is_known and query.after is not None and len(query.after) <= len(parts):
            after = [*query.after, *[0] * (len(parts) - len(query.after))]
            new = [length - known for length, known in zip(lengths, after, strict=True)]
            if min(new, default=0) >= 0 and sum(new) <= _MOST_NEW:
                blocks = [
                    self._block(kept, place, part, piece, 0, (known, length), query)
                    for piece, (part, known, length) in enumerate(zip(parts, after, lengths, strict=True))
                    if length > known
                ]
                return tuple(blocks), any(not np.isfinite(block.values[0]).all() for block in blocks)
        most = FIT if query.tiles is not None or query.after is not None else query.fit
        level = level_for(lengths, most)
        whole = (0, -(-max(lengths, default=0) // FACTOR**level))
        return tuple(
            self._block(kept, place, part, piece, level, whole, query) for piece, part in enumerate(parts)
        ), True

    def _block(
        self,
        kept: _Kept,
        place: Places,
        part: Slice,
        piece: int,
        level: int,
        buckets: tuple[int, int],
        query: TileQuery,
    ) -> Block:
        size = FACTOR**level
        first = buckets[0]
        stop = max(first, min(buckets[1], -(-(len(part)) // size)))
        firsts = part.start + np.arange(first, stop) * size
        metric = kept.column
        values: tuple[npt.NDArray[np.floating], ...]
        bad = None
        if level == 0:
            values = (metric.values.values[part.start + first : part.start + stop].copy(),)
            weight = self._weights(metric, part.start + first, part.start + stop)
        else:
            found = self._buckets(kept, part, level, first, stop)
            values, weight, bad = _drawn(found), found[3], found[4].astype(np.uint32)
        return Block(
            piece=piece,
            level=level,
            first=first,
            x=self._points.x_of(metric, place, part, firsts),
            values=values,
            weight=weight.astype(np.float32),
            bad=bad,
            time=self._points.x_of(metric, "time", part, firsts) if query.times else None,
        )

    def _buckets(self, kept: _Kept, part: Slice, level: int, first: int, stop: int) -> _Buckets:
        if level >= _BASE:
            levels = self._grown(kept, part).levels
            # A level above the last one has the same single bucket.
            return levels[min(level - _BASE, len(levels) - 1)][:, first:stop]
        size = FACTOR**level
        end = min(part.stop, part.start + stop * size)
        return self._of_points(kept.column, min(end, part.start + first * size), end, size)

    def _grown(self, kept: _Kept, part: Slice) -> _Levels:
        """Return the levels of a piece: only the last bucket of each changes when points are added."""
        piece = kept.pieces.setdefault(part.start, _Levels())
        points = len(part)
        if piece.points > points:
            # A later session superseded its end.
            piece = kept.pieces[part.start] = _Levels()
        if piece.points == points:
            return piece
        levels: list[_Buckets] = []
        while not levels or levels[-1].shape[1] > 1:
            size = FACTOR ** (_BASE + len(levels))
            settled = piece.points // size
            before = [level[:, :settled] for level in piece.levels[len(levels) : len(levels) + 1]]
            if levels:
                new = [_level_above(levels[-1][:, FACTOR * settled :])]
            else:
                new = [
                    self._of_points(kept.column, start, min(part.stop, start + _AT_ONCE), size)
                    for start in range(part.start + settled * size, part.stop, _AT_ONCE)
                ]
            levels.append(np.concatenate([*before, *new], axis=1))
        piece.levels, piece.points = levels, points
        return piece

    def _of_points(self, metric: MetricColumn, start: int, stop: int, size: int) -> _Buckets:
        """Return the buckets of `size` points each; the last one may have fewer."""
        missing = -(stop - start) % size
        values = metric.values.values[start:stop]
        weight = self._weights(metric, start, stop)
        if missing:
            values = np.concatenate((values, np.zeros(missing)))
            weight = np.concatenate((weight, np.zeros(missing)))
        finite = np.isfinite(values)
        found = np.empty((5, len(values) // size))
        found[4] = (~finite).reshape(-1, size).sum(axis=1)
        is_there = finite & (weight > 0)
        low = high = values
        if not is_there.all():
            low, high = np.where(is_there, values, np.inf), np.where(is_there, values, -np.inf)
            values, weight = np.where(is_there, values, 0.0), np.where(is_there, weight, 0.0)
        low.reshape(-1, size).min(axis=1, out=found[0])
        high.reshape(-1, size).max(axis=1, out=found[1])
        weight.reshape(-1, size).sum(axis=1, out=found[3])
        with np.errstate(over="ignore", invalid="ignore"):
            (values * weight).reshape(-1, size).sum(axis=1, out=found[2])
            found[2] /= np.maximum(found[3], 1.0)
        for at in np.flatnonzero(~np.isfinite(found[2])).tolist():
            # The sum of large values is infinite, their mean is not.
            part = slice(at * size, (at + 1) * size)
            found[2, at] = (values[part] * (weight[part] / found[3, at])).sum()
        return _with_mean_inside(found)

    def _weights(self, metric: MetricColumn, start: int, stop: int) -> Floats:
        steps = self._points.steps_covered(metric, start, stop - start)
        return np.ones(stop - start) if steps is None else steps

    # ------------------------------------------------------------ where they are drawn

    def _place(
        self, axis: str, along: MetricColumn | None, planned: tuple[int | None, bool]
    ) -> tuple[Places, str, str | None]:
        """Return where points are on the axis, what the version says about it, and a problem."""
        if axis == "progress":
            steps, (total, from_zero) = self._columns.step.values, planned
            last = total or float(np.fmax.reduce(steps, initial=0.0)) + from_zero
            return (lambda _, rows: 100.0 * (steps[rows] + from_zero) / max(last, 1.0)), f".{last}", None
        if axis.startswith(METRIC_AXIS):
            name = axis.removeprefix(METRIC_AXIS)
            if along is None:
                return (
                    (lambda _, rows: np.full(len(rows), np.nan)),
                    ".",
                    f"the run has not logged {name!r}, the x axis",
                )
            return _last_known(along), f".{self._keep(name, along).number}", None
        if axis == "epoch":
            return "epoch", f".{self._points.epochs_version()}", None
        return axis, "", None


def _with_edges(parts: list[Slice], inside: list[Slice]) -> list[Slice]:
    """Return `inside` as far as it is of these parts, with one more point on either side if there is one."""
    return [
        Slice(part.segment, max(part.start, one.start - 1), min(part.stop, one.stop + 1))
        for one in inside
        for part in parts
        if part.start <= one.start < part.stop
    ]


def _last_known(along: MetricColumn) -> Callable[[Slice, npt.NDArray[np.int64]], Floats]:
    def places(part: Slice, rows: npt.NDArray[np.int64]) -> Floats:
        at = np.searchsorted(along.rows.values, rows, side="right") - 1
        found = np.where(at >= 0, along.values.values[np.maximum(at, 0)], np.nan)
        # What an earlier session knew says nothing about this one.
        return np.where(along.rows.values[np.maximum(at, 0)] >= part.segment.start, found, np.nan)

    return places


def _level_above(below: _Buckets) -> _Buckets:
    missing = -below.shape[1] % FACTOR
    if missing:
        # A bucket that is not full yet.
        below = np.concatenate((below, np.repeat(_EMPTY, missing, axis=1)), axis=1)
    parts = below.reshape(5, -1, FACTOR)
    found = np.empty(parts.shape[:2])
    parts[0].min(axis=1, out=found[0])
    parts[1].max(axis=1, out=found[1])
    parts[3:].sum(axis=2, out=found[3:])
    share = parts[3] / np.maximum(found[3], 1.0)[:, None]
    (parts[2] * share).sum(axis=1, out=found[2])
    return _with_mean_inside(found)


def _with_mean_inside(found: _Buckets) -> _Buckets:
    """Return `found`; rounding may have put a mean outside, and infinity times the weight 0 is not a number."""
    found[2] = np.where(found[3] > 0, np.minimum(np.maximum(found[2], found[0]), found[1]), 0.0)
    return found


def _drawn(found: _Buckets) -> tuple[npt.NDArray[np.floating], ...]:
    """Return minimum, maximum and mean, as single floats where these draw the same curve."""
    has = found[3] > 0
    low, high, mean = (np.where(has, row, np.nan) for row in found[:3])
    known = np.abs(found[:3, has])
    known = known[known > 0]
    if len(known):
        largest, smallest = float(known.max()), float(known.min())
        spread = float(found[1, has].max()) / 2 - float(found[0, has].min()) / 2
        if largest > _LARGEST_SINGLE or smallest < _SMALLEST_SINGLE or spread < _FINE * largest / 2:
            return low, high, mean
    return low.astype(np.float32), high.astype(np.float32), mean.astype(np.float32)
