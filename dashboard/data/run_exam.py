"""What the detectors say about one record file, looked at a slice at a time and then only where it grew."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from toolkit.diagnostics.examiner import Examiner
from toolkit.diagnostics.finding import Finding
from toolkit.diagnostics.policy import Policy
from toolkit.runfolder.reader import BadLine, Cursor, lines_of, parse_line, read_block
from toolkit.runfolder.records import Record

_BLOCK_BYTES: Final = 1024 * 1024
_RECORDS_AT_ONCE: Final = 100
"""Two milliseconds of work between two looks at the clock."""


class RunExam:
    """Shows each record of a file to the detectors once, in its order. Safe to use from several threads.

    What it holds does not grow with the file. A file that was truncated or replaced is examined anew.
    """

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        self.path = path
        self.policy = policy or Policy()
        self._at_work = threading.Lock()
        self._cursor = Cursor()
        self._lines: Iterator[tuple[int, bytes]] = iter(())
        self._examiner = Examiner(self.policy)
        self._done_bytes = 0
        # Until somebody has looked how much there is, something there is.
        self._left_bytes = 1
        self._found: tuple[Finding, ...] = ()

    def look(self, wait_s: float) -> float:
        """Examine what was appended, for at most about `wait_s`; return the part of the file that is done, 0 to 1.

        While another thread is at it, this returns at once.
        """
        if not self._at_work.acquire(blocking=False):
            return self.part
        try:
            until = time.perf_counter() + wait_s
            while self._examine(until) and self._next_block(until):
                pass
            # Made here, and handed out as it is: whoever asks meanwhile finds no half of it.
            self._found = tuple(self._examiner.findings())
        finally:
            self._at_work.release()
        return self.part

    @property
    def part(self) -> float:
        """How much of the file is examined, 0 to 1."""
        whole = self._done_bytes + self._left_bytes
        return self._done_bytes / whole if whole else 1.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found up to the last look, in the order in which it was noticed."""
        return self._found

    def _examine(self, until: float) -> bool:
        """Show the detectors what is left of the block; False where the time was over first."""
        while lines := list(islice(self._lines, _RECORDS_AT_ONCE)):
            self._examiner.take(_records(lines))
            position, line = lines[-1]
            self._left_bytes -= position + len(line) + 1 - self._done_bytes
            self._done_bytes = position + len(line) + 1
            if time.perf_counter() >= until:
                return False
        return True

    def _next_block(self, until: float) -> bool:
        """Read on; False where there is nothing more that could be examined now."""
        try:
            block = read_block(self.path, self._cursor, max_bytes=_BLOCK_BYTES)
        except OSError:
            # Whoever reads the file for the charts says what is wrong with it.
            self._left_bytes = 0
            return False
        if block.replaced:
            self._examiner = Examiner(self.policy)
        moved = block.replaced or block.cursor.offset > self._cursor.offset
        self._cursor = block.cursor
        self._lines = lines_of(block)
        self._done_bytes = block.start if block.data else block.cursor.offset
        # Where nothing moved there is only a line that is being written: it is nothing to wait for.
        self._left_bytes = block.cursor.offset - self._done_bytes + (block.pending_bytes if moved else 0)
        # An over-long line is passed over a block at a time, and shows the detectors nothing that could take its time.
        return moved and (bool(block.data) or time.perf_counter() < until)


def _records(lines: list[tuple[int, bytes]]) -> Iterator[Record]:
    for position, line in lines:
        found = parse_line(position, line)
        if not isinstance(found, BadLine):
            yield found
