"""Losses that `logging_nan_inf_filter` replaces in the Trainer's own logs, noticed without waiting for a device."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.records.device_scalars import DeviceScalars, PendingScalar

_MAX_UNDER_WAY: Final = 64
"""Losses on their way from a device that are looked at."""


class FilterWatch:
    """Says of the first such loss, and counts them."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.hidden = 0
        """Steps whose loss was replaced, as far as the device has delivered it."""
        self._is_on = is_on
        self._device = DeviceScalars()
        self._under_way: deque[tuple[int, PendingScalar]] = deque()

    def look(self, log: TelemetryLogger, step: int, loss: Any) -> None:
        """Look at the loss of a step, now or, if a device has yet to compute it, at one of the next steps."""
        if not self._is_on:
            return
        if type(loss) is float:
            if not math.isfinite(loss):
                self._tell(log, step, loss)
        elif loss is not None and len(self._under_way) < _MAX_UNDER_WAY:
            taken = self._device.take(loss)
            if isinstance(taken, PendingScalar):
                self._under_way.append((step, taken))
            elif isinstance(taken, float):
                self.look(log, step, taken)
        if self._under_way:
            self.look_at_arrived(log)

    def look_at_arrived(self, log: TelemetryLogger) -> None:
        """Look at the losses that have come from the device in the meantime."""
        while self._under_way:
            step, pending = self._under_way[0]
            loss = pending.poll()
            if loss is None:
                return
            self._under_way.popleft()
            if not math.isfinite(loss):
                self._tell(log, step, loss)

    def _tell(self, log: TelemetryLogger, step: int, loss: float) -> None:
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
