"""Gradients that round to zero in half precision."""

from __future__ import annotations

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import BlockDetector
from toolkit.telemetry.diagnostics.metric_aliases import ZERO_GRADS, Row


class Underflow(BlockDetector):
    """Reports a share of zero gradients that has grown. Norms that are all zero are `vanishing_grad`."""

    kind = "underflow"
    signals = (ZERO_GRADS,)
    records, looks = at.ZERO_SHARE_RECORDS, at.ZERO_SHARE_LOOKS

    def take(self, row: Row) -> None:
        """Look at the share of zeros, in percent."""
        share = row.values[ZERO_GRADS]
        if 0.0 <= share <= 1.0:
            self._add(round(100.0 * share, 1), row)

    def _is_bad(self, first: float, now: float) -> bool:
        return now >= max(100.0 * at.ZERO_SHARE, at.ZERO_SHARE_TIMES * first)
