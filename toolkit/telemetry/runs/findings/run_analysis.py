"""Findings and the time ledger of a run, worked out a slice of its records at a time, then only from new records."""

from __future__ import annotations

import functools
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import toolkit.telemetry.diagnostics
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.policy import Policy
from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.runfolder.reader import Cursor
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.record_source import FileSource, RecordSource
from toolkit.telemetry.runs.store import TimeSpent
from toolkit.telemetry.timing.ledger import LedgerBuilder

_BLOCK_BYTES: Final = 1024 * 1024
_MIN_SAVED_BYTES: Final = 1024 * 1024
"""The findings of a shorter file are there at once."""
_SAVE_EVERY_S: Final = 30.0


class RunFindings:
    """Runs the detectors over a record file, each record once and in order. Thread-safe.

    Its memory does not grow with the file. A file that was truncated or replaced is examined again.
    """

    def __init__(
        self, source: RecordSource, policy: Policy | None = None, cache: ColumnCache | None = None
    ) -> None:
        """Keep the findings of a local file in `cache`, for this version of the detectors and this policy."""
        self.source = source
        self.policy = policy or Policy()
        self._kept_in = (cache, source.path) if cache is not None and isinstance(source, FileSource) else None
        self._is_opened = False
        self._saved_offset = 0
        self._saved_at = -math.inf
        self._busy = threading.Lock()
        self._slices = RecordSlices(source, take=self._examine, restart=self._restart)
        self._examiner = Examiner(self.policy)
        self._found: tuple[Finding, ...] = ()
        self._unchanged: Cursor | None = None
        """The end of the file when its findings were saved, until it has grown."""

    def advance(self, wait_s: float) -> float:
        """Examine new records for about `wait_s`, or not while another thread does; return the fraction done."""
        if not self._busy.acquire(blocking=False):
            return self.fraction
        try:
            if self._opens_saved():
                return 1.0
            fraction = self._slices.process(wait_s)
            # While a file that has grown is examined again, the saved findings stay.
            if fraction >= 1.0 or not self._saved_offset:
                # Replaced as a whole, so that other threads never see a partial result.
                self._found = tuple(self._examiner.findings())
            if fraction >= 1.0:
                self._save()
        finally:
            self._busy.release()
        return self.fraction

    @property
    def fraction(self) -> float:
        """The fraction of the file that has been examined."""
        return self._slices.fraction if self._unchanged is None else 1.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far, in the order in which they were noticed."""
        return self._found

    def _opens_saved(self) -> bool:
        """Return whether the file is still as it was when its findings were saved."""
        if not self._is_opened:
            self._is_opened = True
            if self._kept_in is not None:
                cache, log = self._kept_in
                saved = cache.load_findings(log, self._version)
                if saved is not None:
                    self._found, self._unchanged = tuple(saved[0]), saved[1]
                    self._saved_offset = saved[1].offset
        if self._unchanged is None:
            return False
        try:
            block = self.source.read_block(self._unchanged, max_bytes=1)
            if block.cursor == self._unchanged and not block.replaced:
                return True
        except OSError:
            pass
        self._unchanged = None
        return False

    def _save(self) -> None:
        cursor = self._slices.cursor
        is_new = cursor.offset != self._saved_offset and cursor.offset >= _MIN_SAVED_BYTES
        if self._kept_in is not None and is_new and time.monotonic() - self._saved_at >= _SAVE_EVERY_S:
            self._saved_at, self._saved_offset = time.monotonic(), cursor.offset
            cache, log = self._kept_in
            cache.save_findings(log, self._version, self._found, cursor)

    @property
    def _version(self) -> str:
        policy = self.policy
        return f"{_version_of_detectors()} {sorted(policy.severities.items())} {policy.rules or ''}"

    def _examine(self, records: Sequence[Record]) -> None:
        self._examiner.take(records)

    def _restart(self) -> None:
        self._examiner = Examiner(self.policy)


@functools.cache
def _version_of_detectors() -> str:
    """Return a checksum of the source of the detectors: other code may find other things."""
    crc = 0
    for path in sorted(Path(toolkit.telemetry.diagnostics.__file__).parent.rglob("*.py")):
        crc = zlib.crc32(path.read_bytes(), crc)
    return f"{crc:08x}"


class RunLedger:
    """The time ledger of one record file. Thread-safe."""

    def __init__(self, source: RecordSource) -> None:
        self.source = source
        self._busy = threading.Lock()
        self._builder = LedgerBuilder()
        self._slices = RecordSlices(source, take=self._add, restart=self._restart)
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

    def _add(self, records: Sequence[Record]) -> None:
        self._builder.take(records)

    def _restart(self) -> None:
        self._builder = LedgerBuilder()


class RecordSlices:
    """Passes the records of a file to `take` in order; calls `restart` if the file was replaced."""

    def __init__(
        self,
        source: RecordSource,
        *,
        take: Callable[[Sequence[Record]], None],
        restart: Callable[[], None],
    ) -> None:
        self.source = source
        self._consume = take
        self._restart = restart
        self._cursor = Cursor()
        self._records: Iterator[tuple[Sequence[Record], int]] = iter(())
        self._done_bytes = 0
        # Unknown before the first read, but not zero.
        self._left_bytes = 1

    @property
    def cursor(self) -> Cursor:
        """How far the file has been read."""
        return self._cursor

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
        for records, end in self._records:
            self._consume(records)
            self._left_bytes -= end - self._done_bytes
            self._done_bytes = end
            if time.perf_counter() >= until:
                return False
        # A line that is too long is skipped.
        self._left_bytes -= self._cursor.offset - self._done_bytes
        self._done_bytes = self._cursor.offset
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
        self._records = self.source.records_in(block)
        self._done_bytes = block.start
        # If nothing moved there is only an incomplete line, which is not worth waiting for.
        self._left_bytes = block.cursor.offset - self._done_bytes + (block.pending_bytes if moved else 0)
        # An over-long line is skipped a block at a time.
        return moved and (bool(block.data) or time.perf_counter() < until)
