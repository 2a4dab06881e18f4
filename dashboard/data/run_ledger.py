"""Where one run's time went, added up a slice of its records at a time and then only where the file grew."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from dashboard.data.run_analysis import RecordSlices
from dashboard.data.run_store import TimeSpent
from toolkit.runfolder.manifest import Session
from toolkit.runfolder.records import Record
from toolkit.timing.ledger import LedgerBuilder


class RunLedger:
    """Keeps the time ledger of one record file. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at_work = threading.Lock()
        self._book = LedgerBuilder()
        self._slices = RecordSlices(path, take=self._take, begin_anew=self._begin_anew)
        self._spent = TimeSpent(ledger=self._book.ledger(), part=0.0)

    def look(
        self,
        wait_s: float,
        sessions: Sequence[Session] = (),
        *,
        now: float | None = None,
        last_sign: float | None = None,
    ) -> TimeSpent:
        """Add up what was appended, for at most about `wait_s`, and return the ledger so far.

        `now` is the wall time for a run that goes on, `last_sign` the last heartbeat of one that does not. While
        another thread is at it, this returns at once what was known before.
        """
        if not self._at_work.acquire(blocking=False):
            return self._spent
        try:
            part = self._slices.hand_over(wait_s)
            self._spent = TimeSpent(ledger=self._book.ledger(sessions, now, last_sign=last_sign), part=part)
        finally:
            self._at_work.release()
        return self._spent

    def _take(self, records: Iterator[Record]) -> None:
        self._book.take(records)

    def _begin_anew(self) -> None:
        self._book = LedgerBuilder()
