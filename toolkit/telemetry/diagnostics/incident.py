"""Incidents that detectors open, update and close; one that comes back soon is the same incident."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from toolkit.telemetry.diagnostics import thresholds as at

MOST_INCIDENTS: Final = 20
"""Incidents per kind and metric; further ones are counted on the last."""

_SAME_WITHIN_ROWS: Final = 10
_SAME_WITHIN_SHARE: Final = 0.02
"""An incident that comes back within so many records, or this share of all records so far, was never over."""


_Place = tuple[str, str, float]
"""Kind, metric, and which of several at the same metric."""

_WORSE_IF_MORE: Final = ("peak", "ratio", "seconds")


@dataclass(slots=True, kw_only=True, eq=False)
class Incident:
    """One problem, while it lasts."""

    id: str
    kind: str
    metric: str
    start_step: int
    noticed_step: int
    session: int
    end_step: int = field(init=False)
    resolved_step: int | None = None
    severity: str | None = None
    """None for the default of its kind."""
    variant: str = ""
    """Which of its kind's messages fits; empty for the default."""
    count: int = 1
    repeats: int = 0
    evidence: dict[str, float] = field(default_factory=dict)
    closed_at_row: float = 0.0

    def __post_init__(self) -> None:
        self.end_step = self.noticed_step

    @property
    def is_open(self) -> bool:
        """Whether it is not resolved yet."""
        return self.resolved_step is None

    def grow(self, step: int, count: int = 1) -> None:
        """Add `count` affected records, up to `step`."""
        self.end_step = step
        self.count += count


class LrRaise(NamedTuple):
    """A learning rate that was raised in one go, by a schedule that starts again or by hand."""

    step: int
    at_row: int
    before: float
    lr: float


class Incidents:
    """All incidents of a run, and which of them changed since the last call of `take_changed`."""

    def __init__(self) -> None:
        self.rows = 0
        """Records read so far."""
        self.session = 1
        self.planned_steps = 0
        """Planned number of steps, if the run declared it."""
        self.processors = 0
        """Number of processors of the machine, if it is known."""
        self.ranks = 1
        """Number of ranks, if the run declared it."""
        self.first_train_loss: float | None = None
        self.train_losses: deque[float] = deque(maxlen=at.LEVEL_WINDOW)
        """The newest finite ones: what an evaluation is compared with."""
        self.lr_raised: LrRaise | None = None
        """The newest."""
        self.hang_step: int | None = None
        """The step after which the run itself reported its newest hang: that pause is not reported twice."""
        self.loss_may_rise = False
        """Whether the run logs a reward, or the loss of an opponent: then a lower training loss is not a better one."""
        self.never_learned = False
        """Whether the training loss left its first level at once: that explains what the validation loss does."""
        self.val_spike_is_open = False
        """Whether the validation loss has jumped and not come back yet: it may do so, and is not a trend."""
        self.by_id: dict[str, Incident] = {}
        """All of them, in the order of detection."""
        self._newest: dict[_Place, Incident] = {}
        self._counts: dict[_Place, int] = {}
        self._changed: dict[str, Incident] = {}

    def open(
        self,
        kind: str,
        metric: str,
        *,
        start_step: int,
        noticed_step: int,
        count: int = 1,
        which: float = 0.0,
        at_row: float | None = None,
        **evidence: float,
    ) -> Incident:
        """Open an incident, or reopen the newest one of its kind if that was resolved only recently.

        `which` separates incidents with the same kind and metric, such as those of two ranks. `at_row` is the number of
        records the detector has read if it does not read all of them.
        """
        place = (kind, metric, which)
        newest = self._newest.get(place)
        if newest is not None and not newest.is_open and self._is_same(place, newest, at_row):
            # The first level stays the reference; only worse values are updated.
            known = newest.evidence
            newest.evidence = evidence | known
            for name in _WORSE_IF_MORE:
                if name in evidence and evidence[name] > known.get(name, -math.inf):
                    newest.evidence[name] = evidence[name]
                    if name != "ratio" and "peak_step" in evidence:
                        newest.evidence["peak_step"] = evidence["peak_step"]
            if {"peak", "level", "ratio"} <= evidence.keys() and newest.evidence["level"] > 0.0:
                newest.evidence["ratio"] = newest.evidence["peak"] / newest.evidence["level"]
            self.reopen(newest, noticed_step=noticed_step, count=count)
            return newest
        incident_id = f"{self.session}-{kind}-{metric}-{start_step}"
        while incident_id in self.by_id:
            incident_id += "+"
        incident = Incident(
            id=incident_id,
            kind=kind,
            metric=metric,
            start_step=start_step,
            noticed_step=noticed_step,
            session=self.session,
            count=count,
            evidence=evidence,
        )
        self.by_id[incident_id] = incident
        self._newest[place] = incident
        self._counts[place] = self._counts.get(place, 0) + 1
        self.mark_changed(incident)
        return incident

    def lr_raise_before(self, start_step: int, at_row: int | None = None) -> dict[str, float]:
        """Return how the learning rate was raised before a rise from `start_step` on; empty if it was not.

        `at_row` is the number of records when the rise began, if that is not now.
        """
        raised = self.lr_raised
        rows = self.rows if at_row is None else at_row
        if raised is None or (raised.step < start_step and rows - raised.at_row > at.LR_RAISED_WITHIN):
            return {}
        return {"lr": raised.lr, "lr_step": raised.step, "lr_before": raised.before}

    def reopen(self, incident: Incident, *, noticed_step: int, count: int = 1) -> None:
        """Reopen a resolved `incident`: it affects `count` more records, up to `noticed_step`."""
        incident.resolved_step = None
        incident.repeats += 1
        incident.grow(noticed_step, count)
        self.mark_changed(incident)

    def mark_changed(self, incident: Incident) -> None:
        """Have `take_changed` return `incident`."""
        self._changed.setdefault(incident.id, incident)

    def escalate(self, incident: Incident, kind: str) -> None:
        """Change `incident` to a worse kind; it stays the same incident."""
        if incident.kind != kind:
            incident.kind = kind
            self.mark_changed(incident)

    def close(
        self,
        incident: Incident,
        *,
        resolved_step: int,
        end_step: int | None = None,
        at_row: float | None = None,
    ) -> None:
        """Resolve `incident` at `resolved_step`; `end_step` is the last affected step if it is not set yet."""
        if end_step is not None:
            incident.end_step = end_step
        incident.resolved_step = resolved_step
        incident.closed_at_row = self.rows if at_row is None else at_row
        if "lr_before" in incident.evidence and self.lr_raised is not None:
            # In noise it may seem over, and go on.
            self.lr_raised = self.lr_raised._replace(at_row=self.rows)
        self.mark_changed(incident)

    def take_changed(self) -> list[Incident]:
        """Return the incidents that changed since the last call, in order of change."""
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    def _is_same(self, place: _Place, newest: Incident, at_row: float | None) -> bool:
        rows = self.rows if at_row is None else at_row
        calm = rows - newest.closed_at_row
        if calm <= max(_SAME_WITHIN_ROWS, _SAME_WITHIN_SHARE * rows):
            # A spike soon after a divergence is not the divergence.
            return newest.kind == place[0] or self._counts[place] >= MOST_INCIDENTS
        return self._counts[place] >= MOST_INCIDENTS
