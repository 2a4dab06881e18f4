"""Reads whole lines of a file backwards, a block at a time."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

from toolkit.runfolder.portable import pread
from toolkit.runfolder.records import MAX_LINE_BYTES

_BLOCK_BYTES: Final = MAX_LINE_BYTES + 64 * 1024
"""Longer than any line that is read, so each block but the first of the file contains the start of a line."""


@dataclass(frozen=True, slots=True)
class LinesBefore:
    """Whole lines, each with its newline, and their offset in the file; empty if a line is too long."""

    data: bytes
    start: int
    next_end: int
    """Where the preceding lines end; 0 if there are none."""


def end_of_lines(descriptor: int, size: int) -> int:
    """Return the end of the last complete line before `size`; 0 if there is none."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = _before_hole(descriptor, start)
    return 0


def _before_hole(descriptor: int, end: int) -> int:
    """Return the start of a hole that ends at `end`, else `end`: reading a terabyte of zeros would take an hour."""
    seek_data = getattr(os, "SEEK_DATA", None)
    step = _BLOCK_BYTES
    while seek_data is not None and end > 0:
        start = max(0, end - step)
        try:
            written = os.lseek(descriptor, start, seek_data)
        except OSError as error:
            if error.errno != errno.ENXIO:
                return end
            written = end
        if written >= end:
            end = start
            step *= 2
        elif step > _BLOCK_BYTES:
            step = _BLOCK_BYTES
        else:
            return end
    return end


def lines_before(descriptor: int, end: int) -> LinesBefore:
    """Return a block of lines that ends at `end`, the end of a line. Over-long lines are skipped."""
    start = max(0, end - _BLOCK_BYTES)
    data = pread(descriptor, end - start, start)
    if start == 0:
        return LinesBefore(data, 0, 0)
    # The block starts in the middle of a line, which is left for the next block.
    first = data.find(b"\n") + 1
    if first < len(data):
        return LinesBefore(data[first:], start + first, start + first)
    return LinesBefore(b"", end, end_of_lines(descriptor, start))
