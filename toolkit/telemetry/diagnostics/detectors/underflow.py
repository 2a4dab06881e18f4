"""Gradients that round to zero in half precision."""

from __future__ import annotations

from collections import deque

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS_SCALE, REWARD, ZERO_GRADS, Row
from toolkit.telemetry.diagnostics.robust import median


class Underflow(SingleIncidentDetector):
    """Reports a share of zero gradients that has grown, or gradient norms of exactly zero now and then.

    Zero norms are a warning with a loss scale at its minimum, which can raise nothing above zero any more; otherwise
    they are `info`, because batches without a label give them too. Norms that are all zero are `vanishing_grad`.
    """

    kind = "underflow"
    signals = (ZERO_GRADS, GRAD_NORM)
    _is_rl = False
    _first_share: float | None = None

    def _forget(self) -> None:
        self._norms: int = 0
        self._began_at: int = 0
        self._zeros: deque[tuple[int, int]] = deque()
        self._shares: list[float] = []
        self._share_step: int = 0
        self._looks: int = 0
        self._since: int = 0

    def take(self, row: Row) -> None:
        """Look at the share of zero gradients, or at whether the norm is zero."""
        values = row.values
        share = values.get(ZERO_GRADS)
        if share is not None:
            self._add_share(share, row)
            return
        self._norms += 1
        # Groups of equal rewards have no gradient.
        self._is_rl = self._is_rl or REWARD in values
        if self._zeros:
            self._drop_old(row.step)
        if values[GRAD_NORM] == 0.0 and not self._is_rl:
            self._add_zero(row)

    def _drop_old(self, step: int) -> None:
        zeros = self._zeros
        if self._norms - zeros[0][0] >= at.ZERO_WINDOW:
            zeros.popleft()
            if self._incident is not None and self._incident.variant == "norms" and not zeros:
                self._resolve(step)

    def _add_zero(self, row: Row) -> None:
        zeros = self._zeros
        zeros.append((self._norms, row.step))
        if self._incident is not None:
            self._incident.grow(row.step)
            if self._incident.variant == "norms":
                self._incident.evidence["of"] = float(
                    max(self._norms - self._began_at + 1, self._incident.count)
                )
            return
        others = self._norms - zeros[0][0] + 1 - len(zeros)
        if len(zeros) < at.ZERO_NORMS or others < at.ZERO_OTHERS or self._norms < at.ZERO_WINDOW:
            return
        scale = row.values.get(LOSS_SCALE)
        began_at, start_step = zeros[0]
        of = float(self._norms - began_at + 1)
        incident = self._report(GRAD_NORM, row, start_step=start_step, count=len(zeros), of=of)
        if not incident.repeats:
            self._began_at = began_at
        incident.variant = "norms"
        incident.severity = None if scale is not None and scale <= at.SCALE_BOTTOM else INFO

    def _add_share(self, share: float, row: Row) -> None:
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
            elif self._incident.variant == "":
                self._resolve(row.step)
            return
        if is_high and not self._looks:
            self._since = self._share_step
        self._looks = self._looks + 1 if is_high else 0
        if self._looks == at.ZERO_SHARE_LOOKS:
            self._looks = 0
            count = at.ZERO_SHARE_LOOKS * at.ZERO_SHARE_RECORDS
            level, now = round(100.0 * self._first_share, 1), round(100.0 * now, 1)
            incident = self._report(
                ZERO_GRADS, row, start_step=self._since, count=count, level=level, now=now
            )
            incident.variant, incident.severity = "", None
