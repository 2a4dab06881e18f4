"""Builds the curve of one metric: window, downsampling, smoothing, and superseded points."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from dashboard.data.growable_array import GrowableArray
from dashboard.data.run_columns import MetricColumn, RunColumns, Segment
from dashboard.data.run_store import CurveSegment, Floats, NonFiniteRun, Series, XAxis
from dashboard.data.thinning import Indices, bucket_size, runs_of, select

_MAX_SELECTIONS: Final = 256
_MAX_SMOOTHED: Final = 6
_MAX_RUNS: Final = 1_000


@dataclass(slots=True)
class _Slice:
    """A range of one metric's points, by index."""

    segment: Segment
    start: int
    stop: int


@dataclass(slots=True)
class _Selection:
    """Which points of a slice are drawn; full buckets are final, so a refresh only handles new points."""

    settled: int
    chosen: Indices


@dataclass(slots=True)
class _Smoothed:
    line_version: int
    values: GrowableArray[np.float64]
    carry: Carry


class SeriesBuilder:
    """Builds curves from one run's columns, and caches what a refresh need not recompute."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._selections: OrderedDict[tuple[str, str, int, int], _Selection] = OrderedDict()
        self._smoothed: OrderedDict[tuple[str, float], _Smoothed] = OrderedDict()
        self._epoch_blocks: tuple[int, Indices, Indices] | None = None

    def build(
        self, name: str, axis: XAxis, window: tuple[float, float] | None, buckets: int, smoothing: float
    ) -> Series:
        """Return the curve of the metric `name`; an empty one if it does not exist."""
        metric = self._columns.metrics.get(name)
        if metric is None:
            return Series(metric=name, axis=axis, segments=())
        line, superseded = self._slices(metric)
        averages = self._averages(name, metric, line, smoothing) if smoothing > 0 else None
        shown = line
        if window is not None:
            shown = list(self._inside(metric, line, axis, window))
            superseded = list(self._inside(metric, superseded, axis, window))
        total = sum(part.stop - part.start for part in shown)
        size = bucket_size(total, buckets)
        values = metric.values.values
        segments, drawn = [], 0
        for part in shown:
            chosen = self._select(name, "", values, part, size, keep=window is None)
            drawn += len(chosen)
            segments.append(self._curve_segment(metric, axis, part, chosen, values))
        superseded_total = sum(part.stop - part.start for part in superseded)
        superseded_size = bucket_size(superseded_total, max(1, buckets // 3))
        superseded_segments = [
            self._curve_segment(
                metric,
                axis,
                part,
                select(values[part.start : part.stop], part.start, superseded_size) + part.start,
                values,
            )
            for part in superseded
        ]
        smoothed = []
        if averages is not None:
            positions = self._positions(line)
            for part in shown:
                offset = positions[id(part.segment)]
                chosen = self._select_smooth(
                    name,
                    smoothing,
                    averages,
                    part,
                    offset,
                    bucket_size(total, max(1, buckets // 2)),
                    keep=window is None,
                )
                smoothed.append(self._curve_segment(metric, axis, part, chosen, averages, shift=offset))
        finite = [segment.y[np.isfinite(segment.y)] for segment in segments]
        numbers = np.concatenate(finite) if finite else np.empty(0)
        return Series(
            metric=name,
            axis=axis,
            segments=tuple(segment for segment in segments if len(segment.x)),
            superseded=tuple(segment for segment in superseded_segments if len(segment.x)),
            smooth=tuple(segment for segment in smoothed if len(segment.x)),
            non_finite=self._non_finite(metric, axis, [*shown, *superseded], window),
            drawn=drawn,
            total=total,
            low=float(numbers.min()) if len(numbers) else None,
            high=float(numbers.max()) if len(numbers) else None,
            percentiles=tuple(np.percentile(numbers, (1, 99)).tolist()) if len(numbers) else None,
        )

    # ------------------------------------------------------------ which points

    def _slices(self, metric: MetricColumn) -> tuple[list[_Slice], list[_Slice]]:
        rows = metric.rows.values
        line, superseded = [], []
        for segment, counts_until in self._columns.counting():
            start, until, end = np.searchsorted(rows, (segment.start, counts_until, segment.end)).tolist()
            if until > start:
                line.append(_Slice(segment, start, until))
            if end > until:
                superseded.append(_Slice(segment, until, end))
        return line, superseded

    def _inside(
        self, metric: MetricColumn, parts: list[_Slice], axis: XAxis, window: tuple[float, float]
    ) -> Iterator[_Slice]:
        low, high = min(window), max(window)
        for part in parts:
            x = self._x(metric, axis, part, np.arange(part.start, part.stop))
            inside = np.flatnonzero((x >= low) & (x <= high))
            if len(inside):
                # One more point on either side, so that the line reaches the edge.
                first, last = max(0, int(inside[0]) - 1), min(len(x) - 1, int(inside[-1]) + 1)
                yield _Slice(part.segment, part.start + first, part.start + last + 1)

    def _select(
        self, name: str, what: str, values: Floats, part: _Slice, size: int, *, keep: bool
    ) -> Indices:
        if not keep or size <= 4:
            return select(values[part.start : part.stop], part.start, size) + part.start
        key = (name, what, part.start, size)
        known = self._selections.get(key)
        if known is None or known.settled > part.stop:
            known = _Selection(part.start, np.empty(0, dtype=np.int64))
        settled = max(known.settled, part.stop - part.stop % size)
        if settled > known.settled:
            new = select(values[known.settled : settled], known.settled, size) + known.settled
            known = _Selection(settled, np.concatenate((known.chosen, new)))
        self._selections[key] = known
        self._selections.move_to_end(key)
        while len(self._selections) > _MAX_SELECTIONS:
            self._selections.popitem(last=False)
        rest = select(values[settled : part.stop], settled, size) + settled
        return np.concatenate((known.chosen, rest))

    def _select_smooth(
        self, name: str, past: float, averages: Floats, part: _Slice, offset: int, size: int, *, keep: bool
    ) -> Indices:
        shifted = _Slice(part.segment, part.start - offset, part.stop - offset)
        what = f"~{past}~{self._columns.line_version}"
        return self._select(name, what, averages, shifted, size, keep=keep) + offset

    # ------------------------------------------------------------ smoothing

    @staticmethod
    def _positions(line: list[_Slice]) -> dict[int, int]:
        """Return, by segment, the difference between a point's index and its index among the points that count."""
        positions, before = {}, 0
        for part in line:
            positions[id(part.segment)] = part.start - before
            before += part.stop - part.start
        return positions

    def _averages(self, name: str, metric: MetricColumn, line: list[_Slice], past: float) -> Floats:
        key = (name, past)
        known = self._smoothed.get(key)
        total = sum(part.stop - part.start for part in line)
        if known is None or known.line_version != self._columns.line_version or len(known.values) > total:
            known = _Smoothed(self._columns.line_version, GrowableArray(np.empty(0)), Carry())
        done, values, before = len(known.values), metric.values.values, 0
        for part in line:
            length = part.stop - part.start
            begin = part.start + max(0, min(length, done - before))
            if begin < part.stop:
                averages, known.carry = smooth(values[begin : part.stop], past, known.carry)
                known.values.append(averages)
            before += length
        self._smoothed[key] = known
        self._smoothed.move_to_end(key)
        while len(self._smoothed) > _MAX_SMOOTHED:
            self._smoothed.popitem(last=False)
        return known.values.values

    # ------------------------------------------------------------ where they are drawn

    def _curve_segment(
        self,
        metric: MetricColumn,
        axis: XAxis,
        part: _Slice,
        chosen: Indices,
        values: Floats,
        *,
        shift: int = 0,
    ) -> CurveSegment:
        return CurveSegment(
            x=self._x(metric, axis, part, chosen), y=values[chosen - shift], session=part.segment.session
        )

    def _x(self, metric: MetricColumn, axis: XAxis, part: _Slice, chosen: Indices) -> Floats:
        rows = metric.rows.values[chosen]
        if axis == "step":
            return self._columns.step.values[rows]
        if axis == "time":
            return self._columns.time.values[rows]
        if axis == "elapsed":
            return self._columns.elapsed.values[rows] + self._elapsed_before(part.segment)
        return self._epochs(rows.astype(np.int64))

    def _elapsed_before(self, segment: Segment) -> float:
        """Return how long earlier sessions ran, without the time between sessions."""
        before = 0.0
        elapsed = self._columns.elapsed.values
        for earlier, counts_until in self._columns.counting():
            if earlier.start >= segment.start:
                break
            if counts_until > earlier.start:
                last = float(elapsed[counts_until - 1])
                before += last if np.isfinite(last) else 0.0
        return before

    def _epochs(self, rows: Indices) -> Floats:
        chosen = self._columns.epoch.values[rows]
        edges, lengths = self._whole_epochs()
        if not len(lengths):
            return chosen
        block = np.searchsorted(edges, rows, side="right") - 1
        return np.asarray(chosen + (rows - edges[block]) / np.maximum(lengths[block], 1))

    def _whole_epochs(self) -> tuple[Indices, Indices]:
        """Return where each epoch's rows start and how many there are; nothing if epochs are fractional.

        With integer epochs all steps of an epoch would have the same x: they are spread evenly over the epoch. This is
        computed for the whole run, so that a point's x does not depend on the window.
        """
        epochs = self._columns.epoch.values
        if self._epoch_blocks is None or self._epoch_blocks[0] != len(epochs):
            edges = lengths = np.empty(0, dtype=np.int64)
            known = epochs[np.isfinite(epochs)]
            if np.all(known % 1 == 0):
                changes = np.flatnonzero(np.diff(np.nan_to_num(epochs, nan=-1.0))) + 1
                edges = np.concatenate(([0], changes, [len(epochs)]))
                lengths = np.diff(edges)
                if len(lengths) > 1:
                    lengths[-1] = max(lengths[-1], int(np.median(lengths[:-1])))
            self._epoch_blocks = (len(epochs), edges, lengths)
        return self._epoch_blocks[1], self._epoch_blocks[2]

    # ------------------------------------------------------------ NaN and infinity

    def _non_finite(
        self, metric: MetricColumn, axis: XAxis, shown: list[_Slice], window: tuple[float, float] | None
    ) -> tuple[NonFiniteRun, ...]:
        if not metric.non_finite:
            return ()
        found: list[NonFiniteRun] = []
        for part in shown:
            values = metric.values.values[part.start : part.stop]
            kinds = (
                ("NaN", np.isnan(values)),
                ("Infinity", np.isposinf(values)),
                ("-Infinity", np.isneginf(values)),
            )
            for kind, mask in kinds:
                runs = runs_of(mask)
                edges = np.asarray(runs, dtype=np.int64).reshape(len(runs), 2) + part.start
                firsts = self._x(metric, axis, part, edges[:, 0])
                lasts = self._x(metric, axis, part, edges[:, 1])
                for (first, last), first_x, last_x in zip(runs, firsts.tolist(), lasts.tolist(), strict=True):
                    count = last - first + 1
                    if window is not None:
                        # Only what is visible is drawn and counted: a run may start before the window.
                        x = self._x(metric, axis, part, np.arange(first, last + 1) + part.start)
                        inside = x[(x >= min(window)) & (x <= max(window))]
                        if not len(inside):
                            continue
                        first_x, last_x, count = float(inside[0]), float(inside[-1]), len(inside)
                    found.append(
                        NonFiniteRun(kind=kind, first_x=first_x, last_x=last_x, count=count)  # type: ignore[arg-type]  # one of the three above
                    )
        return _merged(sorted(found, key=lambda run: run.first_x))


