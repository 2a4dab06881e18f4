"""A loss that is suspiciously low at once: the answer is in the input, or nothing counts towards the loss."""

from __future__ import annotations

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.detector import SingleIncidentDetector
from toolkit.diagnostics.finding import INFO
from toolkit.diagnostics.incident import Incidents
from toolkit.diagnostics.metric_aliases import GRAD_NORM, LOSS, REWARD, Row, name_of
from toolkit.diagnostics.robust import median
from toolkit.diagnostics.stretch import Stretch


class LabelLeak(SingleIncidentDetector):
    """Reports a loss of exactly 0 from the first record on, and one that is next to nothing within a few records.

    Only the first records of a run are read. The second is `info` unless it comes within the first hundredth of the
    planned steps: an easy task looks the same. A reinforcement-learning loss is near zero by design.
    """

    signals = (LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._losses: list[float] | None = []
        self._steps: list[int] = []

    def take(self, row: Row) -> None:
        """Collect the first losses, and judge them when there are enough."""
        losses = self._losses
        if losses is None:
            return
        loss = row.values[LOSS]
        if not 0.0 <= loss < float("inf") or REWARD in row.values:
            self._losses = None
            return
        losses.append(loss)
        self._steps.append(row.step)
        if len(losses) == at.LEAK_ZEROS and not any(losses):
            self._losses = None
            if not row.values.get(GRAD_NORM):
                self._open("zero", 0, losses, row)
        elif len(losses) == 2 * at.LEAK_RECORDS:
            self._losses = None
            self._judge(losses, row)

    def skim(self, stretch: Stretch, start: int) -> int:
        """Pass over everything but the first records of a run."""
        return len(stretch) if self._losses is None else start

    def restart(self, step: int) -> None:
        """Stop collecting: a resumed run starts low."""
        super().restart(step)
        self._losses = None

    def _judge(self, losses: list[float], row: Row) -> None:
        first = median(losses[:3])
        later = losses[at.LEAK_RECORDS :]
        if not first or median(later) > at.LEAK_SHARE * first or max(later) > at.LEAK_AT_MOST * first:
            return
        begin = next(place for place, loss in enumerate(losses) if loss <= at.LEAK_AT_MOST * first)
        self._open("", begin, losses, row)
        planned = self._incidents.planned_steps
        is_early = row.step - self._steps[0] <= at.LEAK_OF_PLAN * planned
        assert self._incident is not None
        self._incident.severity = None if is_early else INFO

    def _open(self, variant: str, begin: int, losses: list[float], row: Row) -> None:
        self._incident = self._incidents.open(
            "label_leak",
            name_of(LOSS, row.record),
            start_step=self._steps[begin],
            noticed_step=row.step,
            count=len(losses) - begin,
            first=losses[0],
            now=losses[-1],
        )
        self._incident.variant = variant
