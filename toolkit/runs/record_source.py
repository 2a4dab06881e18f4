"""A record file as its readers see it, wherever it is kept: blocks of lines in both directions, and single lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from toolkit.runfolder.portable import pread
from toolkit.runfolder.reader import Block, Cursor, RecordFile
from toolkit.runfolder.records import MAX_LINE_BYTES
from toolkit.runfolder.safefile import open_regular
from toolkit.runs.reverse_lines import LinesBefore, end_of_lines, lines_before

Place = tuple[int, int]
"""Where a line is in its file: its offset, and its length without the newline."""

_PIECE_BYTES: Final = 1024 * 1024
_GAP_BYTES: Final = 16 * 1024
"""Reading so much too much is quicker than reading twice."""


class RecordSource(Protocol):
    """One record file. Two sources are equal if they are the same file of the same store. Thread-safe.

    Offsets are those of the file that the run wrote, also in a copy of it. Every method raises OSError if the file
    cannot be read now.
    """

    @property
    def name(self) -> str:
        """The name of the file, for messages."""

    def read_block(self, cursor: Cursor, *, max_bytes: int) -> Block:
        """Return the complete lines behind `cursor`, at most about `max_bytes`, as `reader.read_block` does.

        A copy that lacks lines in between ends before the first missing one.
        """

    def end(self) -> Cursor:
        """Return a cursor behind the last complete line."""

    def read_before(self, end: int) -> LinesBefore:
        """Return a block of complete lines that ends at `end`, which is 0 or the end of a line."""

    def read_at(self, places: Sequence[Place]) -> list[bytes]:
        """Return what is at each of `places`, in their order; less, or nothing, where the file is shorter."""

    def line_at(self, start: int) -> bytes | None:
        """Return the complete line that begins at `start`, without its newline; None if none begins there."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the file up to the last line that is complete now, byte for byte, in pieces of any length."""


class FileSource(RecordFile):
    """A record file on a local disk."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    def end(self) -> Cursor:
        """Return a cursor behind the last complete line."""
        descriptor = open_regular(self.path)
        try:
            end = end_of_lines(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        # The first block identifies the file, so that a replacement is noticed.
        first = self.read_block(Cursor(), max_bytes=1)
        return replace(first.cursor, offset=end, long_line_at=None)

    def read_before(self, end: int) -> LinesBefore:
        """Return a block of complete lines that ends at `end`."""
        descriptor = open_regular(self.path)
        try:
            return lines_before(descriptor, end)
        finally:
            os.close(descriptor)

    def read_at(self, places: Sequence[Place]) -> list[bytes]:
        """Return what is at each of `places`; neighbours are read together."""
        found: list[bytes] = []
        descriptor = open_regular(self.path)
        try:
            at = 0
            while at < len(places):
                first, length = places[at]
                end, stop = first + length, at + 1
                while stop < len(places) and 0 <= places[stop][0] - end <= _GAP_BYTES:
                    if sum(places[stop]) - first > _PIECE_BYTES:
                        break
                    end, stop = sum(places[stop]), stop + 1
                data = pread(descriptor, end - first, first)
                found.extend(data[start - first : start - first + size] for start, size in places[at:stop])
                at = stop
        finally:
            os.close(descriptor)
        return found

    def line_at(self, start: int) -> bytes | None:
        """Return the complete line that begins at `start`."""
        if not 0 <= start < 2**62:
            return None
        descriptor = open_regular(self.path)
        try:
            # Check that the byte before it ends a line: elsewhere, text inside a record may look like a record.
            data = pread(descriptor, MAX_LINE_BYTES + 2, max(0, start - 1))
        finally:
            os.close(descriptor)
        if start:
            if not data.startswith(b"\n"):
                return None
            data = data[1:]
        line, newline, _ = data.partition(b"\n")
        return line if newline else None

    def pieces(self) -> Iterator[bytes]:
        """Yield the file up to its last complete line."""
        descriptor = open_regular(self.path)
        try:
            end = end_of_lines(descriptor, os.fstat(descriptor).st_size)
            at = 0
            while at < end and (piece := pread(descriptor, min(_PIECE_BYTES, end - at), at)):
                at += len(piece)
                yield piece
        finally:
            os.close(descriptor)
