"""A training loss that has stopped falling."""

from __future__ import annotations

import math
from itertools import pairwise

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO, WARNING
from toolkit.telemetry.diagnostics.incident import Incidents
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, Row
from toolkit.telemetry.diagnostics.robust import CHANGE_TO_SIGMA, median, trend


class Plateau(SingleIncidentDetector):
    """Keeps the whole curve as 24 to 48 medians of equal segments, and checks whether most of it no longer falls.

    A plateau is most of a run: a curve that is flat for a while may still be learning. Nothing is reported if the
    learning rate has decayed to nothing, or if the loss has or changes its sign.
    """

    kind = "plateau"
    signals = (LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._rows = 0
        self._block_size = 1
        """Records that make a block."""
        self._every = 1
        self._filling: list[float] = []
        self._blocks: list[float] = []
        self._steps: list[int] = []
        self._flat = 0
        self._moving = 0
        self._start_level = 0.0
        self._top_lr = 0.0
        self._lr = 0.0
        self._anchor = 0.0
        self._slack = -1.0
        self._anchor_step = 0
        self._constant = 0
        self._most_gain = 1.0
        self._now = self._z = 0.0

    def take(self, row: Row) -> None:
        """Look at one loss."""
        loss = row.values[LOSS]
        # Zeros at the very start are not losses yet.
        if loss - loss != 0.0 or (not loss and not self._rows):
            return
        self._rows += 1
        lr = row.values.get(LR)
        if lr is not None:
            self._lr = lr
            if lr > self._top_lr:
                self._top_lr = lr
        if abs(loss - self._anchor) > self._slack:
            self._anchor, self._slack, self._anchor_step = loss, at.CONSTANT_WITHIN * abs(loss), row.step
            self._constant = 0
            if self._incident is not None and self._incident.variant == "constant":
                self._resolve(row.step)
        else:
            self._stay_constant(loss, row)
        # A sample of the records of a long segment is enough for its median, and bounds the memory.
        if self._rows % self._every == 0:
            self._filling.append(loss)
            if len(self._filling) * self._every >= self._block_size:
                self._end_block_size(row)

    def restart(self, step: int) -> None:
        """Keep the curve: a restart continues it."""

    def _stay_constant(self, loss: float, row: Row) -> None:
        self._constant += 1
        incident = self._incident
        if incident is not None and incident.variant == "constant":
            incident.grow(row.step)
        elif (
            self._constant >= at.CONSTANT_RECORDS
            and incident is None
            and self._constant >= at.CONSTANT_SHARE * self._rows
            and self._could_learn(loss)
        ):
            self._begin(self._anchor_step, self._constant + 1, loss, 0.0, "constant", row)

    def _end_block_size(self, row: Row) -> None:
        self._blocks.append(median(self._filling))
        self._steps.append(row.step)
        self._filling.clear()
        if len(self._blocks) == 3:
            self._start_level = abs(median(self._blocks))
        if len(self._blocks) == at.PLATEAU_BLOCKS:
            self._blocks = [0.5 * (a + b) for a, b in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._steps = self._steps[1::2]
            self._block_size *= 2
            self._every = max(1, self._block_size // at.PLATEAU_MOST_OF_A_BLOCK)
        if self._rows >= at.PLATEAU_FIRST_RECORDS and len(self._blocks) >= at.PLATEAU_BLOCKS // 2:
            self._judge(row)

    def _judge(self, row: Row) -> None:
        begin = int((1.0 - at.PLATEAU_SHARE) * len(self._blocks))
        later = self._blocks[begin:]
        self._now = level = median(later)
        slope, self._z = trend(later)
        z = self._z
        gain = -slope * (len(later) - 1)
        is_flat = self._could_learn(level) and _is_flat(gain, z, level, 1.0)
        # A reported plateau is resolved only if the curve clearly falls again.
        stays_flat = self._could_learn(level) and _is_flat(gain, z, level, at.PLATEAU_PATIENCE)
        self._flat = self._flat + 1 if is_flat else 0
        incident = self._incident
        if incident is None and self._flat < at.PLATEAU_CONFIRM:
            return
        noise = CHANGE_TO_SIGMA * median([abs(b - a) for a, b in pairwise(later)])
        # How much it may have gained at most, given its noise.
        self._most_gain = (gain + at.PLATEAU_ERRORS * noise * math.sqrt(12.0 / len(later))) / abs(
            level or 1.0
        )
        if incident is None:
            self._begin(self._steps[begin], len(later) * self._block_size, level, noise, "", row)
        elif incident.variant != "constant":
            incident.grow(row.step, self._block_size)
            self._moving = 0 if stays_flat else self._moving + 1
            if self._moving >= at.PLATEAU_CONFIRM // 2:
                self._resolve(row.step)
            elif (
                incident.severity == INFO
                and self._is_sure(row)
                and _is_flat(gain, z, level, at.PLATEAU_PATIENCE_TO_WARN)
            ):
                incident.severity = WARNING
                incident.noticed_step = row.step
                self._incidents.mark_changed(incident)

    def _is_sure(self, row: Row) -> bool:
        """Whether it will probably stay flat: not if most of the planned run is still to come."""
        if (
            row.step < at.PLATEAU_SURE_OF_PLAN * self._incidents.planned_steps
            or self._incidents.loss_may_rise
        ):
            return False
        if self._rows >= at.PLATEAU_SURE_RECORDS:
            return True
        return (
            self._most_gain < at.PLATEAU_MOST_GAIN * min(1.0, self._rows / at.PLATEAU_FEW_RECORDS)
            and self._z >= at.PLATEAU_Z_IF_SHORT
            and abs(self._now) > at.PLATEAU_OF_START * self._start_level
        )

    def _could_learn(self, level: float) -> bool:
        if abs(level) < at.SOLVED * self._start_level or level == 0.0:
            return False
        return self._lr >= at.DECAYED * self._top_lr

    def _begin(self, start: int, count: int, level: float, noise: float, variant: str, row: Row) -> None:
        incident = self._report(LOSS, row, start_step=start, count=count, level=level, noise=noise)
        incident.variant = variant
        is_stuck = variant == "constant" and not self._incidents.loss_may_rise
        incident.severity = WARNING if is_stuck or self._is_sure(row) else INFO


def _is_flat(gain: float, z: float, level: float, patience: float) -> bool:
    return abs(gain) < patience * at.PLATEAU_GAIN * abs(level) and z > patience * at.PLATEAU_Z
