"""A policy that has stopped exploring: its entropy is gone."""

from __future__ import annotations

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.detector import SingleIncidentDetector
from toolkit.diagnostics.incident import Incident, Incidents
from toolkit.diagnostics.metric_aliases import ENTROPY, REWARD, Row, name_of
from toolkit.diagnostics.robust import median


class PolicyCollapse(SingleIncidentDetector):
    """Reports an entropy of a twentieth of its first level or less, in a run that logs a reward.

    Without a reward it is supervised, where the entropy falls as the model learns. The entropy of a continuous policy
    may be negative: then there is no ratio to judge.
    """

    signals = (ENTROPY,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._is_rl = False
        self._is_negative = False
        self._first: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._block: list[float] = []
        self._block_step: int = 0
        self._looks: int = 0
        self._since: int = 0

    def take(self, row: Row) -> None:
        """Collect the entropies of a block, and compare it with the first one."""
        entropy = row.values[ENTROPY]
        self._is_rl = self._is_rl or REWARD in row.values
        if entropy < 0.0:
            self._is_negative = True
        if self._is_negative or entropy - entropy != 0.0:
            return
        if not self._block:
            self._block_step = row.step
        self._block.append(entropy)
        if len(self._block) < at.ENTROPY_BLOCK:
            return
        now = median(self._block)
        self._block.clear()
        if self._first is None:
            self._first = now
        elif self._is_rl:
            self._look(self._first, now, row)

    def _look(self, first: float, now: float, row: Row) -> None:
        if self._incident is not None:
            self._follow(self._incident, first, now, row)
            return
        if now > at.ENTROPY_GONE * first or first <= 0.0:
            self._looks = 0
            return
        if not self._looks:
            self._since = self._block_step
        self._looks += 1
        if self._looks == at.ENTROPY_LOOKS:
            self._looks = 0
            self._incident = self._incidents.open(
                "policy_collapse",
                name_of(ENTROPY, row.record),
                start_step=self._since,
                noticed_step=row.step,
                count=at.ENTROPY_LOOKS * at.ENTROPY_BLOCK,
                level=first,
                now=now,
            )

    def _follow(self, incident: Incident, first: float, now: float, row: Row) -> None:
        if now > at.ENTROPY_BACK * first:
            self._resolve(row.step)
            return
        incident.count += at.ENTROPY_BLOCK
        incident.end_step = row.step
        incident.evidence["now"] = now
