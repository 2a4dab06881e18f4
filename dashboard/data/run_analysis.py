"""A record file that is looked at a slice at a time, each record once, and then only where it grew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from toolkit.runfolder.reader import BadLine, Cursor, lines_of, parse_line, read_block
from toolkit.runfolder.records import Record

_BLOCK_BYTES: Final = 1024 * 1024
_RECORDS_AT_ONCE: Final = 100
"""A millisecond or two of work between two looks at the clock."""


class RecordSlices:
    """Hands the records of a file to `take` in their order; `begin_anew` is called where the file is another one."""

    def __init__(
        self, path: Path, *, take: Callable[[Iterator[Record]], None], begin_anew: Callable[[], None]
    ) -> None:
        self.path = path
        self._take = take
        self._begin_anew = begin_anew
        self._cursor = Cursor()
        self._lines: Iterator[tuple[int, bytes]] = iter(())
        self._done_bytes = 0
        # Until somebody has looked how much there is, something there is.
        self._left_bytes = 1

    @property
    def part(self) -> float:
        """How much of the file was handed over, 0 to 1."""
        whole = self._done_bytes + self._left_bytes
        return self._done_bytes / whole if whole else 1.0

    def hand_over(self, wait_s: float) -> float:
        """Hand over what was appended, for at most about `wait_s`; return the part of the file that is done."""
        until = time.perf_counter() + wait_s
        while self._rest_of_block(until) and self._next_block(until):
            pass
        return self.part

    def _rest_of_block(self, until: float) -> bool:
        """Hand over what is left of the block; False where the time was over first."""
        while lines := list(islice(self._lines, _RECORDS_AT_ONCE)):
            self._take(_records(lines))
            position, line = lines[-1]
            self._left_bytes -= position + len(line) + 1 - self._done_bytes
            self._done_bytes = position + len(line) + 1
            if time.perf_counter() >= until:
                return False
        return True

    def _next_block(self, until: float) -> bool:
        """Read on; False where there is nothing more that could be handed over now."""
        try:
            block = read_block(self.path, self._cursor, max_bytes=_BLOCK_BYTES)
        except OSError:
            # Whoever reads the file for the charts says what is wrong with it.
            self._left_bytes = 0
            return False
        if block.replaced:
            self._begin_anew()
        moved = block.replaced or block.cursor.offset > self._cursor.offset
        self._cursor = block.cursor
        self._lines = lines_of(block)
        self._done_bytes = block.start if block.data else block.cursor.offset
        # Where nothing moved there is only a line that is being written: it is nothing to wait for.
        self._left_bytes = block.cursor.offset - self._done_bytes + (block.pending_bytes if moved else 0)
        # An over-long line is passed over a block at a time, and holds no records that could take their time.
        return moved and (bool(block.data) or time.perf_counter() < until)


def _records(lines: list[tuple[int, bytes]]) -> Iterator[Record]:
    for position, line in lines:
        found = parse_line(position, line)
        if not isinstance(found, BadLine):
            yield found
