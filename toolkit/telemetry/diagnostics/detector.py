"""The interface of a detector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import Row, name_of
from toolkit.telemetry.diagnostics.robust import median


class Detector(Protocol):
    """Reads the records of a run one by one, with bounded memory, and opens and closes incidents.

    It is constructed with the `Incidents` that it writes to. Its result depends on the records alone: not on the clock,
    and not on how many records come at once.
    """

    signals: tuple[str, ...]
    """It gets the records that have one of these; `"*"` means all records."""
    all_ranks: bool
    """Whether it gets the records of every rank, or only those of rank 0."""

    def take(self, row: Row) -> None:
        """Read one record; `row` is valid only during the call."""

    def restart(self, step: int) -> None:
        """Handle a new session, or steps that went back to `step`: learnt levels may no longer hold."""


class SingleIncidentDetector:
    """Base of a detector that has at most one open incident."""

    kind = ""
    """The kind of its findings."""
    signals: tuple[str, ...] = ()
    all_ranks = False

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._incident: Incident | None = None
        self._forget()

    def restart(self, step: int) -> None:
        """Resolve the open incident and start over."""
        self._resolve(step)
        self._forget()

    def _report(
        self, signal: str, row: Row, *, start_step: int, count: int = 1, **evidence: float
    ) -> Incident:
        """Open an incident about the metric that is `signal` in `row`."""
        self._incident = self._incidents.open(
            self.kind,
            name_of(signal, row.record),
            start_step=start_step,
            noticed_step=row.step,
            count=count,
            **evidence,
        )
        return self._incident

    def _resolve(self, step: int, *, end_step: int | None = None) -> None:
        """Resolve the open incident, if there is one, at `step`."""
        if self._incident is not None:
            self._incidents.close(self._incident, resolved_step=step, end_step=end_step)
            self._incident = None

    def _forget(self) -> None:
        """Forget what was learnt about the curves; nothing is known at first."""


class BlockDetector(SingleIncidentDetector, ABC):
    """Base of a detector that compares the medians of blocks of records with that of the first block."""

    records = 0
    """Records that make a block."""
    looks = 0
    """Bad blocks in a row that confirm it."""
    _first: float | None = None

    def _forget(self) -> None:
        self._block: list[float] = []
        self._block_step = self._bad_blocks = self._since = 0

    @abstractmethod
    def _is_bad(self, first: float, now: float) -> bool:
        """Return whether a block is bad, or stays so while there is an incident."""

    def _add(self, value: float, row: Row, *, is_judged: bool = True) -> None:
        """Add the value of a record, and judge the block if it is complete."""
        if not self._block:
            self._block_step = row.step
        self._block.append(value)
        if len(self._block) < self.records:
            return
        now = median(self._block)
        self._block.clear()
        if self._first is None:
            self._first = now
        elif is_judged:
            self._judge(self._first, now, row)

    def _judge(self, first: float, now: float, row: Row) -> None:
        is_bad = self._is_bad(first, now)
        if self._incident is not None:
            if is_bad:
                self._incident.grow(row.step, self.records)
                self._incident.evidence["now"] = now
            else:
                self._resolve(row.step)
            return
        if is_bad and not self._bad_blocks:
            self._since = self._block_step
        self._bad_blocks = self._bad_blocks + 1 if is_bad else 0
        if self._bad_blocks == self.looks:
            self._bad_blocks = 0
            count = self.looks * self.records
            self._report(self.signals[0], row, start_step=self._since, count=count, level=first, now=now)
