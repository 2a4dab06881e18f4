"""Which points of a metric count, where they are on an axis, and which are not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from toolkit.telemetry.runs.columns.run_columns import MetricColumn, RunColumns, Segment
from toolkit.telemetry.runs.columns.smoothing import FOLDED, MOST_FOLDED
from toolkit.telemetry.runs.columns.thinning import Indices, runs_of
from toolkit.telemetry.runs.curve_tiles import NonFiniteRange, NonFiniteRun
from toolkit.telemetry.runs.store import Floats

_MAX_RUNS: Final = 1_000
_MAX_RANGES: Final = 200


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one metric's points, by index."""

    segment: Segment
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Places: TypeAlias = str | Callable[[Slice, Indices], Floats]
"""One of the x axes that every run has, or what returns the x of some rows of a slice."""


class CurvePoints:
    """The points of the metrics of one run."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._epoch_blocks: tuple[int, Indices, Indices] | None = None
        self._epochs_version = 0

    # ------------------------------------------------------------ which points

    def slices(self, metric: MetricColumn) -> tuple[list[Slice], list[Slice]]:
        """Return the parts of a metric that count, and those that a later session superseded."""
        rows = metric.rows.values
        line, superseded = [], []
        for segment, counts_until in self._columns.counting():
            start, until, end = np.searchsorted(rows, (segment.start, counts_until, segment.end)).tolist()
            if until > start:
                line.append(Slice(segment, start, until))
            if end > until:
                superseded.append(Slice(segment, until, end))
        return line, superseded

    def inside(
        self, metric: MetricColumn, axis: Places, parts: list[Slice], window: tuple[float, float]
    ) -> list[Slice]:
        """Return what of these parts is in the window."""
        found = []
        for part in parts:
            x = self.x_of(metric, axis, part, np.arange(part.start, part.stop))
            inside = np.flatnonzero((x >= min(window)) & (x <= max(window))) + part.start
            if len(inside):
                found.append(Slice(part.segment, int(inside[0]), int(inside[-1]) + 1))
        return found

    def steps_covered(self, metric: MetricColumn, start: int, count: int) -> Floats | None:
        """Return the steps that each of these records covers, its own and those folded; None if every one has 1."""
        folded = self._columns.metrics.get(FOLDED)
        if folded is None or not count:
            return None
        rows = metric.rows.values[start : start + count]
        first, last = np.searchsorted(folded.rows.values, (rows[0], rows[-1] + 1)).tolist()
        known, more = folded.rows.values[first:last], folded.values.values[first:last]
        if not len(known):
            return None
        if not np.array_equal(known, rows):
            at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
            more = np.where(known[at] == rows, more[at], 0.0)
        # The file may hold any number.
        return np.where(more >= 1.0, np.minimum(more, MOST_FOLDED) + 1.0, 1.0)

    # ------------------------------------------------------------ where they are drawn

    def x_of(self, metric: MetricColumn, axis: Places, part: Slice, chosen: Indices) -> Floats:
        """Return the x of some points, by index."""
        rows = metric.rows.values[chosen]
        if callable(axis):
            return axis(part, rows.astype(np.int64))
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

    def epochs_version(self) -> int:
        """Return a number that changes when points move on the epoch axis."""
        self._whole_epochs()
        return self._epochs_version

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
            before = self._epoch_blocks[2] if self._epoch_blocks is not None else lengths
            self._epochs_version += not np.array_equal(before, lengths[: len(before)])
            self._epoch_blocks = (len(epochs), edges, lengths)
        return self._epoch_blocks[1], self._epoch_blocks[2]

    # ------------------------------------------------------------ NaN and infinity

    def non_finite(self, metric: MetricColumn, axis: Places, shown: list[Slice]) -> tuple[NonFiniteRun, ...]:
        """Return where values are NaN or infinite."""
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
                firsts = self.x_of(metric, axis, part, edges[:, 0])
                lasts = self.x_of(metric, axis, part, edges[:, 1])
                for (first, last), first_x, last_x in zip(runs, firsts.tolist(), lasts.tolist(), strict=True):
                    count = last - first + 1
                    found.append(
                        NonFiniteRun(kind=kind, first_x=first_x, last_x=last_x, count=count)  # type: ignore[arg-type]  # one of the three above
                    )
        return _merged(sorted(found, key=lambda run: run.first_x))

    def ranges(self, metric: MetricColumn, axis: Places, shown: list[Slice]) -> tuple[NonFiniteRange, ...]:
        """Return the longest ranges without a number."""
        if not metric.non_finite:
            return ()
        found: list[NonFiniteRange] = []
        for part in shown:
            values = metric.values.values[part.start : part.stop]
            runs = [(first, last) for first, last in runs_of(~np.isfinite(values)) if last > first]
            for first, last in sorted(runs, key=lambda run: run[0] - run[1])[:_MAX_RANGES]:
                x = self.x_of(metric, axis, part, np.arange(first, last + 1) + part.start)
                bad = values[first : last + 1]
                counts = (
                    ("NaN", int(np.isnan(bad).sum())),
                    ("Infinity", int(np.isposinf(bad).sum())),
                    ("-Infinity", int(np.isneginf(bad).sum())),
                )
                if len(x) > 1:
                    kinds = {kind: count for kind, count in counts if count}
                    found.append(NonFiniteRange(first_x=float(x[0]), last_x=float(x[-1]), kinds=kinds))
        longest = sorted(found, key=lambda one: -one.count)[:_MAX_RANGES]
        return tuple(sorted(longest, key=lambda one: one.first_x))


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
