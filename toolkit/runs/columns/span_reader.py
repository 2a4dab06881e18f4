"""Reads the spans of one growing record file into columns, each record once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from toolkit.runfolder.records import SPAN, SPAN_START, SPAN_SUMMARY
from toolkit.runs.columns.line_parser import parse_event
from toolkit.runs.columns.run_columns import RunColumns
from toolkit.runs.growable_array import GrowableArray
from toolkit.runs.record_source import Place, RecordSource
from toolkit.runs.spans import FAILED, HAS_MORE, REASONS, UNFINISHED, Rows, SpanName, SpanTable
from toolkit.timing.names import HOST_CLOCK
from toolkit.timing.span_record import Span, read_span, seconds_in
from toolkit.timing.span_summary import MOST_NAMES, SpanSummary, summaries_in

OTHER_NAMES: Final = "(other names)"

_READ_BYTES: Final = 1 << 20
_ROWS_FOR_TREE: Final = 20_000
_NO_ID: Final = 0


class SpanReader:
    """Reads the spans of one growing record file. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: RunColumns | None = None
        self._forget()

    def _forget(self) -> None:
        self._seen = 0
        self._numbers: dict[tuple[str, str], int] = {}
        self._start: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self._duration: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self._step: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self._name: GrowableArray[np.int32] = GrowableArray(np.empty(0, dtype=np.int32))
        self._session: GrowableArray[np.int32] = GrowableArray(np.empty(0, dtype=np.int32))
        self._flags: GrowableArray[np.uint8] = GrowableArray(np.empty(0, dtype=np.uint8))
        self._kept: GrowableArray[np.uint8] = GrowableArray(np.empty(0, dtype=np.uint8))
        self._offset: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        self._length: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        self._id: GrowableArray[np.uint64] = GrowableArray(np.empty(0, dtype=np.uint64))
        self._parent: GrowableArray[np.uint64] = GrowableArray(np.empty(0, dtype=np.uint64))
        self._open: dict[tuple[int, int], int] = {}
        self._heard: dict[int, float] = {}
        self._summaries: dict[int, dict[str, SpanSummary]] = {}
        self._tree: tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]] = ((0, 0), (), ())

    @property
    def nbytes(self) -> int:
        """Memory used by the columns."""
        return sum(column.nbytes for column in self._arrays())

    def _arrays(self) -> list[GrowableArray[Any]]:
        return [
            self._start,
            self._duration,
            self._step,
            self._name,
            self._session,
            self._flags,
            self._kept,
            self._offset,
            self._length,
            self._id,
            self._parent,
        ]

    def read(
        self, source: RecordSource, columns: RunColumns, heard: Mapping[int, float], wait_s: float
    ) -> SpanTable:
        """Read new spans at the offsets in `columns`, for at most about `wait_s`, and return all so far.

        `heard` is the time of each session's last record of another kind.
        """
        with self._lock:
            if columns is not self._columns:
                # The file was replaced, or loaded from the cache: offsets changed.
                self._forget()
                self._columns = columns
            until = time.perf_counter() + wait_s
            placed = len(columns.event_length)
            kinds = columns.event_kind.values[self._seen : placed]
            wanted = [
                number
                for number, name in enumerate(columns.event_names)
                if name in (SPAN, SPAN_START, SPAN_SUMMARY)
            ]
            places = np.flatnonzero(np.isin(kinds, wanted)) + self._seen
            if len(places):
                self._seen = self._take(source, columns, places, until, placed)
            else:
                self._seen = placed
            return self._table(heard, self._seen / placed if placed else 1.0)

    def _take(
        self, source: RecordSource, columns: RunColumns, places: Rows, until: float, placed: int
    ) -> int:
        """Read the records at `places` and return how many places have been processed."""
        starts = columns.event_start.values[places]
        lengths = columns.event_length.values[places]
        at = 0
        while at < len(places):
            stop = max(at + 1, int(np.searchsorted(starts, starts[at] + _READ_BYTES)))
            some = list(zip(starts[at:stop].tolist(), lengths[at:stop].tolist(), strict=True))
            try:
                lines = source.read_at(some)
            except OSError:
                return int(places[at])
            self._add(some, lines)
            at = stop
            if time.perf_counter() > until and at < len(places):
                return int(places[at])
        return placed

    def _add(self, places: list[Place], lines: list[bytes]) -> None:
        rows: list[tuple[Any, ...]] = []
        base = len(self._start)
        for (start, length), line in zip(places, lines, strict=True):
            record = parse_event(line)
            if record is None:
                continue
            if record.get("event") == SPAN_SUMMARY:
                if (found := summaries_in(record)) is not None:
                    self._summaries[found[0]] = found[1]
                continue
            span = read_span(record)
            if span is None:
                continue
            heard = seconds_in(record.get("time"))
            if heard is not None and heard > self._heard.get(span.session, 0.0):
                self._heard[span.session] = heard
            row = self._row(span, start, length)
            key = (span.session, row[-2])
            if span.duration is None:
                if row[-2] != _NO_ID and key not in self._open:
                    self._open[key] = base + len(rows)
                    rows.append(row)
                continue
            begun = self._open.pop(key, None)
            if begun is None:
                rows.append(row)
            elif begun >= base:
                rows[begun - base] = row
            else:
                for column, value in zip(self._arrays(), row, strict=True):
                    column.overwrite(begun, begun + 1, value)
        if rows:
            for column, values in zip(self._arrays(), zip(*rows, strict=True), strict=True):
                column.append(np.array(values, dtype=column.values.dtype))

    def _row(self, span: Span, start: int, length: int) -> tuple[Any, ...]:
        number = self._numbers.get((span.name, span.clock))
        if number is None:
            number = self._number_name(span)
        flags = (
            (FAILED if span.error else 0)
            | (UNFINISHED if span.unfinished else 0)
            | (HAS_MORE if span.attributes or span.error or span.thread else 0)
        )
        return (
            span.start,
            np.nan if span.duration is None else span.duration,
            np.nan if span.step is None else float(span.step),
            number,
            min(max(span.session, 0), 2**31 - 1),
            flags,
            REASONS.index(span.kept) if span.kept in REASONS else 0,
            start,
            length,
            _number_of(span.id),
            _number_of(span.parent_id),
        )

    def _number_name(self, span: Span) -> int:
        about = SpanName(span.name[:80], span.clock[:20])
        if len(self._numbers) >= MOST_NAMES:
            about = SpanName(OTHER_NAMES, HOST_CLOCK)
        return self._numbers.setdefault(about, len(self._numbers))

    def _table(self, heard: Mapping[int, float], fraction_read: float) -> SpanTable:
        size = (len(self._numbers), len(self._start))
        known = self._tree[0]
        # The order changes with a new name; 5 % more spans of known names rarely change it.
        if size[0] != known[0] or size[1] > known[1] * 1.05:
            self._tree = (size, *self._order_names())
        sessions = {*heard, *self._heard}
        return SpanTable(
            names=tuple(SpanName(*name) for name in self._numbers),
            order=self._tree[1],
            depth=self._tree[2],
            name=self._name.values,
            start=self._start.values,
            duration=self._duration.values,
            step=self._step.values,
            session=self._session.values,
            flags=self._flags.values,
            kept=self._kept.values,
            offset=self._offset.values,
            length=self._length.values,
            heard={
                session: max(heard.get(session, 0.0), self._heard.get(session, 0.0)) for session in sessions
            },
            summaries=dict(self._summaries),
            fraction_read=fraction_read,
        )

    def _order_names(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the names in tree order, and their depths; a name's parent is that of most of its spans."""
        count, rows = len(self._numbers), len(self._start)
        some = np.arange(rows)
        if rows > 2 * _ROWS_FOR_TREE:
            some = np.concatenate((some[:_ROWS_FOR_TREE], some[-_ROWS_FOR_TREE:]))
        ids, parents, names = self._id.values[some], self._parent.values[some], self._name.values[some]
        first = np.full(count, np.inf)
        np.minimum.at(first, names, self._start.values[some])
        by_id = np.argsort(ids, kind="stable")
        at = np.minimum(np.searchsorted(ids[by_id], parents), max(0, len(some) - 1))
        around = by_id[at] if len(some) else at
        known = (parents != _NO_ID) & (ids[around] == parents) if len(some) else np.zeros(0, dtype=bool)
        pairs = names[known].astype(np.int64) * count + names[around[known]]
        votes: dict[int, tuple[int, int]] = {}
        for pair, number in zip(*np.unique(pairs, return_counts=True), strict=True):
            child, parent = divmod(int(pair), count)
            if child != parent and int(number) > votes.get(child, (0, 0))[0]:
                votes[child] = (int(number), parent)
        return _walk({child: parent for child, (_, parent) in votes.items()}, first.tolist())


def _walk(parent_of: dict[int, int], first: list[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    count = len(first)
    children: dict[int, list[int]] = {}
    roots = []
    for number in range(count):
        at, steps = number, 0
        while at in parent_of and steps <= count:
            at, steps = parent_of[at], steps + 1
        if steps > count:
            # A cycle: break it here.
            del parent_of[number]
        if number in parent_of:
            children.setdefault(parent_of[number], []).append(number)
        else:
            roots.append(number)
    order: list[int] = []
    depth = [0] * count
    waiting = sorted(roots, key=first.__getitem__, reverse=True)
    while waiting:
        number = waiting.pop()
        order.append(number)
        for child in sorted(children.get(number, ()), key=first.__getitem__, reverse=True):
            depth[child] = depth[number] + 1
            waiting.append(child)
    return tuple(order), tuple(depth)


def _number_of(span_id: str | None) -> int:
    if not span_id:
        return _NO_ID
    try:
        return int(span_id, 16) & (2**64 - 1)
    except ValueError:
        return hash(span_id) & (2**64 - 1)
