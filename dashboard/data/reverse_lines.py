"""Whole lines of a file from a place in it towards its beginning, a block at a time."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

from toolkit.runfolder.portable import pread
from toolkit.runfolder.records import MAX_LINE_BYTES

_BLOCK_BYTES: Final = MAX_LINE_BYTES + 64 * 1024
"""Longer than any line that is read: each block but the first of the file holds the beginning of one."""


@dataclass(frozen=True, slots=True)
class Backward:
    """Whole lines, each with its newline, and where in the file they begin; empty where a line is too long."""

    data: bytes
    start: int
    next_end: int
    """Where the lines before these end; 0 where there are none."""


def end_of_lines(descriptor: int, size: int) -> int:
    """Return where the last line that has its newline ends, as far as `size`; 0 where there is none."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = _before_hole(descriptor, start)
    return 0


def _before_hole(descriptor: int, end: int) -> int:
    """Return where the bytes before `end` begin that were never written; `end` where there are none.

    A file of a terabyte may take no room on its disk, and to read that many zeros would take an hour.
    """
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


def lines_before(descriptor: int, end: int) -> Backward:
    """Return the lines that end at `end`, which is where a line ends, some thousand of them.

    A line that is longer than any of ours is passed over.
    """
    start = max(0, end - _BLOCK_BYTES)
    data = pread(descriptor, end - start, start)
    if start == 0:
        return Backward(data, 0, 0)
    # From the middle of a line on nothing can be read: what comes before the first newline is left for the next block.
    first = data.find(b"\n") + 1
    if first < len(data):
        return Backward(data[first:], start + first, start + first)
    return Backward(b"", end, end_of_lines(descriptor, start))
