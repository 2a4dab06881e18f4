"""Reads the spans of one growing record file into columns, each record once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from toolkit.telemetry.runfolder.records import SPAN, SPAN_START, SPAN_SUMMARY, Record
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.growable_array import GrowableArray
from toolkit.telemetry.runs.record_source import Place
from toolkit.telemetry.runs.spans import FAILED, HAS_MORE, REASONS, UNFINISHED, SpanName, SpanTable
from toolkit.telemetry.timing.names import HOST_CLOCK
from toolkit.telemetry.timing.span_record import Span, read_span, seconds_in
from toolkit.telemetry.timing.span_summary import MOST_NAMES, SpanSummary, summaries_in

OTHER_NAMES: Final = "(other names)"

_READ_BYTES: Final = 1 << 20
_ROWS_FOR_TREE: Final = 20_000
_NO_ID: Final = 0
_ROW: Final = np.dtype(
    [
        ("start", "f8"),
        ("duration", "f8"),
        ("step", "f8"),
        ("name", "i4"),
        ("session", "i4"),
        ("flags", "u1"),
        ("kept", "u1"),
        ("offset", "i8"),
        ("length", "i8"),
        ("id", "u8"),
        ("parent", "u8"),
    ]
)
_SHOWN: Final = (_ROW.names or ())[:-2]

RecordsAt = Callable[[Sequence[Place]], Sequence[Record | None]]
"""Returns the records at some places; raises OSError if the file cannot be read now."""


class SpanReader:
    """Reads the spans of one growing record file. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: RunColumns | None = None
        self._forget()

    def _forget(self) -> None:
        self._seen = 0
        self._numbers: dict[tuple[str, str], int] = {}
        self._rows: GrowableArray[Any] = GrowableArray(np.empty(0, dtype=_ROW))
        self._open: dict[tuple[int, int], int] = {}
        self._heard: dict[int, float] = {}
        self._summaries: dict[int, dict[str, SpanSummary]] = {}
        self._tree: tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]] = ((0, 0), (), ())

    @property
    def nbytes(self) -> int:
        """Memory used by the columns."""
        return self._rows.nbytes

    def read(
        self, records_at: RecordsAt, columns: RunColumns, heard: Mapping[int, float], wait_s: float
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
            starts, lengths, numbers = columns.places_of((SPAN, SPAN_START, SPAN_SUMMARY), self._seen)
            at = 0
            while at < len(starts):
                stop = max(at + 1, int(np.searchsorted(starts, starts[at] + _READ_BYTES)))
                places = list(zip(starts[at:stop].tolist(), lengths[at:stop].tolist(), strict=True))
                try:
                    self._add(places, records_at(places))
                except OSError:
                    break
                at = stop
                if time.perf_counter() > until:
                    break
            self._seen = int(numbers[at]) if at < len(starts) else placed
            return self._table(heard, self._seen / placed if placed else 1.0)

    def _add(self, places: list[Place], records: Sequence[Record | None]) -> None:
        rows: list[tuple[Any, ...]] = []
        base = len(self._rows)
        for place, record in zip(places, records, strict=True):
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
            row = self._row(span, *place)
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
                self._rows.overwrite(begun, begun + 1, row)
        if rows:
            self._rows.append(np.array(rows, dtype=_ROW))

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
        rows = self._rows.values
        size = (len(self._numbers), len(rows))
        known = self._tree[0]
        # The order changes with a new name; 5 % more spans of known names rarely change it.
        if size[0] != known[0] or size[1] > known[1] * 1.05:
            self._tree = (size, *self._order_names())
        sessions = {*heard, *self._heard}
        return SpanTable(
            names=tuple(SpanName(*name) for name in self._numbers),
            order=self._tree[1],
            depth=self._tree[2],
            **{name: rows[name] for name in _SHOWN},
            heard={
                session: max(heard.get(session, 0.0), self._heard.get(session, 0.0)) for session in sessions
            },
            summaries=dict(self._summaries),
            fraction_read=fraction_read,
        )

    def _order_names(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the names in tree order, and their depths; a name's parent is that of most of its spans."""
        count, rows = len(self._numbers), self._rows.values
        if len(rows) > 2 * _ROWS_FOR_TREE:
            rows = np.concatenate((rows[:_ROWS_FOR_TREE], rows[-_ROWS_FOR_TREE:]))
        ids, parents, names = rows["id"], rows["parent"], rows["name"]
        first = np.full(count, np.inf)
        np.minimum.at(first, names, rows["start"])
        votes: dict[int, tuple[int, int]] = {}
        if len(rows):
            by_id = np.argsort(ids, kind="stable")
            around = by_id[np.minimum(np.searchsorted(ids[by_id], parents), len(rows) - 1)]
            known = (parents != _NO_ID) & (ids[around] == parents)
            pairs = names[known].astype(np.int64) * count + names[around[known]]
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
