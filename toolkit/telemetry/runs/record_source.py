"""A record file as its readers see it, wherever it is kept: blocks of lines, and single lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.reader import (
    BadLine,
    Block,
    Cursor,
    lines_of,
    parse_line,
    read_block,
)
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.safefile import open_regular

Place = tuple[int, int]
"""Where a line is in its file: its offset, and its length without the newline."""

_PIECE_BYTES: Final = 1024 * 1024
LONGEST: Final = 512
"""Lines that are parsed at once."""


class RecordSource(Protocol):
    """One record file. Two sources are equal if they are the same file of the same store. Thread-safe.

    Offsets are those of the file that the run wrote, also in a copy of it. Every method raises OSError if the file
    cannot be read now.
    """

    @property
    def name(self) -> str:
        """The name of the file, for messages."""

    def read_block(self, cursor: Cursor, *, max_bytes: int) -> Block:
        """Return the complete lines after `cursor`, at most about `max_bytes`, as `reader.read_block` does.

        A copy that lacks lines in between ends before the first missing one.
        """

    def records_in(self, block: Block) -> Iterator[tuple[list[Record], int]]:
        """Yield the records of a block, a few at a time, with the offset after them."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the file up to the last line that is complete now, byte for byte, in pieces of any length."""


class GrowingSource(RecordSource, Protocol):
    """A record file that is read as it grows, and some of its records again."""

    def size(self) -> int:
        """Return how many bytes there are now."""

    def read_records(self, places: Sequence[Place]) -> list[Record | None]:
        """Return the record at each of `places`; None where there is none."""


def records_in(block: Block) -> Iterator[tuple[list[Record], int]]:
    """Yield the records in the lines of a block, a few at a time."""
    all_lines = lines_of(block)
    while lines := list(islice(all_lines, LONGEST)):
        found = [parse_line(position, line) for position, line in lines]
        records = [record for record in found if not isinstance(record, BadLine)]
        yield records, lines[-1][0] + len(lines[-1][1]) + 1


def all_records(source: RecordSource) -> Iterator[Record]:
    """Yield the records that a source has now. Raises OSError if it cannot be read."""
    cursor = Cursor()
    while True:
        block = source.read_block(cursor, max_bytes=_PIECE_BYTES)
        if block.cursor == cursor or (block.replaced and cursor.offset):
            return
        cursor = block.cursor
        for records, _ in source.records_in(block):
            yield from records


def parse_event(line: bytes) -> Record | None:
    """Return the record in a single line, with NaN and infinity restored; None if it is invalid."""
    found = parse_line(0, line.rstrip(b"\n"))
    return None if isinstance(found, BadLine) else with_non_finite(found)


class FileSource(NamedTuple):
    """A record file on a local disk."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    def read_block(self, cursor: Cursor, *, max_bytes: int) -> Block:
        """Return the complete lines after `cursor`."""
        return read_block(self.path, cursor, max_bytes=max_bytes)

    def records_in(self, block: Block) -> Iterator[tuple[list[Record], int]]:
        """Yield the records of a block."""
        return records_in(block)

    def size(self) -> int:
        """Return how many bytes there are now."""
        return os.stat(self.path).st_size

    def read_records(self, places: Sequence[Place]) -> list[Record | None]:
        """Return the record at each of `places`; None where there is none."""
        descriptor = open_regular(self.path)
        try:
            return [parse_event(pread(descriptor, length, start)) for start, length in places]
        finally:
            os.close(descriptor)

    def pieces(self) -> Iterator[bytes]:
        """Yield the file up to its last complete line."""
        descriptor = open_regular(self.path)
        try:
            end = os.fstat(descriptor).st_size
            while end:
                start = max(0, end - _PIECE_BYTES)
                newline = pread(descriptor, end - start, start).rfind(b"\n")
                end = start + newline + 1
                if newline >= 0:
                    break
            at = 0
            while at < end and (piece := pread(descriptor, min(_PIECE_BYTES, end - at), at)):
                at += len(piece)
                yield piece
        finally:
            os.close(descriptor)
