"""Lines of a record file as rows, from any place in it: the same lines make the same rows however they are cut."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.fleet.commits import Commit
from toolkit.telemetry.fleet.native_form import block_of_rows, types_of
from toolkit.telemetry.runfolder.metrics import CARRIES_METRICS, metrics_of, position_of
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


Block = tuple[str, tuple[str, ...], bytes]
"""A table, its columns, and rows for it."""
_FILE: Final = types_of("run_id String, rank UInt32, gen UInt16, created Date")
_LINE: Final = _FILE | types_of(
    "at UInt64, next UInt64, seq Int64, session UInt32, event String, time Float64, elapsed Float64, step Float64, "
    "epoch Float64, line String"
)
_VALUE: Final = _FILE | types_of("metric String, at UInt64, step Float64, value Float64")


class Rows:
    """Rows of a batch: of lines, and of their values."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lines: list[tuple[Any, ...]] = []
        """By the columns of `_LINE`."""
        self.values: list[tuple[Any, ...]] = []
        """By the columns of `_VALUE`."""

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def is_full(self) -> bool:
        """Whether the batch is sent without waiting for more."""
        return self.bytes >= BATCH_BYTES or len(self) >= BATCH_ROWS

    def blocks(self) -> list[Block]:
        """Return what is inserted: first the lines, as a value without its line would not be found after a kill."""
        return [
            (table, tuple(types), block_of_rows(types, rows))
            for table, types, rows in (("records", _LINE, self.lines), ("points", _VALUE, self.values))
            if rows
        ]


class RecordTail:
    """Reads one record file from a commit on."""

    def __init__(self, path: Path, run: RunKey, commit: Commit) -> None:
        self.path = path
        self.commit = commit
        """How far it was read, and what its bytes up to there add up to."""
        self.has_files = False
        """Whether records pointed to files, until someone asks."""
        self._cursor = Cursor(offset=commit.end)
        self._file = (run.run_id.encode(), commit.rank, commit.gen, run.day)

    @property
    def offset(self) -> int:
        """How far the file was read: beyond the commit while a very long line is passed over."""
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
        self._took(rows, data, at)
        return at

    def _take_long_line(self, rows: Rows, line: BadLine) -> None:
        """Append a line that is too long for a record, as it is."""
        if line.length > LONGEST_LINE:
            raise LineTooLong(f"{self.path.name} has a line of {line.length} bytes at byte {line.offset}")
        data = bytes_of(self.path, line.offset, line.offset + line.length + 1)
        end = line.offset + len(data)
        self._add(rows, line.offset, end, data[:-1], "", {})
        self._took(rows, data, end)

    def _took(self, rows: Rows, data: bytes, end: int) -> None:
        rows.bytes += len(data)
        self.commit = replace(self.commit, end=end, crc=zlib.crc32(data, self.commit.crc))

    def _add_line(self, rows: Rows, at: int, after: int, line: bytes) -> None:
        record = parse_line(at, line)
        event = record.get("event") if type(record) is dict else None
        if type(record) is not dict or not isinstance(event, str):
            event, record = "", {}
        self.has_files |= event in FILE_EVENTS
        self._add(rows, at, after, line, event, record)

    def _add(self, rows: Rows, at: int, after: int, line: bytes, event: str, record: Record) -> None:
        seq = record.get("seq")
        time, elapsed, step, epoch, session = position_of(record)
        number = seq if type(seq) is int and -(2**63) <= seq < 2**63 else -1
        rows.lines.append((*self._file, at, after, number, session, event, time, elapsed, step, epoch, line))
        if event in CARRIES_METRICS:
            run_id, rank, gen, day = self._file
            rows.values += [
                (run_id, rank, gen, day, name, at, step, value) for name, value in metrics_of(record)
            ]


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
