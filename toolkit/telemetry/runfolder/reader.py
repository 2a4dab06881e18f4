"""Reads records from a file that is still being written."""

from __future__ import annotations

import errno
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

from toolkit.telemetry.runfolder.codec import RecordError, decode
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.records import END, MAX_LINE_BYTES, STEP, Record
from toolkit.telemetry.runfolder.safefile import open_regular

_HEAD_BYTES = 256
_BLOCK_BYTES = 64 * 1024
MAX_BAD_LINES_KEPT = 100
_STEPS_WITHIN_BYTES = 512 * 1024


class Identity(NamedTuple):
    """Identifies the file that was read: another file may have the same name later."""

    device: int
    inode: int
    head_length: int
    head_crc: int


class Cursor(NamedTuple):
    """How far a file was read. A plain byte offset is a cursor that does not detect replacement by a longer file."""

    offset: int = 0
    identity: Identity | None = None
    long_line_at: int | None = None
    """Where the over-long line began that is being skipped, or None."""


class BadLine(NamedTuple):
    """A line that could not be read."""

    offset: int
    length: int
    reason: str


class Chunk(NamedTuple):
    """What one read found."""

    records: list[Record]
    cursor: Cursor
    bad_count: int
    bad_lines: tuple[BadLine, ...]
    """The first hundred of them; `bad_count` counts all."""
    replaced: bool
    """The file was truncated or replaced since the cursor was made, and was read again from its start."""
    pending_bytes: int
    """Bytes after the cursor: a line that is still being written, or more than one read takes."""


class Block(NamedTuple):
    """Complete lines as raw bytes, for readers that parse many at once."""

    data: bytes
    """Whole lines, each with its newline; empty if there is nothing new."""
    start: int
    """Where in the file `data` begins."""
    cursor: Cursor
    long_line: BadLine | None = None
    """An over-long line that ended before `data` and was skipped."""
    replaced: bool = False
    """The file was truncated or replaced since the cursor was made, and is read again from its start."""
    pending_bytes: int = 0
    """Bytes after the cursor: a line that is still being written, or more than one read takes."""


def read_block(path: Path, cursor: Cursor | int = 0, *, max_bytes: int = 16 * 1024 * 1024) -> Block:
    """Read the complete lines of `path` after `cursor` without parsing them, at most about `max_bytes`.

    A last line without its newline is still being written; it is left for the next call. A line of over 1 MiB that does
    not end within what was read is skipped without being held in memory.

    Raises:
        OSError: the file is missing, unreadable, or no regular file.
    """
    if isinstance(cursor, int):
        cursor = Cursor(cursor)
    descriptor = open_regular(path)
    try:
        status = os.fstat(descriptor)
        replaced = not _is_the_same(descriptor, status, cursor)
        if replaced:
            cursor = Cursor()
        cursor = cursor._replace(identity=_identity(descriptor, status, cursor.identity))
        if cursor.long_line_at is not None:
            cursor = cursor._replace(offset=_after_hole(descriptor, cursor.offset, status.st_size))
        data = _pread(descriptor, max_bytes, cursor.offset)
        if len(data) == max_bytes <= MAX_LINE_BYTES and b"\n" not in data:
            # The longest line that is one needs more.
            data = _pread(descriptor, MAX_LINE_BYTES + 1, cursor.offset)
    finally:
        os.close(descriptor)
    block = cut_block(data, cursor)
    return block._replace(replaced=replaced, pending_bytes=max(0, status.st_size - block.cursor.offset))


def cut_block(data: bytes, cursor: Cursor) -> Block:
    """Return the complete lines in `data`, which begins at `cursor`; it does not say whether there is more."""
    at = cursor.offset
    start = 0
    long_line = None
    began = cursor.long_line_at
    if began is not None:
        newline = data.find(b"\n")
        if newline < 0:
            cursor = cursor._replace(offset=at + len(data))
            return Block(data=b"", start=cursor.offset, cursor=cursor)
        long_line = _too_long(began, at + newline - began)
        start = newline + 1
    # Only the newline byte ends a record: str.splitlines would also cut at U+2028 and its kind.
    end = max(start, data.rfind(b"\n", start) + 1)
    left = len(data) - end
    if left > MAX_LINE_BYTES:
        cursor = cursor._replace(offset=at + len(data), long_line_at=at + end)
    else:
        cursor = cursor._replace(offset=at + end, long_line_at=None)
    return Block(data=data[start:end], start=at + start, cursor=cursor, long_line=long_line)


def _too_long(offset: int, length: int) -> BadLine:
    return BadLine(offset, length, f"longer than {MAX_LINE_BYTES} bytes")


