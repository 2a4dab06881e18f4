"""output.log, open for appending, with the time of each line in a second file; at most so many bytes."""

from __future__ import annotations

import errno
import os
import re
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from toolkit.telemetry.runfolder.evidence.output_log import NOTE, ROW, UNKNOWN, lengths_in, packed, times_file
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.safefile import (
    NO_FILE,
    append_all,
    identity_of,
    new_file,
    open_regular,
    open_to_write,
    replace_file,
    write_all,
)

MOST_BYTES: Final = 50_000_000
"""Of the log and its times together."""
_HEAD: Final = 0.2
_TAIL: Final = 0.4
"""Parts of the limit that are kept of the beginning and of the end: the file is written again each time it has grown
from there to the limit, so once for every 20 MB."""
_LONGEST_LINE: Final = 16_000
_BLOCK: Final = 1 << 20
_NOTE_OF_CUT: Final = "[telemetry] {:,} bytes of output were cut here: the first and the last part are kept"
_SAYS_CUT: Final = re.compile(rb"\[telemetry\] ([0-9,]+) bytes of output were cut here: [^\n]*\n")
_LONGEST_NOTE: Final = 200


class Line(NamedTuple):
    """A line of output."""

    time: float
    stream: int
    text: str


class LogFile:
    """Appends lines; one that is not complete yet is at the end of the file, and is overwritten as it changes.

    The file is opened for each call: a script that closes descriptors by their numbers cannot have us write into a
    file of its own, and one that moves or deletes the log gets a new one.
    """

    def __init__(self, path: Path, *, mode: int, session: int, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.identity = NO_FILE
        self._times = times_file(path)
        self._identity_of_times = NO_FILE
        self._mode = mode
        self._session = session
        self._most_bytes = most_bytes
        self._has_begun = False
        self._size = 0
        """Where the next line begins."""
        self._times_size = 0
        self._open_line = b""

    def append(self, lines: Sequence[Line], open_line: str = "") -> None:
        """Write `lines`, and after them the line that is being written, if there is one.

        Raises:
            OSError: the disk took none of them. What it took is taken back; call again.
        """
        encoded = [_encoded(line.text) for line in lines]
        data = b"".join(encoded)
        begun = _encoded(open_line)[:-1] if open_line else b""
        if not data and begun == self._open_line:
            return
        size = self._size + self._times_size
        if size + len(data) > self._most_bytes and size > self._most_bytes * (_HEAD + _TAIL):
            self._cut()
        rows = [
            packed(line.time, len(text), self._session, line.stream)
            for line, text in zip(lines, encoded, strict=True)
        ]
        descriptor = self._open()
        try:
            if self._open_line:
                os.ftruncate(descriptor, self._size)
                self._open_line = b""
            try:
                write_all(descriptor, data + begun)
                if rows:
                    self._append_rows(b"".join(rows))
            except OSError:
                os.ftruncate(descriptor, self._size)
                raise
            self._size += len(data)
            self._open_line = begun
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = open_to_write(self.path, flags, self._mode, known=self.identity)
        try:
            status = os.fstat(descriptor)
            if (
                identity_of(status) != self.identity
                or status.st_size != self._size + len(self._open_line)
                or not self._has_begun
            ):
                self._take_over(descriptor, status)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _take_over(self, descriptor: int, status: os.stat_result) -> None:
        """Continue after what is there: of an earlier session, or of whoever else wrote to the file."""
        self.identity, self._size, self._open_line = identity_of(status), status.st_size, b""
        if self._size and pread(descriptor, 1, self._size - 1) != b"\n":
            # A session that was killed was writing this line.
            write_all(descriptor, b"\n")
            self._size += 1
        self._make_times_fit(descriptor)
        if self._size and not self._has_begun:
            note = _encoded(f"[telemetry] session {self._session} begins")
            write_all(descriptor, note)
            self._size += len(note)
            self._append_rows(packed(time.time(), len(note), self._session, NOTE))
        self._has_begun = True

    def _make_times_fit(self, descriptor: int) -> None:
        """Have a row for every line that is there: a kill may have come between the two files."""
        kept = _contents(self._times)
        rows = kept[: len(kept) // ROW.size * ROW.size]
        covered = sum(lengths_in(rows))
        if covered > self._size or (covered and pread(descriptor, 1, covered - 1) != b"\n"):
            rows, covered = b"", 0
        missing = bytearray()
        begun = 0
        for start in range(covered, self._size, _BLOCK):
            *whole, last = pread(descriptor, min(_BLOCK, self._size - start), start).split(b"\n")
            for text in whole:
                missing += packed(UNKNOWN, begun + len(text) + 1, 0, 0)
                begun = 0
            begun += len(last)
        if missing or rows != kept:
            replace_file(self._times, rows + bytes(missing), mode=self._mode)

    def _append_rows(self, rows: bytes) -> None:
        # Lines whose rows are missing have no times, and get them as unknown by the next session.
        try:
            self._identity_of_times, self._times_size = append_all(
                self._times, rows, mode=self._mode, known=self._identity_of_times, are_lines=False
            )
        except OSError:
            # So that the next call finds which rows are missing.
            self.identity = NO_FILE
            raise

    def _cut(self) -> None:
        """Write the file again without its middle, and say there how much that was."""
        with new_file(self.path, mode=self._mode) as copy:
            rows = self._copy_ends(copy)
            status = os.fstat(copy)
        self.identity, self._size, self._open_line = identity_of(status), status.st_size, b""
        self._times_size = len(rows)
        replace_file(self._times, rows, mode=self._mode)

    def _copy_ends(self, copy: int) -> bytes:
        """Copy the first and the last part of the log, and return their rows."""
        descriptor = self._open()
        try:
            self._make_times_fit(descriptor)
            rows = _contents(self._times)
            # Of both files: lines may be shorter than their rows.
            ends = array("Q", accumulate(length + ROW.size for length in lengths_in(rows)))
            first = bisect_right(ends, self._most_bytes * _HEAD)
            last = max(first, bisect_left(ends, self._size + len(rows) - self._most_bytes * _TAIL) + 1)
            head, tail = (ends[count - 1] - count * ROW.size if count else 0 for count in (first, last))
            said = _SAYS_CUT.match(pread(descriptor, _LONGEST_NOTE, head))
            gone = tail - head + (int(said[1].replace(b",", b"")) - len(said[0]) if said else 0)
            note = _encoded(_NOTE_OF_CUT.format(gone))
            _copy(descriptor, copy, 0, head)
            write_all(copy, note)
            _copy(descriptor, copy, tail, self._size)
        finally:
            os.close(descriptor)
        middle = packed(time.time(), len(note), self._session, NOTE)
        return rows[: first * ROW.size] + middle + rows[last * ROW.size :]


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        block = pread(source, min(_BLOCK, end - start), start)
        if not block:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        write_all(target, block)
        start += len(block)


def _encoded(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    if len(data) > _LONGEST_LINE:
        kept = data[:_LONGEST_LINE].decode("utf-8", "ignore")
        data = f"{kept} … ({len(data) - _LONGEST_LINE:,} more bytes of this line were cut)".encode()
    return data + b"\n"


def _contents(path: Path) -> bytes:
    try:
        with open(open_regular(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
