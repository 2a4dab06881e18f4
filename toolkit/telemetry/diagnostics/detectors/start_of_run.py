"""The first records of a run: a loss that is suspiciously low at once, or has not moved."""

from __future__ import annotations

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR, REWARD, Row
from toolkit.telemetry.diagnostics.robust import change_sigma, median, trend


class LabelLeak(SingleIncidentDetector):
    """Reports a loss of exactly 0 from the first record on, and one that is next to nothing within a few records.

    Only the first records of a run are read. The second is `info` unless it comes within the first hundredth of the
    planned steps: an easy task looks the same. A reinforcement-learning loss is near zero by design.
    """

    kind = "label_leak"
    signals: tuple[str, ...] = (LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._losses: list[float] = []
        self._steps: list[int] = []

    def take(self, row: Row) -> None:
        """Collect the first losses, and judge them when there are enough."""
        if not self.signals:
            return
        losses, loss = self._losses, row.values[LOSS]
        if not 0.0 <= loss < float("inf") or REWARD in row.values:
            self.signals = ()
            return
        losses.append(loss)
        self._steps.append(row.step)
        if len(losses) == at.LEAK_ZEROS and not any(losses):
            self.signals = ()
            if not row.values.get(GRAD_NORM):
                self._open(0, row).variant = "zero"
        elif len(losses) == 2 * at.LEAK_RECORDS:
            self.signals = ()
            self._judge(losses, row)

    def restart(self, step: int) -> None:
        """Stop collecting: a resumed run starts low."""
        super().restart(step)
        self.signals = ()

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


class LearningRateTooSmall(SingleIncidentDetector):
    """Reports a loss without any trend over its first records, with gradients and a learning rate above zero.

    It is a warning where the rate is below what moves any model; otherwise it is `info`, because a hard start looks the
    same, and `plateau` takes over later. A warm-up that has not ended is waited for.
    """

    kind = "lr_too_small"
    signals: tuple[str, ...] = (LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._block: list[float] = []
        self._blocks: list[float] = []
        self._norms: list[float] = []
        self._rates: list[float] = []
        self._first_step = 0
        self._moving = 0

    def take(self, row: Row) -> None:
        """Collect the first losses in blocks, then follow an incident until the loss moves."""
        if not self.signals:
            return
        loss, lr, norm = row.values[LOSS], row.values.get(LR), row.values.get(GRAD_NORM)
        if (
            lr is None
            or norm is None
            or REWARD in row.values
            or not 0.0 < loss < float("inf")
            or norm != norm
        ):
            self._end(row.step)
            return
        if not self._blocks and not self._block:
            self._first_step = row.step
        self._block.append(loss)
        self._norms.append(norm)
        self._rates.append(lr)
        if len(self._block) < at.NO_MOVE_BLOCK:
            return
        level = median(self._block)
        self._block.clear()
        if self._incident is not None:
            self._follow(self._incident, level, row)
            return
        self._blocks.append(level)
        if len(self._blocks) == at.NO_MOVE_BLOCKS:
            self._judge(row)

    def restart(self, step: int) -> None:
        """Stop: a resumed run has moved, or another one looks at it from its start."""
        self._end(step)

    def _judge(self, row: Row) -> None:
        rates = self._rates
        if rates[-1] > at.NO_MOVE_WARM_UP * rates[len(rates) // 2]:
            # Still warming up: look at the next records instead.
            self._blocks.clear()
            self._norms.clear()
            rates.clear()
            return
        level = median(self._blocks)
        slope, z = trend(self._blocks)
        moved = abs(slope) * (len(self._blocks) - 1)
        peak = max(rates)
        # A rate that is as good as 0 is another finding.
        has_rate = min(rates) > at.LR_NOTHING
        is_flat = abs(z) < at.NO_MOVE_Z and has_rate and median(self._norms) > at.NO_MOVE_NORM
        is_tiny = peak <= at.NO_MOVE_RATE
        noise = change_sigma(self._blocks)
        if not is_flat or moved >= (max(at.NO_MOVE * level, noise) if is_tiny else at.NO_MOVE * level):
            self._end(row.step)
            return
        count = len(self._blocks) * at.NO_MOVE_BLOCK
        incident = self._report(LOSS, row, start_step=self._first_step, count=count, level=level, lr=peak)
        incident.severity = None if is_tiny else INFO

    def _follow(self, incident: Incident, level: float, row: Row) -> None:
        self._norms.clear()
        self._rates.clear()
        # The other way would be a divergence, which is another finding.
        has_moved = abs(level - incident.evidence["level"]) > at.NO_MOVE_MOVES * incident.evidence["level"]
        self._moving = self._moving + 1 if has_moved else 0
        if self._moving == at.NO_MOVE_CONFIRM:
            self._end(row.step)
        elif not has_moved:
            incident.grow(row.step, at.NO_MOVE_BLOCK)

    def _end(self, step: int) -> None:
        self._resolve(step)
        self.signals = ()
        self._block.clear()
        self._blocks.clear()
        self._norms.clear()
        self._rates.clear()