def read_from(path: Path, cursor: Cursor | int = 0, *, max_bytes: int = 16 * 1024 * 1024) -> Chunk:
    """Read the complete lines of `path` after `cursor`, at most about `max_bytes` of them.

    A last line without its newline is still being written; it is left for the next call. An unreadable line is
    counted and its position kept. A line of over 1 MiB is skipped without being held in memory, and counted.

    Raises:
        OSError: the file is missing, unreadable, or no regular file.
    """
    block = read_block(path, cursor, max_bytes=max_bytes)
    records, bad = _parsed(block)
    return Chunk(
        records=records,
        cursor=block.cursor,
        bad_count=len(bad),
        bad_lines=tuple(bad[:MAX_BAD_LINES_KEPT]),
        replaced=block.replaced,
        pending_bytes=block.pending_bytes,
    )


def _parsed(block: Block) -> tuple[list[Record], list[BadLine]]:
    """Return the records of `block`, and its lines that could not be read."""
    records: list[Record] = []
    bad = [block.long_line] if block.long_line is not None else []
    for at, line in lines_of(block):
        found = parse_line(at, line)
        if isinstance(found, BadLine):
            bad.append(found)
        else:
            records.append(found)
    return records, bad


def lines_of(block: Block) -> Iterator[tuple[int, bytes]]:
    """Yield each line of `block`, without its newline, and where in the file it begins; empty ones are left out."""
    position = block.start
    for line in block.data[:-1].split(b"\n"):
        # A writer that found a torn line ended it with a newline, so an empty line is not a fault.
        if line:
            yield position, line
        position += len(line) + 1


def parse_line(position: int, line: bytes) -> Record | BadLine:
    """Return the record in `line`, or what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        return _too_long(position, len(line))
    try:
        return decode(line)
    except RecordError as error:
        return BadLine(position, len(line), str(error))


def _is_the_same(descriptor: int, status: os.stat_result, cursor: Cursor) -> bool:
    if status.st_size < cursor.offset:
        return False
    if cursor.offset and cursor.long_line_at is None and _pread(descriptor, 1, cursor.offset - 1) != b"\n":
        return False
    known = cursor.identity
    if known is None:
        return True
    if (status.st_dev, status.st_ino) != (known.device, known.inode):
        return False
    return zlib.crc32(_pread(descriptor, known.head_length, 0)) == known.head_crc


def _identity(descriptor: int, status: os.stat_result, known: Identity | None) -> Identity:
    if known is not None and known.head_length == _HEAD_BYTES:
        return known
    head = _pread(descriptor, _HEAD_BYTES, 0)
    return Identity(status.st_dev, status.st_ino, len(head), zlib.crc32(head))


def _after_hole(descriptor: int, offset: int, end: int) -> int:
    """Return where the next written byte is, else `end`: reading a terabyte of zeros would take an hour."""
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None or offset >= end:
        return offset
    try:
        return min(os.lseek(descriptor, offset, seek_data), end)
    except OSError as error:
        return end if error.errno == errno.ENXIO else offset


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    parts = []
    while length > 0:
        part = pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def tail_lines(path: Path, within_bytes: int) -> list[bytes]:
    """Return the lines that begin within the last `within_bytes` of `path`; the last one may be unfinished.

    Raises:
        OSError: the file is missing, unreadable, or no regular file.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        # A line begins at the offset only if the byte before it ends one.
        start = max(0, size - within_bytes - 1)
        lines = _pread(descriptor, size - start, start).split(b"\n")
    finally:
        os.close(descriptor)
    return lines[1:] if start else lines


def tail_records(path: Path, within_bytes: int) -> list[Record]:
    """Return the readable records among the lines that `tail_lines` returns, in their order."""
    found = (parse_line(0, line) for line in tail_lines(path, within_bytes) if line)
    return [record for record in found if not isinstance(record, BadLine)]


