"""Detects losses that `logging_nan_inf_filter` hides in the Trainer's own logs, without waiting for a device."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.records.device_scalars import DeviceScalars, PendingScalar

_MAX_PENDING: Final = 64
"""Losses on their way from a device that are checked."""


class FilterWatch:
    """Records the first hidden loss, and counts them all."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.hidden = 0
        """Steps whose loss was hidden, as far as the device has delivered it."""
        self._is_on = is_on
        self._device = DeviceScalars()
        self._pending: deque[tuple[int, PendingScalar]] = deque()

    def check(self, log: TelemetryLogger, step: int, loss: Any) -> None:
        """Check the loss of a step now or, if a device has yet to compute it, at one of the next steps."""
        if not self._is_on:
            return
        if type(loss) is float:
            if not math.isfinite(loss):
                self._record(log, step, loss)
        elif loss is not None and len(self._pending) < _MAX_PENDING:
            taken = self._device.take(loss)
            if isinstance(taken, PendingScalar):
                self._pending.append((step, taken))
            elif isinstance(taken, float):
                self.check(log, step, taken)
        if self._pending:
            self.check_arrived(log)

    def check_arrived(self, log: TelemetryLogger) -> None:
        """Check the losses that have arrived from the device since."""
        while self._pending:
            step, pending = self._pending[0]
            loss = pending.poll()
            if loss is None:
                return
            self._pending.popleft()
            if not math.isfinite(loss):
                self._record(log, step, loss)

    def _record(self, log: TelemetryLogger, step: int, loss: float) -> None:
        self.hidden += 1
        if self.hidden == 1:
            log.log_event(
                "nan_inf_filter",
                global_step=step,
                nan_inf_filter_hides_this=True,
                message=(
                    f"The loss of step {step} is {loss}. The Trainer's own log shows a mean of earlier losses instead,"
                    " because of logging_nan_inf_filter; train_loss here is the real one."
                ),
            )
