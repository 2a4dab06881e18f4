"""A loss that is suspiciously low at once."""

from __future__ import annotations

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, REWARD, Row
from toolkit.telemetry.diagnostics.robust import median


class LabelLeak(SingleIncidentDetector):
    """Reports a loss of exactly 0 from the first record on, and one that is next to nothing within a few records.

    Only the first records of a run are read. The second is `info` unless it comes within the first hundredth of the
    planned steps: an easy task looks the same. A reinforcement-learning loss is near zero by design.
    """

    kind = "label_leak"
    signals = (LOSS,)
    _is_over = False

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._losses: list[float] = []
        self._steps: list[int] = []

    def take(self, row: Row) -> None:
        """Collect the first losses, and judge them when there are enough."""
        if self._is_over:
            return
        losses, loss = self._losses, row.values[LOSS]
        if not 0.0 <= loss < float("inf") or REWARD in row.values:
            self._is_over = True
            return
        losses.append(loss)
        self._steps.append(row.step)
        if len(losses) == at.LEAK_ZEROS and not any(losses):
            self._is_over = True
            if not row.values.get(GRAD_NORM):
                self._open(0, row).variant = "zero"
        elif len(losses) == 2 * at.LEAK_RECORDS:
            self._is_over = True
            self._judge(losses, row)

    def restart(self, step: int) -> None:
        """Stop collecting: a resumed run starts low."""
        super().restart(step)
        self._is_over = True

    def _judge(self, losses: list[float], row: Row) -> None:
        first = median(losses[:3])
        later = losses[at.LEAK_RECORDS :]
        if not first or median(later) > at.LEAK_SHARE * first or max(later) > at.LEAK_AT_MOST * first:
            return
        begin = next(place for place, loss in enumerate(losses) if loss <= at.LEAK_AT_MOST * first)
        incident = self._open(begin, row)
        is_early = row.step - self._steps[0] <= at.LEAK_OF_PLAN * self._incidents.planned_steps
        incident.severity = None if is_early else INFO

    def _open(self, begin: int, row: Row) -> Incident:
        start, count, losses = self._steps[begin], len(self._steps) - begin, self._losses
        return self._report(LOSS, row, start_step=start, count=count, first=losses[0], now=losses[-1])
