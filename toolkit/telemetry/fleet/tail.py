"""Lines of a record file as rows, from any place in it: the same lines make the same rows however they are cut."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.fleet.binary_form import block_of, column, numbers, text, types_of
from toolkit.telemetry.runfolder.metrics import CARRIES_METRICS, MAX_METRICS, metrics_of, position_of
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.reader import BadLine, Cursor, parse_line, read_block
from toolkit.telemetry.runfolder.records import SAMPLE, TABLE, Record
from toolkit.telemetry.runfolder.safefile import open_regular

BATCH_BYTES: Final = 2 * 1024 * 1024
BATCH_ROWS: Final = 50_000
LONGEST_LINE: Final = 16 * 1024 * 1024
"""A longer line is no record of anyone's: shipping of its file stops there."""

FILE_EVENTS: Final = frozenset({SAMPLE, TABLE})
"""Records that point to a file of the run folder."""

_DAY_S: Final = 86_400
_READ_BYTES: Final = 1024 * 1024
_NOT_A_RECORD: Final = BadLine(0, 0, "empty")


class LineTooLong(OSError):  # noqa: N818 - the name says what it found
    """A line is longer than any that is shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """What every row of a run carries."""

    run_id: str
    project: str
    day: int
    """The day the run was created, since 1970: all of a run is in one partition."""

    def is_older_than(self, keep_days: int) -> bool:
        """Return whether an engine that keeps runs for so many days would remove its lines; 0 keeps all."""
        return 0 < keep_days <= time.time() // _DAY_S - self.day


@dataclass(slots=True)
class Counter:
    """The values of one metric so far."""

    name: bytes
    n: int = 0
    """How many there were."""
    bad: int = 0
    """How many of them were not finite."""
    last: float = nan
    last_at: int = 0
    """Where the line of the last one begins."""
    low: float = inf
    """The lowest of the finite ones."""
    high: float = -inf
    first_at: int = 0
    """Where the line of the first one begins."""


@dataclass(slots=True, kw_only=True)
class Position:
    """How far a file is shipped, and what its bytes up to there add up to."""

    end: int = 0
    crc: int = 0
    lines: int = 0
    bad_lines: int = 0
    counters: dict[str, Counter] = field(default_factory=dict)
    """By metric, in the order of their first value."""

    def summary(self) -> Summary:
        """Return what is known of each metric, by column."""
        return tuple(tuple(getattr(one, name) for one in self.counters.values()) for name in _SUMMARY)


Summary = tuple[tuple[Any, ...], ...]
_SUMMARY: Final = ("name", "n", "bad", "last", "last_at", "low", "high", "first_at")
SUMMARY_TYPES: Final = (
    "metric.name Array(String), metric.count Array(UInt32), metric.bad Array(UInt32), metric.last Array(Float64), "
    "metric.last_at Array(UInt64), metric.low Array(Float64), metric.high Array(Float64), metric.first_at Array(UInt64)"
)
"""The columns of a summary in the engine."""


class Rows:
    """Rows of a batch: of lines, and of their values."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lines: list[tuple[Any, ...]] = []
        """By the columns of `_LINE`."""
        self.values: list[tuple[Any, ...]] = []
        """By the columns of `_VALUE`."""
        self._files: list[tuple[RunKey, int, int, tuple[int, int]]] = []
        """Run, rank and generation, and how many lines and values are theirs."""
        self._owned = (0, 0)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def is_full(self) -> bool:
        """Whether the batch is sent without waiting for more."""
        return self.bytes >= BATCH_BYTES or len(self) >= BATCH_ROWS

    def belong_to(self, run: RunKey, rank: int, gen: int) -> None:
        """Say which file the rows are of that were added since the last call."""
        counts = (len(self.lines) - self._owned[0], len(self.values) - self._owned[1])
        self._files.append((run, rank, gen, counts))
        self._owned = (len(self.lines), len(self.values))

    def blocks(self) -> list[Block]:
        """Return what is inserted: first the lines, as a value without its line would not be found after a kill."""
        found = []
        for table, types, rows, number in (
            ("records", _LINE, self.lines, 0),
            ("points", _VALUE, self.values, 1),
        ):
            if rows:
                columns = [
                    *_same([(run, rank, gen, counts[number]) for run, rank, gen, counts in self._files])
                ]
                for (name, kind), values in zip(types.items(), zip(*rows, strict=True), strict=True):
                    few = name in ("event", "metric")
                    columns.append((name, kind, _texts(values) if few else column(kind, values)))
                found.append((table, tuple(name for name, *_ in columns), block_of(columns, len(rows))))
        return found


_LINE: Final = types_of(
    "at UInt64, next UInt64, seq Int64, session UInt32, event String, time Float64, elapsed Float64, step Float64, "
    "epoch Float64, line String"
)
_VALUE: Final = types_of("metric String, at UInt64, step Float64, value Float64")
Block = tuple[str, tuple[str, ...], bytes]
"""A table, its columns, and rows for it."""


