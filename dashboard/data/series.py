"""One metric of a run as a curve to draw: window, thinning, smoothing, and what no longer counts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from dashboard.data.growable_array import Growing
from dashboard.data.run_columns import Metric, RunColumns, Segment
from dashboard.data.run_store import Floats, NonFinite, Piece, Series, XAxis
from dashboard.data.smoothing import Carry, smooth
from dashboard.data.thinning import Indices, bucket_size, runs_of, select

_MAX_SELECTIONS: Final = 256
_MAX_SMOOTHED: Final = 6
_MAX_RUNS: Final = 1_000


@dataclass(slots=True)
class _Span:
    """A stretch of one metric's points, by position among them."""

    segment: Segment
    start: int
    stop: int


@dataclass(slots=True)
class _Selection:
    """Which points of a stretch are drawn; whole buckets are final, so a refresh looks only at what came since."""

    settled: int
    chosen: Indices


@dataclass(slots=True)
class _Smoothed:
    line_version: int
    values: Growing[np.float64]
    carry: Carry


class SeriesBuilder:
    """Makes curves from one run's columns, and remembers what a refresh need not work out again."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._selections: OrderedDict[tuple[str, str, int, int], _Selection] = OrderedDict()
        self._smoothed: OrderedDict[tuple[str, float], _Smoothed] = OrderedDict()
        self._epoch_blocks: tuple[int, Indices, Indices] | None = None

    def build(
        self, name: str, axis: XAxis, window: tuple[float, float] | None, buckets: int, smoothing: float
    ) -> Series:
        """Return the curve of the metric `name`; an empty one where there is no such metric."""
        metric = self._columns.metrics.get(name)
        if metric is None:
            return Series(metric=name, axis=axis, pieces=())
        line, redone = self._spans(metric)
        averages = self._averages(name, metric, line, smoothing) if smoothing > 0 else None
        shown = line
        if window is not None:
            shown = list(self._inside(metric, line, axis, window))
            redone = list(self._inside(metric, redone, axis, window))
        total = sum(span.stop - span.start for span in shown)
        size = bucket_size(total, buckets)
        values = metric.values.values
        pieces, drawn = [], 0
        for span in shown:
            chosen = self._select(name, "", values, span, size, keep=window is None)
            drawn += len(chosen)
            pieces.append(self._piece(metric, axis, span, chosen, values))
        pale_total = sum(span.stop - span.start for span in redone)
        pale_size = bucket_size(pale_total, max(1, buckets // 3))
        pale = [
            self._piece(
                metric,
                axis,
                span,
                select(values[span.start : span.stop], span.start, pale_size) + span.start,
                values,
            )
            for span in redone
        ]
        smoothed = []
        if averages is not None:
            positions = self._positions(line)
            for span in shown:
                offset = positions[id(span.segment)]
                chosen = self._select_smooth(
                    name,
                    smoothing,
                    averages,
                    span,
                    offset,
                    bucket_size(total, max(1, buckets // 2)),
                    keep=window is None,
                )
                smoothed.append(self._piece(metric, axis, span, chosen, averages, shift=offset))
        finite = [piece.y[np.isfinite(piece.y)] for piece in pieces]
        numbers = np.concatenate(finite) if finite else np.empty(0)
        return Series(
            metric=name,
            axis=axis,
            pieces=tuple(piece for piece in pieces if len(piece.x)),
            abandoned=tuple(piece for piece in pale if len(piece.x)),
            smooth=tuple(piece for piece in smoothed if len(piece.x)),
            non_finite=self._non_finite(metric, axis, [*shown, *redone], window),
            drawn=drawn,
            total=total,
            low=float(numbers.min()) if len(numbers) else None,
            high=float(numbers.max()) if len(numbers) else None,
            percentiles=tuple(np.percentile(numbers, (1, 99)).tolist()) if len(numbers) else None,
        )

    # ------------------------------------------------------------ which points

    def _spans(self, metric: Metric) -> tuple[list[_Span], list[_Span]]:
        rows = metric.rows.values
        line, redone = [], []
        for segment, counts_until in self._columns.counting():
            start, until, end = np.searchsorted(rows, (segment.start, counts_until, segment.end)).tolist()
            if until > start:
                line.append(_Span(segment, start, until))
            if end > until:
                redone.append(_Span(segment, until, end))
        return line, redone

    def _inside(
        self, metric: Metric, spans: list[_Span], axis: XAxis, window: tuple[float, float]
    ) -> Iterator[_Span]:
        low, high = min(window), max(window)
        for span in spans:
            x = self._x(metric, axis, span, np.arange(span.start, span.stop))
            inside = np.flatnonzero((x >= low) & (x <= high))
            if len(inside):
                # One more on either side, so that the line runs on to the edge.
                first, last = max(0, int(inside[0]) - 1), min(len(x) - 1, int(inside[-1]) + 1)
                yield _Span(span.segment, span.start + first, span.start + last + 1)

    def _select(self, name: str, what: str, values: Floats, span: _Span, size: int, *, keep: bool) -> Indices:
        if not keep or size <= 4:
            return select(values[span.start : span.stop], span.start, size) + span.start
        key = (name, what, span.start, size)
        known = self._selections.get(key)
        if known is None or known.settled > span.stop:
            known = _Selection(span.start, np.empty(0, dtype=np.int64))
        settled = max(known.settled, span.stop - span.stop % size)
        if settled > known.settled:
            new = select(values[known.settled : settled], known.settled, size) + known.settled
            known = _Selection(settled, np.concatenate((known.chosen, new)))
        self._selections[key] = known
        self._selections.move_to_end(key)
        while len(self._selections) > _MAX_SELECTIONS:
            self._selections.popitem(last=False)
        rest = select(values[settled : span.stop], settled, size) + settled
        return np.concatenate((known.chosen, rest))

    def _select_smooth(
        self, name: str, past: float, averages: Floats, span: _Span, offset: int, size: int, *, keep: bool
    ) -> Indices:
        shifted = _Span(span.segment, span.start - offset, span.stop - offset)
        what = f"~{past}~{self._columns.line_version}"
        return self._select(name, what, averages, shifted, size, keep=keep) + offset

    # ------------------------------------------------------------ smoothing

    @staticmethod
    def _positions(line: list[_Span]) -> dict[int, int]:
        """Return, by segment, what to take from a point's position to get its position among those that count."""
        positions, before = {}, 0
        for span in line:
            positions[id(span.segment)] = span.start - before
            before += span.stop - span.start
        return positions

    def _averages(self, name: str, metric: Metric, line: list[_Span], past: float) -> Floats:
        key = (name, past)
        known = self._smoothed.get(key)
        total = sum(span.stop - span.start for span in line)
        if known is None or known.line_version != self._columns.line_version or len(known.values) > total:
            known = _Smoothed(self._columns.line_version, Growing(np.empty(0)), Carry())
        done, values, before = len(known.values), metric.values.values, 0
        for span in line:
            length = span.stop - span.start
            begin = span.start + max(0, min(length, done - before))
            if begin < span.stop:
                averages, known.carry = smooth(values[begin : span.stop], past, known.carry)
                known.values.append(averages)
            before += length
        self._smoothed[key] = known
        self._smoothed.move_to_end(key)
        while len(self._smoothed) > _MAX_SMOOTHED:
            self._smoothed.popitem(last=False)
        return known.values.values

    # ------------------------------------------------------------ where they are drawn

    def _piece(
        self, metric: Metric, axis: XAxis, span: _Span, chosen: Indices, values: Floats, *, shift: int = 0
    ) -> Piece:
        return Piece(
            x=self._x(metric, axis, span, chosen), y=values[chosen - shift], session=span.segment.session
        )

    def _x(self, metric: Metric, axis: XAxis, span: _Span, chosen: Indices) -> Floats:
        rows = metric.rows.values[chosen]
        if axis == "step":
            return self._columns.step.values[rows]
        if axis == "time":
            return self._columns.time.values[rows]
        if axis == "elapsed":
            return self._columns.elapsed.values[rows] + self._elapsed_before(span.segment)
        return self._epochs(rows.astype(np.int64))

    def _elapsed_before(self, segment: Segment) -> float:
        """Return how long earlier sessions ran: time between sessions is nobody's training time."""
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
        """Return where each epoch's rows begin and how many they are; nothing where epochs come in fractions.

        Whole epochs would put all their steps on one spot: they are spread by their share of the epoch's rows. That is
        settled for the run as a whole, so that a point lies on one spot whichever others are drawn with it.
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

    # ------------------------------------------------------------ what is no number

    def _non_finite(
        self, metric: Metric, axis: XAxis, shown: list[_Span], window: tuple[float, float] | None
    ) -> tuple[NonFinite, ...]:
        if not metric.non_finite:
            return ()
        found: list[NonFinite] = []
        for span in shown:
            values = metric.values.values[span.start : span.stop]
            kinds = (
                ("NaN", np.isnan(values)),
                ("Infinity", np.isposinf(values)),
                ("-Infinity", np.isneginf(values)),
            )
            for kind, mask in kinds:
                runs = runs_of(mask)
                edges = np.asarray(runs, dtype=np.int64).reshape(len(runs), 2) + span.start
                firsts = self._x(metric, axis, span, edges[:, 0])
                lasts = self._x(metric, axis, span, edges[:, 1])
                for (first, last), first_x, last_x in zip(runs, firsts.tolist(), lasts.tolist(), strict=True):
                    count = last - first + 1
                    if window is not None:
                        # What is drawn and counted is what can be seen: a stretch may begin before the window.
                        x = self._x(metric, axis, span, np.arange(first, last + 1) + span.start)
                        inside = x[(x >= min(window)) & (x <= max(window))]
                        if not len(inside):
                            continue
                        first_x, last_x, count = float(inside[0]), float(inside[-1]), len(inside)
                    found.append(
                        NonFinite(kind=kind, first_x=first_x, last_x=last_x, count=count)  # type: ignore[arg-type]  # one of the three above
                    )
        return _merged(sorted(found, key=lambda run: run.first_x))


def _merged(runs: list[NonFinite]) -> tuple[NonFinite, ...]:
    """Join neighbours of a kind where there are more than can be told apart; none is left out, and counts add up."""
    while len(runs) > _MAX_RUNS:
        joined: list[NonFinite] = []
        open_run: dict[str, tuple[NonFinite, int]] = {}
        for run in runs:
            kept = open_run.pop(run.kind, None)
            if kept is None:
                open_run[run.kind] = (run, len(joined))
                joined.append(run)
                continue
            before, at = kept
            joined[at] = NonFinite(
                kind=run.kind,
                first_x=before.first_x,
                last_x=max(before.last_x, run.last_x),
                count=before.count + run.count,
            )
        runs = joined
    return tuple(runs)
