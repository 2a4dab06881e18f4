"""What the detectors say about one record file, looked at a slice at a time and then only where it grew."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from dashboard.data.run_analysis import RecordSlices
from toolkit.diagnostics.examiner import Examiner
from toolkit.diagnostics.finding import Finding
from toolkit.diagnostics.policy import Policy
from toolkit.runfolder.records import Record


class RunExam:
    """Shows each record of a file to the detectors once, in its order. Safe to use from several threads.

    What it holds does not grow with the file. A file that was truncated or replaced is examined anew.
    """

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        self.path = path
        self.policy = policy or Policy()
        self._at_work = threading.Lock()
        self._slices = RecordSlices(path, take=self._take, begin_anew=self._begin_anew)
        self._examiner = Examiner(self.policy)
        self._found: tuple[Finding, ...] = ()

    def look(self, wait_s: float) -> float:
        """Examine what was appended, for at most about `wait_s`; return the part of the file that is done, 0 to 1.

        While another thread is at it, this returns at once.
        """
        if not self._at_work.acquire(blocking=False):
            return self.part
        try:
            self._slices.hand_over(wait_s)
            # Made here, and handed out as it is: whoever asks meanwhile finds no half of it.
            self._found = tuple(self._examiner.findings())
        finally:
            self._at_work.release()
        return self.part

    @property
    def part(self) -> float:
        """How much of the file is examined, 0 to 1."""
        return self._slices.part

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found up to the last look, in the order in which it was noticed."""
        return self._found

    def _take(self, records: Iterator[Record]) -> None:
        self._examiner.take(records)

    def _begin_anew(self) -> None:
        self._examiner = Examiner(self.policy)
