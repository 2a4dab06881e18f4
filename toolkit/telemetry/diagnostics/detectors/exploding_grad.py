"""Gradient norms far above their usual size."""

from __future__ import annotations

import math
from collections import deque
from operator import itemgetter

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incidents
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, Row
from toolkit.telemetry.diagnostics.robust import Window, change_sigma, median


class ExplodingGradients(SingleIncidentDetector):
    """Compares each norm with the median before it; one large norm that leaves the loss alone was clipped."""

    kind = "exploding_grad"
    signals = (GRAD_NORM,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._losses: deque[float] = deque(maxlen=at.LEVEL_WINDOW)
        self._usual_level = 0.0
        self._level = 0.0
        self._calm = 0

    def _forget(self) -> None:
        # The first norms after a restart are larger than usual.
        self._high: list[tuple[int, float]] = []
        self._waiting = self._rows = 0
        self._usual = Window(at.NORM_WINDOW)
        self._first = Window(at.NORM_FIRST_RECORDS)

    def take(self, row: Row) -> None:
        """Look at one norm."""
        loss = row.values.get(LOSS)
        if loss is not None:
            self._losses.append(loss)
        norm = row.values[GRAD_NORM]
        if norm - norm != 0.0 or norm <= 0.0:
            return
        if len(self._first.ordered) < at.NORM_FIRST_RECORDS:
            self._first.push(norm)
            self._usual.push(norm)
            return
        if self._incident is not None:
            self._follow(norm, row)
            return
        if not self._rows % at.NORM_LEVEL_EVERY:
            self._usual_level = self._usual.median
        self._rows += 1
        level = self._usual_level
        # Norms fall by decades while a model learns; a norm no larger than at the start is not exploding.
        if norm > at.NORM_RATIO * level and norm > at.NORM_OF_FIRST * self._first.median:
            self._high.append((row.step, norm))
            self._waiting = at.NORM_LOSS_WITHIN
        elif self._waiting:
            self._waiting -= 1
            self._usual.push(norm)
            if not self._waiting:
                self._high.clear()
        elif self._rows & 1 or len(self._usual.ordered) < at.NORM_WINDOW:
            # Once there is a level, every other record keeps it up to date.
            self._usual.push(norm)
        if self._high and self._is_confirmed(level):
            self._begin(level, row)

    def _is_confirmed(self, level: float) -> bool:
        norm = self._high[-1][1]
        if self._loss_reacts():
            return True
        if len(self._high) < at.NORM_CONFIRM and norm <= at.NORM_RATIO_AT_ONCE * level:
            return False
        return norm > at.NORM_OF_HIGH * self._usual.quantile(at.NORM_HIGH)

    def _loss_reacts(self) -> bool:
        *before, loss = self._losses or [0.0]
        if loss - loss != 0.0:
            return True
        before = [value for value in before if value - value == 0.0]
        if len(before) < at.SHORT_WINDOW:
            return False
        level = median(before[-at.SHORT_WINDOW :])
        return loss - level > max(at.NORM_LOSS_SIGMAS * change_sigma(before), at.LEAST_RISE * abs(level))

    def _begin(self, level: float, row: Row) -> None:
        self._level = level
        peak_step, peak = max(self._high, key=itemgetter(1))
        incident = self._report(
            GRAD_NORM,
            row,
            start_step=self._high[0][0],
            count=len(self._high),
            level=level,
            peak=peak,
            peak_step=peak_step,
            ratio=peak / level,
            **self._incidents.lr_raise_before(self._high[0][0]),
        )
        # Against an opponent gradients grow as the other one learns.
        incident.severity = INFO if self._incidents.loss_may_rise else None
        self._high.clear()
        self._waiting = self._calm = 0

    def _follow(self, norm: float, row: Row) -> None:
        incident = self._incident
        assert incident is not None
        if norm > math.sqrt(at.NORM_RATIO) * self._level:
            self._calm = 0
            incident.grow(row.step)
            if norm > incident.evidence["peak"]:
                ratio = norm / incident.evidence["level"]
                incident.evidence.update(peak=norm, peak_step=row.step, ratio=ratio)
            return
        self._calm += 1
        if self._calm >= at.NORM_CALM:
            self._resolve(row.step)
