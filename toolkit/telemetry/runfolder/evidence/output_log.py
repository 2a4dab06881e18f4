"""Reads output.log, what a run printed, with the times of its lines from the file next to it.

Both are read as far as they go: without the side file, or where the two do not fit, lines have no times.
"""

from __future__ import annotations

import math
import os
import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from toolkit.telemetry.runfolder.layout import METRICS_JSONL, OUTPUT_LOG, RANKS, output_file
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.safefile import NO_FILE, NotInside, identity_of, open_inside
from toolkit.telemetry.runfolder.untrusted import clean

STDOUT, STDERR, OTHER, NOTE = range(4)
STREAMS: Final = ("stdout", "stderr", "other", "note")
"""`other`: C code and child processes. `note`: telemetry itself, about the log."""
UNKNOWN: Final = math.nan
"""The time of a line whose time is not known."""
ROW: Final = struct.Struct("<dHH")
"""Of each line: its time, its bytes with the newline, and 4 · session + stream."""
TAKEN_UP_S: Final = 1.0
"""How often what was printed is taken up, which is when a line gets its time."""
_BLOCK: Final = 1 << 20
_MOST_SESSIONS: Final = (1 << 14) - 1
_MOST_BYTES: Final = 1 << 26
_MOST_SHOWN: Final = 100_000
_MOST_LINES: Final = 5_000_000
"""More than telemetry's own logs have."""


class OutputLine(NamedTuple):
    """One line of output."""

    number: int
    """From 0 on; of a log that was cut, counted in what is left."""
    text: str
    time: float | None = None
    stream: str | None = None
    session: int | None = None


def times_file(path: Path) -> Path:
    """Return the side file of a log."""
    return path.with_suffix(".times")


def packed(time: float, length: int, session: int, stream: int) -> bytes:
    """Return the row of a line."""
    return ROW.pack(time, min(length, 0xFFFF), 4 * min(session, _MOST_SESSIONS) + stream)


def lengths_in(rows: bytes) -> array[int]:
    """Return the lengths of the lines that have `rows`."""
    return _shorts(rows)[4::6]