def _merged(runs: list[NonFiniteRun]) -> tuple[NonFiniteRun, ...]:
    """Join neighbours of a kind if there are too many to tell apart; counts add up."""
    while len(runs) > _MAX_RUNS:
        joined: list[NonFiniteRun] = []
        open_run: dict[str, tuple[NonFiniteRun, int]] = {}
        for run in runs:
            kept = open_run.pop(run.kind, None)
            if kept is None:
                open_run[run.kind] = (run, len(joined))
                joined.append(run)
                continue
            before, at = kept
            joined[at] = NonFiniteRun(
                kind=run.kind,
                first_x=before.first_x,
                last_x=max(before.last_x, run.last_x),
                count=before.count + run.count,
            )
        runs = joined
    return tuple(runs)


# ---------------------------------------------------------------- smoothing


@dataclass(frozen=True, slots=True)
class Carry:
    """The state of the average: the weighted sum of the values, and the sum of the weights."""

    total: float = 0.0
    weight: float = 0.0


def smooth(values: Floats, past: float, carry: Carry) -> tuple[Floats, Carry]:
    """Return the debiased exponential moving average of `values`, and the state for the next call.

    The weights are divided out, so the first points are not pulled towards zero. NaN and infinity are skipped.
    Batches give the same result as one call.
    """
    if not len(values):
        return values.copy(), carry
    finite = np.isfinite(values)
    clean = values if finite.all() else np.where(finite, values, np.nan)
    means = pd.Series(clean).ewm(alpha=1.0 - past, adjust=True, ignore_na=True).mean().to_numpy()
    seen = np.cumsum(finite)
    faded = np.power(past, seen)
    weights = (1.0 - faded) / (1.0 - past)
    totals = np.where(seen > 0, np.nan_to_num(means), 0.0) * weights + faded * carry.total
    all_weights = weights + faded * carry.weight
    with np.errstate(invalid="ignore"):
        averages = totals / all_weights
    return averages, Carry(float(totals[-1]), float(all_weights[-1]))
