"""Gradients that round to zero in half precision."""

from __future__ import annotations

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.metric_aliases import ZERO_GRADS, Row
from toolkit.telemetry.diagnostics.robust import median


class Underflow(SingleIncidentDetector):
    """Reports a share of zero gradients that has grown. Norms that are all zero are `vanishing_grad`."""

    kind = "underflow"
    signals = (ZERO_GRADS,)
    _first_share: float | None = None

    def _forget(self) -> None:
        self._shares: list[float] = []
        self._share_step: int = 0
        self._looks: int = 0
        self._since: int = 0

    def take(self, row: Row) -> None:
        """Collect the shares of a block, and compare it with the first one."""
        share = row.values[ZERO_GRADS]
        if not 0.0 <= share <= 1.0:
            return
        if not self._shares:
            self._share_step = row.step
        self._shares.append(share)
        if len(self._shares) < at.ZERO_SHARE_RECORDS:
            return
        now = median(self._shares)
        self._shares.clear()
        if self._first_share is None:
            self._first_share = now
            return
        is_high = now >= max(at.ZERO_SHARE, at.ZERO_SHARE_TIMES * self._first_share)
        if self._incident is not None:
            if is_high:
                self._incident.grow(row.step, at.ZERO_SHARE_RECORDS)
            else:
                self._resolve(row.step)
            return
        if is_high and not self._looks:
            self._since = self._share_step
        self._looks = self._looks + 1 if is_high else 0
        if self._looks == at.ZERO_SHARE_LOOKS:
            self._looks = 0
            count = at.ZERO_SHARE_LOOKS * at.ZERO_SHARE_RECORDS
            level, now = round(100.0 * self._first_share, 1), round(100.0 * now, 1)
            self._report(ZERO_GRADS, row, start_step=self._since, count=count, level=level, now=now)