def _shorts(rows: bytes) -> array[int]:
    found = array("H")
    found.frombytes(rows[: len(rows) // ROW.size * ROW.size])
    if sys.byteorder == "big":
        found.byteswap()
    return found


class OutputLog:
    """The output of one rank of a run, as it is now; `close` it."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.problem: str | None = None
        """Why there is no output, or no times, as a sentence."""
        self.path = output_file(folder, rank)
        self._descriptor: int | None = None
        self._rows = b""
        self._size = 0
        self._begin = 0
        """Where the first line that is shown begins."""
        self._ends: array[int] = array("Q")
        """Where each line ends."""
        self.count = 0
        """How many lines it has; the last one may still be being written."""
        self.is_last_open = False
        """Whether it is."""
        self.identity = NO_FILE
        """Another one later means that the log was cut, or made again: its lines have other numbers."""
        try:
            self._descriptor = open_inside(folder, self.path.relative_to(folder).as_posix())
            status = os.fstat(self._descriptor)
            self._size, self.identity = status.st_size, identity_of(status)
        except (NotInside, OSError) as error:
            is_missing = isinstance(error, FileNotFoundError) or getattr(error, "is_missing", False)
            self.problem = (
                self._why_missing(folder, rank) if is_missing else f"{self.path} cannot be read: {error}."
            )
            return
        self._read_times(folder)

    @property
    def exists(self) -> bool:
        """Whether there is a log."""
        return self._descriptor is not None

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> OutputLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self, start: int, stop: int) -> list[OutputLine]:
        """Return the lines from number `start` to before `stop`."""
        start, stop = max(0, start), min(stop, self.count)
        if start >= stop:
            return []
        texts = self._read(start, stop).split(b"\n")
        return [self._line(number, text) for number, text in zip(range(start, stop), texts, strict=False)]

    def offset_of(self, number: int) -> int:
        """Return where in the file a line begins."""
        return self._ends[number - 1] if number else self._begin

    def tail(self, count: int) -> list[OutputLine]:
        """Return the last `count` lines."""
        return self.lines(self.count - count, self.count)

    def at_time(self, time: float) -> int:
        """Return the number of the first line of that time or later; times are taken to rise."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            at = middle
            # Lines of unknown time count as those before them.
            while at > low and not self._time(at) >= 0.0:
                at -= 1
            if self._time(at) >= time:
                high = middle
            else:
                low = middle + 1
        return low

    def around(self, time: float) -> int:
        """Return the number of the line that was printed at about that time.

        What is printed in a second gets the time of its end: of such lines it is the one at the same part of them.
        """
        first = self.at_time(time)
        ended = self._time(first)
        if not math.isfinite(ended):
            return first
        began = max(ended - TAKEN_UP_S, self._time(first - 1) if first else 0.0)
        part = (time - began) / (ended - began) if ended > began else 0.0
        return first + int(max(0.0, part) * (self.at_time(math.nextafter(ended, math.inf)) - 1 - first))

    def newest_first(self, upto: int | None = None) -> Iterator[OutputLine]:
        """Yield the lines from before the line `upto` back to the first, reading a megabyte at a time."""
        for start, stop in self._blocks(upto):
            yield from reversed(self.lines(start, stop))

    def find(self, text: str, streams: Collection[str] = (), *, upto: int | None = None) -> Iterator[int]:
        """Yield the numbers of the lines that contain `text`, newest first; in any case, as far as that is ASCII.

        With `streams`, only lines of these. Ten times as fast as looking at each line.
        """
        wanted = text.encode("utf-8", "replace").lower()
        chosen = {STREAMS.index(name) for name in streams if name in STREAMS}
        where = _shorts(self._rows)[5::6]
        for start, stop in self._blocks(upto):
            found: list[int] = []
            if wanted:
                data = self._read(start, stop).lower()
                at, number, counted = data.find(wanted), start, 0
                while at >= 0:
                    number += data.count(b"\n", counted, at)
                    found.append(number)
                    # On with the next line.
                    counted = data.find(b"\n", at)
                    at = data.find(wanted, counted) if counted >= 0 else -1
            else:
                found.extend(range(start, stop))
            for number in reversed(found):
                if not chosen or (number < len(where) and where[number] % 4 in chosen):
                    yield number

    def _blocks(self, upto: int | None) -> Iterator[tuple[int, int]]:
        """Yield the first line and the one after the last of pieces of about a megabyte, newest first."""
        stop = self.count if upto is None else min(upto, self.count)
        while stop > 0:
            start = min(stop - 1, bisect_right(self._ends, max(0, self._ends[stop - 1] - _BLOCK)))
            yield start, stop
            stop = start

    def _read(self, start: int, stop: int) -> bytes:
        if self._descriptor is None:
            return b""
        begin = self.offset_of(start)
        return pread(self._descriptor, self._ends[stop - 1] - begin, begin)

    def _line(self, number: int, text: bytes) -> OutputLine:
        # A hole in a sparse file is a line of millions of zeros.
        shown = text[:_MOST_SHOWN].decode("utf-8", "replace")
        shown = shown if shown.isprintable() else clean(shown)
        if (number + 1) * ROW.size > len(self._rows):
            return OutputLine(number, shown)
        time, _, where = ROW.unpack_from(self._rows, number * ROW.size)
        return OutputLine(
            number, shown, time if 0.0 < time < 1e11 else None, STREAMS[where % 4], where // 4 or None
        )

    def _time(self, number: int) -> float:
        if (number + 1) * ROW.size > len(self._rows):
            return math.inf
        return float(ROW.unpack_from(self._rows, number * ROW.size)[0])

    def _read_times(self, folder: Path) -> None:
        times = times_file(self.path)
        try:
            descriptor = open_inside(folder, times.relative_to(folder).as_posix())
            try:
                size = min(os.fstat(descriptor).st_size, _MOST_LINES * ROW.size)
                self._rows = pread(descriptor, size, 0)
            finally:
                os.close(descriptor)
        except (NotInside, OSError) as error:
            self.problem = f"The lines have no times: {times.name} cannot be read ({error})."
        lengths = lengths_in(self._rows)
        self._ends = array("Q", accumulate(lengths))
        if 0 in lengths or not self._fits():
            self.problem = f"The lines have no times: {times.name} does not fit {self.path.name}."
            self._rows, self._ends = b"", array("Q")
        self._find_other_ends()
        self.count = len(self._ends)
        self.is_last_open = self._size > 0 and self._byte(self._size - 1) != b"\n"

    def _byte(self, at: int) -> bytes:
        assert self._descriptor is not None
        return pread(self._descriptor, 1, at)

    def _fits(self) -> bool:
        """Return whether the lines end where the rows say, as far as a few of them show."""
        if self._ends and self._ends[-1] > self._size:
            return False
        every = max(1, len(self._ends) // 64)
        return all(self._byte(end - 1) == b"\n" for end in (*self._ends[::every], *self._ends[-1:]))

    def _find_other_ends(self) -> None:
        """Find the lines whose rows are not written yet, and the one that is being written."""
        assert self._descriptor is not None
        at = self._ends[-1] if self._ends else 0
        if self._size - at > _MOST_BYTES:
            self._rows, self._ends, self._begin = b"", array("Q"), self._size - _MOST_BYTES
            at = self._begin
        while at < self._size:
            data = pread(self._descriptor, min(_BLOCK, self._size - at), at)
            if not data:
                # It became shorter.
                self._size = at
            self._ends.extend(at + found.end() for found in re.finditer(b"\n", data))
            at += len(data)
            if (beyond := len(self._ends) - _MOST_LINES) > 0:
                self._rows, self._begin, self._ends = b"", self._ends[beyond - 1], self._ends[beyond:]
        if self._begin:
            self.problem = (
                f"{self.path.name} is far larger than telemetry makes it: "
                f"its first {self._begin:,} bytes are not read."
            )
        if self._size > (self._ends[-1] if self._ends else self._begin):
            self._ends.append(self._size)

    def _why_missing(self, folder: Path, rank: int) -> str:
        if rank and not (folder / RANKS / f"{rank:05d}.jsonl").is_file():
            return f"Rank {rank} wrote nothing in {folder}: with `ranks: all` every rank does."
        if not (folder / METRICS_JSONL).is_file():
            return f"{folder} has no {OUTPUT_LOG}: only runs of telemetry's own logger keep what they print."
        return (
            f"{folder} has no {self.path.name}: it was made with `output: false`, by a version that did not keep the "
            "output, or nothing was printed."
        )
