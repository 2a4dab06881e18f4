"""Gradients that are gone: of the whole model, or of an adapter."""

from __future__ import annotations

import math

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LORA_B, LOSS, LR, Row
from toolkit.telemetry.diagnostics.robust import median

_BACK_RECORDS = 5
_LOSS_LEVEL_FLOOR = 1e-3


class VanishingGradients(SingleIncidentDetector):
    """Reports gradient norms near zero for many records in a row while the loss is neither near zero nor falling."""

    kind = "vanishing_grad"
    signals = (GRAD_NORM,)
    _back = 0

    def _forget(self) -> None:
        self._early_norms: list[float] = []
        self._limit = 0.0
        """The largest norm that has vanished."""
        self._early_losses: list[float] = []
        self._low: int = 0
        self._low_since: int = 0
        self._losses: list[float] = []

    def take(self, row: Row) -> None:
        """Look at the gradient norm."""
        norm = row.values[GRAD_NORM]
        if norm > self._limit:
            if self._low:
                self._low = 0
                self._losses.clear()
            if self._incident is not None:
                self._end_if_back(row)
            if len(self._early_norms) < at.VANISHED_EARLY:
                self._learn(norm, row)
            return
        # NaN is left to another detector.
        if 0.0 <= norm <= self._limit:
            self._add_low(norm, row)

    def _learn(self, norm: float, row: Row) -> None:
        if norm < math.inf:
            self._early_norms.append(norm)
            if len(self._early_norms) >= at.NORM_FIRST_RECORDS:
                self._limit = at.VANISHED_SHARE * median(self._early_norms)
            self._learn_loss(row.values.get(LOSS))

    def _learn_loss(self, loss: float | None) -> None:
        if loss is not None and math.isfinite(loss) and len(self._early_losses) < at.VANISHED_EARLY:
            self._early_losses.append(loss)

    def _add_low(self, norm: float, row: Row) -> None:
        self._back = 0
        if not self._low:
            self._low_since = row.step
        self._low += 1
        if self._incident is not None:
            self._incident.grow(row.step)
            return
        loss = row.values.get(LOSS)
        if loss is None or not math.isfinite(loss):
            return
        if not self._early_norms:
            self._learn_loss(loss)
        if len(self._losses) == 2 * at.VANISHED_RECORDS:
            # Drop from the middle: the first half is kept.
            del self._losses[at.VANISHED_RECORDS]
        self._losses.append(loss)
        if self._low >= at.VANISHED_RECORDS and self._is_wrong(norm):
            level = median(self._early_norms) if self._early_norms else 0.0
            evidence = {"level": level, "now": norm, "loss": loss}
            incident = self._report(GRAD_NORM, row, start_step=self._low_since, count=self._low, **evidence)
            if not self._early_norms:
                incident.variant = "from the start"

    def _is_wrong(self, norm: float) -> bool:
        losses = self._losses
        if len(losses) < at.VANISHED_RECORDS or len(self._early_losses) < at.VANISHED_RECORDS // 2:
            return False
        half = at.VANISHED_RECORDS // 2
        first, now = median(losses[:half]), median(losses[-half:])
        if (
            now <= max(at.SOLVED_SHARE * abs(median(self._early_losses)), _LOSS_LEVEL_FLOOR)
            or now < at.NOT_FALLEN * first
        ):
            return False
        if self._limit:
            return True
        # Nothing to compare with: only a long row of zeros with a flat loss is certain.
        return norm == 0.0 and self._low >= 3 * at.VANISHED_RECORDS

    def _end_if_back(self, row: Row) -> None:
        assert self._incident is not None
        self._back += 1
        if self._back >= _BACK_RECORDS:
            self._resolve(row.step)
            self._back = 0


class DeadLora(SingleIncidentDetector):
    """Reports gradients, or weights, of the LoRA B matrices that are exactly zero while the learning rate is not.

    B starts at zero and gets the first gradients; while it is zero the adapter has no effect, and A gets none.
    """

    kind = "dead_lora"
    signals = (LORA_B,)
    _has_moved = False

    def _forget(self) -> None:
        self._zeros: int = 0
        self._since: int = 0

    def take(self, row: Row) -> None:
        """Count the zeros in a row."""
        norm = row.values[LORA_B]
        if norm - norm != 0.0:
            return
        if norm != 0.0:
            self._has_moved = True
            self._zeros = 0
            if self._incident is not None:
                self._resolve(row.step)
            return
        if row.values.get(LR) == 0.0:
            # The first step of a warm-up, or a schedule that has ended.
            return
        if not self._zeros:
            self._since = row.step
        self._zeros += 1
        if self._incident is not None:
            self._incident.grow(row.step)
        elif self._zeros == at.LORA_ZEROS:
            incident = self._report(LORA_B, row, start_step=self._since, count=self._zeros)
            incident.variant = "stopped" if self._has_moved else ""
