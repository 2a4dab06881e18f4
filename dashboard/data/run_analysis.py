"""Findings and the time ledger of a run, worked out a slice of its records at a time, then only from new records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from dashboard.data.record_source import RecordSource
from dashboard.data.run_store import TimeSpent
from toolkit.diagnostics.examiner import Examiner
from toolkit.diagnostics.finding import Finding
from toolkit.diagnostics.policy import Policy
from toolkit.runfolder.manifest import Session
from toolkit.runfolder.reader import BadLine, Cursor, lines_of, parse_line
from toolkit.runfolder.records import Record
from toolkit.timing.ledger import LedgerBuilder

_BLOCK_BYTES: Final = 1024 * 1024
_RECORDS_AT_ONCE: Final = 100
"""A millisecond or two of work between two checks of the clock."""


class RunFindings:
    """Runs the detectors over a record file, each record once and in order. Thread-safe.

    Its memory does not grow with the file. A file that was truncated or replaced is examined again.
    """

    def __init__(self, source: RecordSource, policy: Policy | None = None) -> None:
        self.source = source
        self.policy = policy or Policy()
        self._busy = threading.Lock()
        self._slices = RecordSlices(source, take=self._take, restart=self._restart)
        self._examiner = Examiner(self.policy)
        self._found: tuple[Finding, ...] = ()

    def advance(self, wait_s: float) -> float:
        """Examine new records for about `wait_s`, or not while another thread does; return the fraction done."""
        if not self._busy.acquire(blocking=False):
            return self.fraction
        try:
            self._slices.process(wait_s)
            # Replaced as a whole, so that other threads never see a partial result.
            self._found = tuple(self._examiner.findings())
        finally:
            self._busy.release()
        return self.fraction

    @property
    def fraction(self) -> float:
        """The fraction of the file that has been examined."""
        return self._slices.fraction

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far, in the order in which they were noticed."""
        return self._found

    def _take(self, records: Iterator[Record]) -> None:
        self._examiner.take(records)

    def _restart(self) -> None:
        self._examiner = Examiner(self.policy)


class RunLedger:
    """The time ledger of one record file. Thread-safe."""

    def __init__(self, source: RecordSource) -> None:
        self.source = source
        self._busy = threading.Lock()
        self._builder = LedgerBuilder()
        self._slices = RecordSlices(source, take=self._take, restart=self._restart)
        self._spent = TimeSpent(ledger=self._builder.ledger(), fraction=0.0)

    def advance(
        self,
        wait_s: float,
        sessions: Sequence[Session] = (),
        *,
        now: float | None = None,
        last_sign: float | None = None,
    ) -> TimeSpent:
        """Process new records, for at most about `wait_s`, and return the ledger so far.

        `now` is the wall time for a live run, `last_sign` the last heartbeat of one that is not. Returns the previous
        result at once while another thread does this.
        """
        if not self._busy.acquire(blocking=False):
            return self._spent
        try:
            fraction = self._slices.process(wait_s)
            self._spent = TimeSpent(
                ledger=self._builder.ledger(sessions, now, last_sign=last_sign), fraction=fraction
            )
        finally:
            self._busy.release()
        return self._spent

    def _take(self, records: Iterator[Record]) -> None:
        self._builder.take(records)

    def _restart(self) -> None:
        self._builder = LedgerBuilder()


class RecordSlices:
    """Passes the records of a file to `take` in order; calls `restart` if the file was replaced."""

    def __init__(
        self,
        source: RecordSource,
        *,
        take: Callable[[Iterator[Record]], None],
        restart: Callable[[], None],
    ) -> None:
        self.source = source
        self._take = take
        self._restart = restart
        self._cursor = Cursor()
        self._lines: Iterator[tuple[int, bytes]] = iter(())
        self._done_bytes = 0
        # Unknown before the first read, but not zero.
        self._left_bytes = 1

    @property
    def fraction(self) -> float:
        """The fraction of the file that has been processed."""
        whole = self._done_bytes + self._left_bytes
        return self._done_bytes / whole if whole else 1.0

    def process(self, wait_s: float) -> float:
        """Process new records, for at most about `wait_s`; return the fraction of the file that is done."""
        until = time.perf_counter() + wait_s
        while self._rest_of_block(until) and self._next_block(until):
            pass
        return self.fraction

    def _rest_of_block(self, until: float) -> bool:
        """Process the rest of the block; False if the time ran out."""
        while lines := list(islice(self._lines, _RECORDS_AT_ONCE)):
            self._take(_records(lines))
            position, line = lines[-1]
            self._left_bytes -= position + len(line) + 1 - self._done_bytes
            self._done_bytes = position + len(line) + 1
            if time.perf_counter() >= until:
                return False
        return True

    def _next_block(self, until: float) -> bool:
        """Read the next block; False if there is nothing more to process now."""
        try:
            block = self.source.read_block(self._cursor, max_bytes=_BLOCK_BYTES)
        except OSError:
            # The page header shows why the file cannot be read.
            self._left_bytes = 0
            return False
        if block.replaced:
            self._restart()
        moved = block.replaced or block.cursor.offset > self._cursor.offset
        self._cursor = block.cursor
        self._lines = lines_of(block)
        self._done_bytes = block.start if block.data else block.cursor.offset
        # If nothing moved there is only an incomplete line, which is not worth waiting for.
        self._left_bytes = block.cursor.offset - self._done_bytes + (block.pending_bytes if moved else 0)
        # An over-long line is skipped a block at a time.
        return moved and (bool(block.data) or time.perf_counter() < until)


def _records(lines: list[tuple[int, bytes]]) -> Iterator[Record]:
    for position, line in lines:
        found = parse_line(position, line)
        if not isinstance(found, BadLine):
            yield found