def tail_cursor(path: Path, within_bytes: int) -> Cursor:
    """Return where the first of these lines begins: an offset in the middle of a line is no cursor."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        at = start = max(0, size - within_bytes)
        if not start:
            return Cursor()
        at -= 1
        while block := _pread(descriptor, _BLOCK_BYTES, at):
            newline = block.find(b"\n")
            if newline >= 0:
                return Cursor(at + newline + 1)
            at = _after_hole(descriptor, at + len(block), size)
        return Cursor(at, long_line_at=start)
    finally:
        os.close(descriptor)


def last_record(path: Path, *, within_bytes: int = 8 * 1024 * 1024) -> Record | None:
    """Return the last readable record of `path` that has a `seq`, looking at most `within_bytes` back."""
    within = min(_BLOCK_BYTES, within_bytes)
    while True:
        for line in reversed(tail_lines(path, within)):
            record = _record_with_seq(line)
            if record is not None:
                return record
        if within >= within_bytes:
            return None
        within = min(within * 8, within_bytes)


def last_seq(path: Path) -> int:
    """Return the `seq` of the last record of `path`; -1 without one."""
    try:
        record = last_record(path)
    except FileNotFoundError:
        return -1
    return -1 if record is None else record["seq"]


def last_end(newest_first: Iterable[Record], session: int) -> Record | None:
    """Return the end record of `session`; None if the session has not ended."""
    for record in newest_first:
        if record.get("event") in (END, STEP):
            return record if record["event"] == END and record.get("session") == session else None
    return None


def last_step(path: Path) -> int | None:
    """Return how far a run is by the records at the end of `path`; None where no record there has a `global_step`.

    Raises:
        OSError: the file is missing, unreadable, or no regular file.
    """
    return reduce(step_after, tail_records(path, _STEPS_WITHIN_BYTES), None)


def step_after(step: int | None, record: Record) -> int | None:
    """Return how far a run is that was at `step` before `record`: an evaluation may have the number of its epoch."""
    found = record.get("global_step")
    is_further = type(found) is int and (step is None or record.get("event") == STEP or found > step)
    return found if is_further else step


def offset_after(path: Path, value: int, *, field: str = "seq") -> int:
    """Return a byte offset from which on `path` holds the records whose `seq` is greater than `value`, and only these.

    `seq` only grows along a file, so this is a search by halves and reads a few lines of any file. The same goes for
    `session`, the other `field` that can be asked for.
    """
    descriptor = open_regular(path)
    try:
        low, high = 0, os.fstat(descriptor).st_size
        while low < high:
            middle = (low + high) // 2
            found = _first_record_at(descriptor, middle, high, field)
            if found is None or found[0] > value:
                high = middle
            else:
                low = found[1]
        return low
    finally:
        os.close(descriptor)


def _first_record_at(descriptor: int, offset: int, end: int, field: str) -> tuple[int, int] | None:
    """Return `field` and the end of the first readable record that begins at `offset` or after it, before `end`."""
    for position, line in _lines_between(descriptor, offset, end):
        record = _record_with_seq(line)
        if record is not None and type(record.get(field)) is int:
            return record[field], position + len(line) + 1
    return None


def _lines_between(descriptor: int, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines that begin between `offset` and `end`, with their positions; not the over-long ones."""
    # A line begins at the offset only if the byte before it ends one.
    at = max(0, offset - 1)
    passing_over = offset > 0
    rest = b""
    while at < end and (block := _pread(descriptor, _BLOCK_BYTES, at + len(rest))):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if at >= end:
                return
            if not passing_over and len(line) <= MAX_LINE_BYTES:
                yield at, line
            passing_over = False
            at += len(line) + 1
        if passing_over or len(rest) > MAX_LINE_BYTES:
            passing_over = True
            at = _after_hole(descriptor, at + len(rest), end)
            rest = b""


def _record_with_seq(line: bytes) -> Record | None:
    # Most unreadable lines are recognised without parsing.
    if b'"seq"' not in line:
        return None
    try:
        record = decode(line)
    except RecordError:
        return None
    return record if type(record.get("seq")) is int else None


_READ_AT_ONCE: Final = 1024 * 1024
"""Some thousand records: parsed, they take a few megabytes."""


# ------------------------------------------------------------ a whole file


class FileReplaced(OSError):  # noqa: N818 - the name says what happened
    """Another file took this one's place while it was being read."""


def blocks_of(path: Path, *, max_bytes: int = _READ_AT_ONCE) -> Iterator[Block]:
    """Yield the complete lines of `path` in blocks; what is appended meanwhile is left out, so this always ends.

    Raises:
        OSError: the file is missing, unreadable, no regular file, or was replaced.
    """
    cursor = Cursor()
    end = -1
    while cursor.offset != end:
        block = read_block(path, cursor, max_bytes=max_bytes)
        if block.replaced:
            raise FileReplaced(f"{path.name} was replaced while it was being read")
        if end < 0:
            end = block.cursor.offset + block.pending_bytes
        has_moved = block.cursor.offset != cursor.offset
        cursor = block.cursor
        yield block
        if not has_moved or cursor.offset > end:
            return


def records_in(block: Block) -> tuple[list[Record], int]:
    """Return the records of `block`, and the number of its unreadable lines."""
    records, bad = _parsed(block)
    return records, len(bad)


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of `path`, without its unreadable lines; it raises as `blocks_of` does."""
    for block in blocks_of(path):
        yield from records_in(block)[0]


# ------------------------------------------------------------ several followers of one file

# No lock: a process that is forked while another thread holds one could never read again. Each of these calls is one
# step for the interpreter.
_latest: Final[deque[tuple[Path, Cursor, Chunk]]] = deque(maxlen=2)


def read_shared(path: Path, cursor: Cursor, *, max_bytes: int) -> Chunk:
    """Return what `read_from` does; if another follower has just read the same part, it is not parsed again.

    The records belong to all followers: none may change them. There may be more in the file than was read the first
    time, as if this call had come earlier.
    """
    for known_path, known_cursor, chunk in list(_latest):
        if known_cursor == cursor and known_path == path:
            return chunk
    chunk = read_from(path, cursor, max_bytes=max_bytes)
    # A line that could not be read may come back, and is looked at again.
    if chunk.records and not chunk.bad_count and not chunk.replaced:
        _latest.append((path, cursor, chunk))
    return chunk
