"""fp16 training whose steps overflow."""

from __future__ import annotations

import math
from collections import deque

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import CRITICAL
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, LOSS_SCALE, Row

_BACK = 4.0


class LossScale(SingleIncidentDetector):
    """Reports a loss scale that keeps falling or, if none is logged, many infinite gradient norms."""

    kind = "loss_scale"
    signals = (LOSS_SCALE, GRAD_NORM)
    _has_scale = False

    def _forget(self) -> None:
        self._scales: deque[tuple[int, float]] = deque(maxlen=at.SCALE_WINDOW)
        self._records: int = 0
        self._last_fall: int = 0
        self._lowest: float = math.inf
        self._norms: int = 0
        self._infinite: deque[tuple[int, int]] = deque()
        self._began_at: int = 0

    def take(self, row: Row) -> None:
        """Look at the scale, or at whether the gradient norm is infinite."""
        scale = row.values.get(LOSS_SCALE)
        if scale is not None:
            self._add_scale(scale, row)
        elif not self._has_scale:
            self._norms += 1
            if self._infinite and self._norms - self._infinite[0][0] >= at.SKIPPED_WINDOW:
                self._infinite.popleft()
                if not self._infinite:
                    self._resolve(row.step)
            if row.values[GRAD_NORM] == math.inf:
                self._add_infinite(row)

    def _add_scale(self, scale: float, row: Row) -> None:
        self._has_scale = True
        if not 0.0 < scale < math.inf:
            return
        self._records += 1
        fell = bool(self._scales) and scale < self._scales[-1][1]
        if self._records <= at.SCALE_PROBE_RECORDS:
            # The initial search starts far too high, so its start says nothing about a later fall.
            self._scales.clear()
        self._scales.append((row.step, scale))
        if self._incident is not None:
            self._follow(self._incident, scale, row.step)
        elif fell:
            self._judge_fall(scale, row)

    def _judge_fall(self, scale: float, row: Row) -> None:
        highest = max(old for _, old in self._scales)
        at_bottom = scale <= at.SCALE_BOTTOM
        if not at_bottom and highest < at.SCALE_FALL * scale:
            return
        scales = list(self._scales)
        last_high = max(place for place, (_, old) in enumerate(scales) if old == highest)
        start_step = scales[min(last_high + 1, len(scales) - 1)][0]
        count = max(1, len(scales) - last_high - 1)
        incident = self._report(LOSS_SCALE, row, start_step=start_step, count=count, level=highest, now=scale)
        self._lowest, self._last_fall = scale, self._records
        if at_bottom:
            self._say_bottom(incident)

    def _follow(self, incident: Incident, scale: float, step: int) -> None:
        if scale < self._lowest:
            self._lowest, self._last_fall = scale, self._records
            incident.grow(step)
            incident.evidence["now"] = scale
            if scale <= at.SCALE_BOTTOM and incident.variant == "":
                self._say_bottom(incident)
        elif scale >= _BACK * self._lowest or (
            scale > at.SCALE_BOTTOM and self._records - self._last_fall >= at.SCALE_WINDOW
        ):
            self._resolve(step)
            self._scales.clear()
            self._scales.append((step, scale))

    def _say_bottom(self, incident: Incident) -> None:
        incident.variant = "at the bottom"
        incident.severity = CRITICAL
        self._incidents.mark_changed(incident)

    def _add_infinite(self, row: Row) -> None:
        loss = row.values.get(LOSS)
        if self._norms <= at.SKIPPED_WINDOW or (loss is not None and not math.isfinite(loss)):
            return
        self._infinite.append((self._norms, row.step))
        if self._incident is not None:
            self._incident.grow(row.step)
            self._note_share(self._incident)
        elif at.SKIPPED <= len(self._infinite) < at.SKIPPED_WINDOW:
            began_at, start_step = self._infinite[0]
            incident = self._report(GRAD_NORM, row, start_step=start_step, count=len(self._infinite))
            incident.variant = "skipping"
            if not incident.repeats:
                self._began_at = began_at
            self._note_share(incident)

    def _note_share(self, incident: Incident) -> None:
        # An incident from an earlier session has counted norms that this session does not know.
        incident.evidence["of"] = float(max(self._norms - self._began_at + 1, incident.count))
