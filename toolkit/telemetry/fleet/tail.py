"""Lines of a record file as rows, from any place in it: the same lines make the same rows however they are cut."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from math import inf, isfinite, nan
from operator import mul, sub
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.fleet.binary_form import block_of, numbers, text
from toolkit.telemetry.fleet.schema import AT_WEIGHT, BAD_WEIGHT, N_WEIGHT, PART_BYTES
from toolkit.telemetry.runfolder.metrics import CARRIES_METRICS, MAX_METRICS, metrics_of, position_of
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.reader import BadLine, Cursor, parse_line, read_block
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES, SAMPLE, TABLE, Record
from toolkit.telemetry.runfolder.safefile import open_regular

BATCH_BYTES: Final = 2 * 1024 * 1024
BATCH_ROWS: Final = 50_000
LONGEST_LINE: Final = 16 * 1024 * 1024
"""A longer line is no record of anyone's: shipping of its file stops there."""

_WRAP: Final = 2**64

LINE_SUM: Final = f"reinterpretAsUInt64(SHA1(line)) + at * {AT_WEIGHT} + next * {N_WEIGHT}"
"""What the engine makes of a line where lines are compared."""
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
    """Rows of a batch, by column."""

    def __init__(self) -> None:
        self.bytes = 0
        self.at: list[int] = []
        self.next: list[int] = []
        self.seq: list[int] = []
        self.session: list[int] = []
        self.event: list[str] = []
        self.time: list[float] = []
        self.elapsed: list[float] = []
        self.step: list[float] = []
        self.epoch: list[float] = []
        self.line: list[bytes] = []
        self.ends: list[int] = []
        """Where the values of each row end in the lists below."""
        self.names: list[bytes] = []
        self.ns: list[int] = []
        self.bads: list[int] = []
        self.values: list[float] = []
        self._files: list[tuple[int, RunKey, int, int]] = []
        self._owned = 0

    def __len__(self) -> int:
        return len(self.at)

    @property
    def is_full(self) -> bool:
        """Whether the batch is sent without waiting for more."""
        return self.bytes >= BATCH_BYTES or len(self) >= BATCH_ROWS

    def belong_to(self, run: RunKey, rank: int, gen: int) -> None:
        """Say which file the rows are of that were added since the last call."""
        if len(self) > self._owned:
            self._files.append((len(self) - self._owned, run, rank, gen))
            self._owned = len(self)

    def blocks(self) -> list[Block]:
        """Return what is inserted: first the lines, as a value without its line would not be found after a kill."""
        if not self.at:
            return []
        files = [(run, rank, gen, count) for count, run, rank, gen in self._files]
        lines = (
            *(*_same(files), ("at", "UInt64", numbers("UInt64", self.at))),
            ("next", "UInt64", numbers("UInt64", self.next)),
            ("seq", "Int64", numbers("Int64", self.seq)),
            ("session", "UInt32", numbers("UInt32", self.session)),
            ("event", "String", _texts([event.encode() for event in self.event])),
            *((name, "Float64", numbers("Float64", getattr(self, name))) for name in _FLOATS),
            ("line", "String", b"".join(map(text, self.line))),
        )
        lengths = list(map(sub, self.ends, [0, *self.ends]))
        places = list(accumulate((count for *_, count in files), initial=0))
        by_value = [
            (*file[:3], sum(lengths[begin:end]))
            for file, begin, end in zip(files, places, places[1:], strict=False)
        ]
        values = (
            *(*_same(by_value), ("metric", "String", _texts(self.names))),
            ("n", "UInt32", numbers("UInt32", self.ns)),
            ("bad", "UInt32", numbers("UInt32", self.bads)),
            ("at", "UInt64", numbers("UInt64", chain.from_iterable(map(repeat, self.at, lengths)))),
            ("step", "Float64", numbers("Float64", chain.from_iterable(map(repeat, self.step, lengths)))),
            ("value", "Float64", numbers("Float64", self.values)),
        )
        both = (("records", lines, len(self)), ("points", values, len(self.values)))
        return [
            (table, tuple(name for name, _, _ in columns), block_of(columns, count))
            for table, columns, count in both
            if count
        ]


Block = tuple[str, tuple[str, ...], bytes]
"""A table, its columns, and rows for it."""


