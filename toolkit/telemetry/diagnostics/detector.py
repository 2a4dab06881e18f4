"""The interface of a detector."""

from __future__ import annotations

from typing import Protocol

from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import Row, name_of


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