def _same(files: list[tuple[RunKey, int, int, int]]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the columns that are the same in all rows of a file, each of which has so many."""
    yield "run_id", "String", b"".join(text(run.run_id.encode()) * count for run, _, _, count in files)
    yield "rank", "UInt32", b"".join(numbers("UInt32", [rank]) * count for _, rank, _, count in files)
    yield "gen", "UInt16", b"".join(numbers("UInt16", [gen]) * count for _, _, gen, count in files)
    yield "created", "Date", b"".join(numbers("Date", [run.day]) * count for run, _, _, count in files)


def _texts(values: Sequence[str | bytes]) -> bytes:
    """Return texts of which few differ, encoded."""
    encoded = {value: text(value) for value in set(values)}
    return b"".join(map(encoded.__getitem__, values))


class RecordTail:
    """Reads one record file from a position on."""

    def __init__(self, path: Path, run: RunKey, rank: int, gen: int, position: Position) -> None:
        self.path = path
        self.run = run
        self.rank = rank
        self.gen = gen
        self.position = position
        self.has_files = False
        """Whether records pointed to files, until someone asks."""
        self._cursor = Cursor(offset=position.end)

    @property
    def offset(self) -> int:
        """How far the file was read: beyond the position while a very long line is passed over."""
        return self._cursor.offset

    def read(self, rows: Rows, until: int = sys.maxsize) -> bool:
        """Append the next complete lines to `rows`; return False if the file was truncated or replaced.

        At most about a megabyte is read at once, and `rows` gets at most one line more than fit. Lines after `until`,
        where one ends, are left.

        Raises:
            OSError: the file is missing or unreadable.
            LineTooLong: its next line is longer than any that is shipped.
        """
        block = read_block(self.path, self._cursor, max_bytes=min(_READ_BYTES, until - self.offset))
        if block.replaced:
            return False
        cursor = block.cursor
        if block.long_line is not None:
            self._take_long_line(rows, block.long_line)
        elif cursor.long_line_at is not None and cursor.offset - cursor.long_line_at > LONGEST_LINE:
            raise LineTooLong(
                f"{self.path.name} has a line of over {LONGEST_LINE >> 20} MiB at byte {cursor.long_line_at}"
            )
        if block.data:
            end = self._take_lines(rows, block.data, block.start)
            if end < block.start + len(block.data):
                cursor = cursor._replace(offset=end, long_line_at=None)
        self._cursor = cursor
        rows.belong_to(self.run, self.rank, self.gen)
        return True

    def _take_lines(self, rows: Rows, data: bytes, start: int) -> int:
        """Append the lines of `data`, as many as fit; return where the first one begins that was not taken."""
        at = start
        for line in data[:-1].split(b"\n"):
            after = at + len(line) + 1
            self._add_line(rows, at, after, line)
            at = after
            if len(rows) >= BATCH_ROWS:
                data = data[: at - start]
                break
        self.position.crc = zlib.crc32(data, self.position.crc)
        self.position.end = at
        rows.bytes += len(data)
        return at

    def _take_long_line(self, rows: Rows, line: BadLine) -> None:
        """Append a line that is too long for a record, as it is."""
        if line.length > LONGEST_LINE:
            raise LineTooLong(f"{self.path.name} has a line of {line.length} bytes at byte {line.offset}")
        data = bytes_of(self.path, line.offset, line.offset + line.length + 1)
        self._add(rows, line.offset, line.offset + len(data), data[:-1], "", {})
        self.position.crc = zlib.crc32(data, self.position.crc)
        self.position.end = line.offset + len(data)
        self.position.bad_lines += 1
        rows.bytes += len(data)

    def _add_line(self, rows: Rows, at: int, after: int, line: bytes) -> None:
        record = parse_line(at, line) if line else _NOT_A_RECORD
        event = record.get("event") if type(record) is dict else None
        if type(record) is not dict or not isinstance(event, str):
            # An empty line ends one that a killed writer left unfinished, and is not a fault.
            self.position.bad_lines += bool(line)
            self._add(rows, at, after, line, "", {})
            return
        self.has_files |= event in FILE_EVENTS
        self._add(rows, at, after, line, event, record)

    def _add(self, rows: Rows, at: int, after: int, line: bytes, event: str, record: Record) -> None:
        seq = record.get("seq")
        time, elapsed, step, epoch, session = position_of(record)
        number = seq if type(seq) is int and -(2**63) <= seq < 2**63 else -1
        rows.lines.append((at, after, number, session, event, time, elapsed, step, epoch, line))
        self.position.lines += 1
        if event in CARRIES_METRICS:
            self._take_values(rows, at, step, record)

    def _take_values(self, rows: Rows, at: int, step: float, record: Record) -> None:
        counters = self.position.counters
        for name, value in metrics_of(record):
            counter = counters.get(name)
            if counter is None:
                if len(counters) >= MAX_METRICS:
                    continue
                counter = counters[name] = Counter(name.encode(), first_at=at)
            counter.n += 1
            if not isfinite(value):
                counter.bad += 1
            else:
                if value < counter.low:
                    counter.low = value
                if value > counter.high:
                    counter.high = value
            counter.last, counter.last_at = value, at
            rows.values.append((counter.name, at, step, value))


def bytes_of(path: Path, start: int, end: int) -> bytes:
    """Return what `path` has between two places; less where it ends before.

    Raises:
        OSError: it cannot be read.
    """
    return b"".join(_parts(path, start, end))


def crc_of(path: Path, end: int) -> int | None:
    """Return the crc32 of the first `end` bytes of `path`; None if it has fewer.

    Raises:
        OSError: it cannot be read.
    """
    crc = length = 0
    for part in _parts(path, 0, end):
        crc = zlib.crc32(part, crc)
        length += len(part)
    return crc if length == end else None


def _parts(path: Path, start: int, end: int) -> Iterator[bytes]:
    descriptor = open_regular(path)
    try:
        while start < end and (part := pread(descriptor, min(_READ_BYTES, end - start), start)):
            yield part
            start += len(part)
    finally:
        os.close(descriptor)
