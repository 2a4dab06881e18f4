"""The records of one file as columns: metrics, sessions, and the offsets of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.runfolder.metrics import MAX_METRICS
from toolkit.telemetry.runfolder.reader import MAX_BAD_LINES_KEPT, BadLine
from toolkit.telemetry.runs.columns.line_parser import Parsed
from toolkit.telemetry.runs.growable_array import GrowableArray
from toolkit.telemetry.runs.store import Floats

MAX_EVENTS_PLACED = 2_000_000

EventPlaces = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.intp]]
"""Offsets, lengths and numbers of events, in the order of the file."""


@dataclass(slots=True)
class Segment:
    """Consecutive rows of one session."""

    session: int
    start: int
    end: int
    first_step: float | None = None
    """The step of its first step record; rows of earlier sessions from that step on are superseded."""
    step_offset_known: bool = False
    counts_until: int = -1
    """Rows from this one on are superseded; -1 if not computed yet."""


class MetricColumn:
    """One metric: the rows that have it, and its values."""

    __slots__ = ("event", "high", "low", "non_finite", "rows", "values")

    def __init__(self, event: str, rows: npt.NDArray[np.int32], values: Floats) -> None:
        self.event = event
        self.rows: GrowableArray[np.int32] = GrowableArray(rows)
        self.values: GrowableArray[np.float64] = GrowableArray(values)
        self.low = np.inf
        self.high = -np.inf
        self.non_finite = 0
        self._count(values)

    def append(self, rows: npt.NDArray[np.int32], values: Floats) -> None:
        """Add values and the rows that have them."""
        self.rows.append(rows)
        self.values.append(values)
        self._count(values)

    def _count(self, values: Floats) -> None:
        finite = np.isfinite(values)
        numbers = values if finite.all() else values[finite]
        self.non_finite += len(values) - len(numbers)
        if len(numbers):
            self.low = min(self.low, float(numbers.min()))
            self.high = max(self.high, float(numbers.max()))


class RunColumns:
    """Everything read from one record file."""

    def __init__(self) -> None:
        self.time: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self.elapsed: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self.step: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self.epoch: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self.kind: GrowableArray[np.int8] = GrowableArray(np.empty(0, dtype=np.int8))
        """Indices into KINDS."""
        self.at: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        """Offsets of the lines in their file; -1 where there are none."""
        self.metrics: dict[str, MetricColumn] = {}
        self.derived: dict[str, MetricColumn] = {}
        """Columns of formulas, by their text."""
        self.segments: list[Segment] = []
        self.event_names: list[str] = []
        self.event_kind: GrowableArray[np.int32] = GrowableArray(np.empty(0, dtype=np.int32))
        self.event_start: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        self.event_length: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        self.counts: Counter[str] = Counter()
        self.records = 0
        self.bad_count = 0
        self.bad_lines: list[BadLine] = []
        self.lost_records = 0
        self.lost_reasons: list[str] = []
        self.metrics_left_out: set[str] = set()
        self.line_version = 0
        """Changes when rows become superseded, or their steps become known."""

    @property
    def rows(self) -> int:
        """The number of records with metrics."""
        return len(self.time)

    def column(self, name: str) -> MetricColumn | None:
        """Return the column of a metric, or of a formula that has been computed; None if there is none."""
        return self.metrics.get(name) or self.derived.get(name)

    def add(self, parsed: Parsed) -> None:
        """Append the contents of a block."""
        base = self.rows
        count = len(parsed.time)
        if count:
            self._add_rows(parsed, base, count)
        for name, (rows, values) in parsed.metrics.items():
            metric = self.metrics.get(name)
            if metric is not None:
                metric.append(rows + np.int32(base), values)
            elif len(self.metrics) < MAX_METRICS:
                self.metrics[name] = MetricColumn(parsed.kinds[name], rows + np.int32(base), values)
            elif len(self.metrics_left_out) < MAX_METRICS:
                self.metrics_left_out.add(name)
        self._add_events(parsed)
        self.records += parsed.records
        self.bad_count += len(parsed.bad)
        self.bad_lines.extend(parsed.bad[: MAX_BAD_LINES_KEPT - len(self.bad_lines)])
        for record in parsed.lost:
            lost = record.get("records")
            self.lost_records += lost if isinstance(lost, int) else 0
            reason = str(record.get("reason", "no reason given"))[:200]
            if reason not in self.lost_reasons and len(self.lost_reasons) < 10:
                self.lost_reasons.append(reason)

    def _add_rows(self, parsed: Parsed, base: int, count: int) -> None:
        steps = Counter({"step": int(parsed.is_step.sum())})
        self.counts.update(steps)
        self.counts["with metrics"] += count
        breaks = np.flatnonzero(np.diff(parsed.session)) + 1
        edges = [0, *breaks.tolist(), count]
        step, epoch = parsed.step, parsed.epoch
        filled_step, filled_epoch = np.empty(count), np.empty(count)
        for start, stop in pairwise(edges):
            session = int(parsed.session[start])
            segment = self.segments[-1] if self.segments else None
            if segment is None or segment.session != session or segment.end != base + start:
                segment = Segment(session=session, start=base + start, end=base + start)
                self.segments.append(segment)
            fresh = segment.end == segment.start
            own = np.flatnonzero(np.isfinite(step[start:stop]))
            before = (
                self._last_step(base, filled_step, start)
                if not fresh or not len(own)
                else step[start + own[0]]
            )
            if len(own) and not segment.step_offset_known:
                # System records before the session's first step get that step.
                segment.step_offset_known = True
                before = step[start + own[0]]
                if segment.start < base:
                    self.step.overwrite(segment.start, base, before)
                    self.line_version += 1
            filled_step[start:stop] = _fill_forward(step[start:stop], float(before))
            earlier = filled_epoch[start - 1] if start else (self.epoch.values[-1] if base else np.nan)
            filled_epoch[start:stop] = _fill_forward(epoch[start:stop], float(earlier))
            if segment.first_step is None:
                logged = np.flatnonzero(parsed.is_step[start:stop] & np.isfinite(step[start:stop]))
                if len(logged):
                    segment.first_step = float(step[start + logged[0]])
                    self._cut_earlier(segment)
            segment.end = base + stop
        self.time.append(parsed.time)
        self.elapsed.append(parsed.elapsed)
        self.step.append(filled_step)
        self.epoch.append(filled_epoch)
        self.kind.append(parsed.kind)
        self.at.append(parsed.at)
        for segment in self.segments:
            if segment.end > base:
                segment.counts_until = -1

    def _last_step(self, base: int, filled: Floats, start: int) -> float:
        if start:
            return float(filled[start - 1])
        return float(self.step.values[-1]) if base else 0.0

    def _cut_earlier(self, segment: Segment) -> None:
        for earlier in self.segments:
            if earlier is not segment:
                earlier.counts_until = -1
        if len(self.segments) > 1:
            self.line_version += 1

    def places_of(self, kinds: Collection[str], since: int = 0) -> EventPlaces:
        """Return offsets, lengths and numbers of the events of these kinds, from number `since` on."""
        wanted = [number for number, name in enumerate(self.event_names) if name in kinds]
        numbers = np.flatnonzero(np.isin(self.event_kind.values[since:], wanted)) + since
        return self.event_start.values[numbers], self.event_length.values[numbers], numbers

    def counting(self) -> list[tuple[Segment, int]]:
        """Return each segment and the row from which on it is superseded by a later session."""
        steps = self.step.values
        cutoff = np.inf
        for segment in reversed(self.segments):
            if segment.counts_until < 0:
                redone = np.flatnonzero(steps[segment.start : segment.end] >= cutoff)
                segment.counts_until = segment.start + int(redone[0]) if len(redone) else segment.end
            if segment.first_step is not None:
                cutoff = min(cutoff, segment.first_step)
        return [(segment, segment.counts_until) for segment in self.segments]

    def _add_events(self, parsed: Parsed) -> None:
        if not parsed.events:
            return
        numbers = {name: i for i, name in enumerate(self.event_names)}
        kinds = np.empty(len(parsed.events), dtype=np.int32)
        for i, (name, _, _) in enumerate(parsed.events):
            if name not in numbers:
                if len(numbers) >= MAX_METRICS:
                    name = "other"
                numbers.setdefault(name, len(numbers))
                if len(self.event_names) < len(numbers):
                    self.event_names.append(name)
            kinds[i] = numbers[name]
            self.counts[name] += 1
        if len(self.event_kind) < MAX_EVENTS_PLACED:
            self.event_kind.append(kinds)
            self.event_start.append(np.array([start for _, start, _ in parsed.events], dtype=np.int64))
            self.event_length.append(np.array([length for _, _, length in parsed.events], dtype=np.int64))


def _fill_forward(values: Floats, before: float) -> Floats:
    known = np.isfinite(values)
    if known.all():
        return values
    at = np.where(known, np.arange(len(values)), -1)
    np.maximum.accumulate(at, out=at)
    return np.where(at >= 0, values[np.maximum(at, 0)], before)
