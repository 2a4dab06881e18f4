"""A learning rate that is 0 or next to nothing."""

from __future__ import annotations

import math

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, Row
from toolkit.telemetry.diagnostics.robust import median


class LearningRate(SingleIncidentDetector):
    """Reports a rate of almost 0 before its schedule ends."""

    kind = "lr_problem"
    signals = (LR,)

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

    def take(self, row: Row) -> None:
        """Look at the learning rate."""
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
                incident.variant = ""
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
            incident.variant = "" if self._highest_zero > 0.0 else "zero"
            if self._highest_zero > 0.0 and self._records:
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
