"""A learning rate that is 0 or next to nothing, or too high for the warm-up."""

from __future__ import annotations

import math
from typing import NamedTuple

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, Row
from toolkit.telemetry.diagnostics.robust import IQR_TO_SIGMA, median

_KIND = "lr_problem"


class LearningRate(SingleIncidentDetector):
    """Reports a rate of almost 0 before its schedule ends, and a loss that climbs in a warm-up."""

    kind = _KIND
    signals = (LR,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._warm_up: _WarmUp | None = _WarmUp(incidents)

    def _forget(self) -> None:
        self._records: int = 0
        self._last: float = 0.0
        self._peak: float = 0.0
        self._zeros: int = 0
        self._highest_zero: float = 0.0
        self._first_zero: int = 0
        self._last_zero: int = 0
        self._first_losses: list[float] = []
        self._last_losses: list[float] = []

    def restart(self, step: int) -> None:
        """The schedule continues elsewhere, or starts over."""
        self._end_zeros(step)
        self._forget()
        self._warm_up = self._warm_up or _WarmUp(self._incidents)
        self._warm_up.restart(step)

    def take(self, row: Row) -> None:
        """Look at the learning rate, and during a warm-up also at the loss."""
        lr = row.values[LR]
        nothing = at.LR_NOTHING_SHARE * self._peak
        if lr > nothing and at.LR_NOTHING < lr < math.inf:
            self._records += 1
            self._last = lr
            if lr > self._peak:
                self._peak = lr
            if self._zeros:
                self._end_zeros(row.step)
        elif 0.0 <= lr < math.inf:
            self._add_zero(lr, row)
        if self._warm_up is not None and not self._warm_up.take(lr, row):
            self._warm_up = None

    def _add_zero(self, lr: float, row: Row) -> None:
        if not self._zeros:
            self._first_zero = row.step
            self._highest_zero = lr
        elif row.step <= self._last_zero:
            return
        self._highest_zero = max(self._highest_zero, lr)
        self._zeros += 1
        self._last_zero = row.step
        incident = self._incident
        if incident is not None:
            incident.grow(row.step)
            incident.evidence["lr"] = self._highest_zero
            if lr > 0.0 and incident.variant == "zero":
                incident.variant = "nothing"
            return
        loss = row.values.get(LOSS)
        if loss is not None and math.isfinite(loss):
            if len(self._first_losses) < at.LR_BLOCK:
                self._first_losses.append(loss)
            self._last_losses.append(loss)
            if len(self._last_losses) > at.LR_BLOCK:
                del self._last_losses[0]
        if self._zeros >= self._zeros_needed() and not self._is_learning():
            evidence = {"lr": self._highest_zero, "before": self._last}
            incident = self._report(LR, row, start_step=self._first_zero, count=self._zeros, **evidence)
            incident.variant = "zero"
            if self._highest_zero > 0.0:
                incident.variant = "nothing"
                if self._records:
                    incident.variant = "fallen"
                    incident.evidence["highest"] = self._peak

    def _zeros_needed(self) -> float:
        if self._records and self._last <= at.LR_DECAYED * self._peak:
            return max(at.LR_ZERO_AFTER_DECAY_RECORDS, at.LR_ZERO_AFTER_DECAY * self._records)
        return at.LR_ZERO_RECORDS

    def _is_learning(self) -> bool:
        first, last = self._first_losses, self._last_losses
        return len(last) == at.LR_BLOCK and median(last) < at.NOT_FALLEN * median(first)

    def _end_zeros(self, step: int) -> None:
        self._zeros = 0
        self._first_losses.clear()
        self._last_losses.clear()
        self._resolve(step, end_step=self._last_zero)


class _WarmUp(SingleIncidentDetector):
    """The loss while the learning rate rises from the first record on."""

    kind = _KIND

    def _forget(self) -> None:
        self._lr: float = -1.0
        self._losses: list[float] = []
        self._first_step_of_block: int = 0
        self._first: float | None = None
        self._best = _Block(0, 0.0, 0.0, 0.0)
        self._climbing: list[_Block] = []
        self._blocks_at_peak: int = 0

    def take(self, lr: float, row: Row) -> bool:
        """Look at a record; return False if there is no warm-up, or it is over."""
        loss = row.values.get(LOSS)
        if loss is None:
            return True
        if not (loss > 0.0 and loss < math.inf and lr >= 0.0):
            # Negative and non-finite losses need another measure than this one.
            self._resolve(row.step)
            return False
        if not self._losses:
            self._first_step_of_block = row.step
        self._losses.append(loss)
        if len(self._losses) < at.LR_BLOCK:
            return True
        ordered = sorted(self._losses)
        self._losses.clear()
        sigma = 1.25 * (ordered[-3] - ordered[2]) * IQR_TO_SIGMA / math.sqrt(at.LR_BLOCK)
        return self._add_block(_Block(self._first_step_of_block, lr, median(ordered), sigma), row)

    def _add_block(self, block: _Block, row: Row) -> bool:
        rises, self._lr = block.lr > self._lr, block.lr
        if self._first is None:
            self._first = block.level
            self._best = block
            return True
        if not rises:
            # The effect may show only after the peak.
            self._blocks_at_peak += 1
        if self._blocks_at_peak > at.LR_CLIMB_BLOCKS and self._incident is None:
            return False
        if self._incident is not None:
            return self._follow(self._incident, block, row.step)
        if block.level <= self._best.level:
            self._best = block
            self._climbing.clear()
            return True
        if self._has_climbed(block):
            self._climbing.append(block)
            if len(self._climbing) == at.LR_CLIMB_BLOCKS:
                self._open(row)
        else:
            self._climbing.clear()
        return True

    def _follow(self, incident: Incident, block: _Block, step: int) -> bool:
        if block.level <= at.LR_ABOVE_START * self._best.level:
            self._resolve(step)
            return False
        incident.grow(step, at.LR_BLOCK)
        return True

    def _has_climbed(self, block: _Block) -> bool:
        best = self._best
        assert self._first is not None
        return (
            block.level >= max(at.LR_CLIMB * best.level, at.LR_ABOVE_START * self._first)
            and block.level - best.level >= at.LR_CLIMB_NOISE * max(best.sigma, block.sigma)
            and block.lr >= at.LR_RISE * best.lr
        )

    def _open(self, row: Row) -> None:
        start, now, count = self._climbing[0].step, self._climbing[-1], at.LR_BLOCK * at.LR_CLIMB_BLOCKS
        evidence = {"level": self._best.level, "now": now.level, "lr": now.lr}
        self._report(LR, row, start_step=start, count=count, **evidence).variant = "too high"


class _Block(NamedTuple):
    step: int
    """Of its first record."""
    lr: float
    """At its last record."""
    level: float
    """The median of its losses."""
    sigma: float
    """The standard deviation of such a median."""
