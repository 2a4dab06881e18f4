"""A file of lines, a megabyte at a time, as far as it reached when reading began."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolkit.runfolder.portable import pread
from toolkit.runfolder.reader import BadLine, Block, Cursor, lines_of, parse_line, parse_together, read_block
from toolkit.runfolder.records import MAX_LINE_BYTES, Record
from toolkit.runfolder.safefile import open_regular

_BLOCK_BYTES: Final = 1024 * 1024
"""Some thousand records: parsed, they take a few megabytes."""


class FileReplaced(OSError):  # noqa: N818 - the name says what happened
    """Another file took this one's place while it was being read."""


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the complete lines of `path` in blocks; what is appended meanwhile is left out, so this always ends.

    Raises:
        OSError: the file is missing, unreadable, no regular file, or was replaced.
    """
    cursor = Cursor()
    end = -1
    while cursor.offset != end:
        block = read_block(path, cursor, max_bytes=_BLOCK_BYTES)
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
    together = parse_together(block.data[:-1].split(b"\n"))
    if together is not None:
        return together, int(block.long_line is not None)
    records: list[Record] = []
    bad_lines = int(block.long_line is not None)
    for position, line in lines_of(block):
        found = parse_line(position, line)
        if isinstance(found, BadLine):
            bad_lines += 1
        else:
            records.append(found)
    return records, bad_lines


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of `path`, without its unreadable lines; it raises as `blocks_of` does."""
    for block in blocks_of(path):
        yield from records_in(block)[0]


def unended_line(path: Path, block: Block) -> bytes:
    """Return what `path` has after its last newline, if `block` is its last; empty if longer than any line."""
    if block.cursor.long_line_at is not None:
        return b""
    descriptor = open_regular(path)
    try:
        rest = pread(descriptor, MAX_LINE_BYTES + 1, block.cursor.offset)
    finally:
        os.close(descriptor)
    # Where a newline is in it now, the file grew since, and the line is one that came later.
    return rest if len(rest) <= MAX_LINE_BYTES and b"\n" not in rest else b""