def _same(files: list[tuple[RunKey, int, int, int]]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the columns that are the same in all rows of a file, each of which has so many."""
    yield "run_id", "String", b"".join(text(run.run_id.encode()) * count for run, _, _, count in files)
    yield "rank", "UInt32", b"".join(numbers("UInt32", [rank]) * count for _, rank, _, count in files)
    yield "gen", "UInt16", b"".join(numbers("UInt16", [gen]) * count for _, _, gen, count in files)
    yield "created", "Date", b"".join(numbers("Date", [run.day]) * count for run, _, _, count in files)


def _texts(values: list[bytes]) -> bytes:
    """Return texts of which few differ, encoded."""
    encoded = {value: text(value) for value in set(values)}
    return b"".join(map(encoded.__getitem__, values))


_FLOATS: Final = ("time", "elapsed", "step", "epoch")


class Sums:
    """What the lines of a file and their values add up to, by the part of the file in which a line begins."""

    def __init__(self) -> None:
        self.parts: dict[int, list[int]] = {}
        """For each part the number and the sum of its lines, and the number and the sum of its values."""
        self._weights = _Weights()

    def add(self, rows: Rows, first: int) -> None:
        """Add the rows from number `first` on; the engine adds up the same in `verify`."""
        while first < len(rows):
            number = rows.at[first] // PART_BYTES
            last = bisect_left(rows.at, (number + 1) * PART_BYTES, first)
            at, ends, begin = rows.at[first:last], rows.ends[first:last], rows.ends[first - 1] if first else 0
            values = slice(begin, ends[-1])
            part = self.parts.setdefault(number, [0, 0, 0, 0])
            part[0] += last - first
            part[1] += sum(map(line_hash, rows.line[first:last])) + AT_WEIGHT * sum(at)
            part[1] += N_WEIGHT * sum(rows.next[first:last])
            part[2] += ends[-1] - begin
            # A value counts as its bits plus what says where it belongs: each column is added up on its own, fast.
            part[3] += sum(array("Q", array("d", rows.values[values]).tobytes()))
            part[3] += sum(map(self._weights.__getitem__, rows.names[values]))
            part[3] += N_WEIGHT * sum(rows.ns[values]) + BAD_WEIGHT * sum(rows.bads[values])
            part[3] += AT_WEIGHT * sum(map(mul, at, map(sub, ends, [begin, *ends])))
            part[1], part[3] = part[1] % _WRAP, part[3] % _WRAP
            first = last


class _Weights(dict[bytes, int]):
    def __missing__(self, name: bytes) -> int:
        return self.setdefault(name, half_md5(name))


def half_md5(data: bytes) -> int:
    """Return what the engine's halfMD5 does."""
    return int.from_bytes(hashlib.md5(data, usedforsecurity=False).digest()[:8], "big")


def line_hash(line: bytes) -> int:
    """Return what LINE_SUM makes of a line, without its place."""
    # Twice as fast as MD5 on most processors.
    return int.from_bytes(hashlib.sha1(line, usedforsecurity=False).digest()[:8], "little")


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
        self.sums = Sums() if position.end == 0 else None
        """Of all lines up to the position; None if reading did not begin at the start."""
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
        before = len(rows)
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
        if self.sums is not None:
            self.sums.add(rows, before)
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
        """Append a line that is too long for a record in pieces, of which only the last ends with a newline."""
        if line.length > LONGEST_LINE:
            raise LineTooLong(f"{self.path.name} has a line of {line.length} bytes at byte {line.offset}")
        data = bytes_of(self.path, line.offset, line.offset + line.length + 1)
        for begin in range(0, line.length, MAX_LINE_BYTES):
            piece = data[begin : min(begin + MAX_LINE_BYTES, line.length)]
            at = line.offset + begin
            is_last = begin + MAX_LINE_BYTES >= line.length
            self._add(rows, at, at + len(piece) + is_last, piece, "", {})
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
        if event in CARRIES_METRICS:
            self._take_values(rows, at, record)
        self.has_files |= event in FILE_EVENTS
        self._add(rows, at, after, line, event, record)

    def _take_values(self, rows: Rows, at: int, record: Record) -> None:
        counters = self.position.counters
        names, ns, bads, values = rows.names, rows.ns, rows.bads, rows.values
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
            names.append(counter.name)
            ns.append(counter.n)
            bads.append(counter.bad)
            values.append(value)

    def _add(self, rows: Rows, at: int, after: int, line: bytes, event: str, record: Record) -> None:
        seq = record.get("seq")
        time, elapsed, step, epoch, session = position_of(record)
        rows.at.append(at)
        rows.next.append(after)
        rows.seq.append(seq if type(seq) is int and -(2**63) <= seq < 2**63 else -1)
        rows.session.append(session)
        rows.event.append(event)
        rows.time.append(time)
        rows.elapsed.append(elapsed)
        rows.step.append(step)
        rows.epoch.append(epoch)
        rows.line.append(line)
        rows.ends.append(len(rows.names))
        self.position.lines += 1


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
