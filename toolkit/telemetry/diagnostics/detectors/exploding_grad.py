"""Gradient norms far above their usual size."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.incident import Incidents
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, Row, is_meant_to_fall, name_of
from toolkit.telemetry.diagnostics.robust import Window, change_sigma, median
from toolkit.telemetry.diagnostics.step_batch import StepBatch

_AT_ONCE = 500


class ExplodingGradients(SingleIncidentDetector):
    """Compares each norm with the median before it; one large norm that leaves the loss alone was clipped."""

    signals = (GRAD_NORM,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._usual = Window(at.NORM_WINDOW)
        self._first = Window(at.NORM_FIRST_RECORDS)
        self._losses: deque[float] = deque(maxlen=at.LEVEL_WINDOW)
        self._rows = 0
        self._usual_level = 0.0
        self._high: list[tuple[int, float]] = []
        self._waiting = 0
        self._level = 0.0
        self._calm = 0

    def take(self, row: Row) -> None:
        """Look at one norm."""
        loss = row.values.get(LOSS)
        if loss is not None:
            self._losses.append(loss)
        norm = row.values[GRAD_NORM]
        if norm - norm != 0.0 or norm <= 0.0:
            return
        if len(self._first) < at.NORM_FIRST_RECORDS:
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
        elif self._rows & 1 or len(self._usual) < at.NORM_WINDOW:
            # Once there is a level, every other record keeps it up to date.
            self._usual.push(norm)
        if self._high and self._is_confirmed(level, row):
            self._begin(level, row)

    def skim(self, batch: StepBatch, start: int) -> int:
        """Pass over norms that are not large."""
        if self._incident is not None or self._high or self._waiting:
            return start
        if len(self._first) < at.NORM_FIRST_RECORDS:
            return start
        norms, end = batch.columns[GRAD_NORM], start
        while end < len(norms):
            part, before = norms[end : end + _AT_ONCE], end
            end += len(part)
            lowest, is_full = min(*part, self._usual.ordered[0]), len(self._usual) == at.NORM_WINDOW
            if is_full and 0.0 < max(part) <= at.NORM_RATIO * lowest:
                # Not large beside the lowest, so not large beside any median either.
                self._pass_over(part)
            elif (place := self._pass_over_one_by_one(norms, before, end)) < end:
                end = place
                break
        if LOSS in batch.columns:
            self._losses.extend(batch.columns[LOSS][start:end])
        return end

    def _pass_over(self, norms: Sequence[float]) -> None:
        """Move the full window over norms that are not large, each other one of which comes into it."""
        usual, rows, size = self._usual, self._rows, at.NORM_WINDOW
        values = [*usual.newest, *norms[rows & 1 :: 2]]
        self._rows = after = rows + len(norms)
        # The level is that at the last record whose number is a multiple.
        looked_at = (after - 1) // at.NORM_LEVEL_EVERY * at.NORM_LEVEL_EVERY
        if looked_at >= rows:
            moved = (looked_at + 1) // 2 - (rows + 1) // 2
            self._usual_level = median(values[moved : moved + size])
        usual.newest = deque(values[-size:])
        usual.ordered = sorted(values[-size:])

    def _pass_over_one_by_one(self, norms: Sequence[float], start: int, until: int) -> int:
        usual, rows, level = self._usual, self._rows, self._usual_level
        newest, ordered = usual.newest, usual.ordered
        largest_of_first = at.NORM_OF_FIRST * self._first.median
        end, left, every = start, at.NORM_WINDOW - len(usual), at.NORM_LEVEL_EVERY
        highest = max(at.NORM_RATIO * level, largest_of_first)
        for place in range(start, until):
            norm = norms[place]
            if not rows % every:
                level = usual.median
                highest = max(at.NORM_RATIO * level, largest_of_first)
            if not 0.0 < norm <= highest:
                break
            rows += 1
            if left > 0:
                usual.push(norm)
                left -= 1
            elif rows & 1:
                del ordered[bisect_left(ordered, newest.popleft())]
                newest.append(norm)
                insort(ordered, norm)
            end = place + 1
        self._rows, self._usual_level = rows, level
        return end

    def _forget(self) -> None:
        # The first norms after a restart are larger than usual.
        self._high.clear()
        self._waiting = self._rows = 0
        self._usual.clear()
        self._first.clear()

    def _is_confirmed(self, level: float, row: Row) -> bool:
        norm = self._high[-1][1]
        if self._loss_reacts() and is_meant_to_fall(row):
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
        peak = max(norm for _, norm in self._high)
        self._incident = self._incidents.open(
            "exploding_grad",
            name_of(GRAD_NORM, row.record),
            start_step=self._high[0][0],
            noticed_step=row.step,
            count=len(self._high),
            level=level,
            peak=peak,
            ratio=peak / level,
        )
        self._high.clear()
        self._waiting = self._calm = 0

    def _follow(self, norm: float, row: Row) -> None:
        incident = self._incident
        assert incident is not None
        if norm > math.sqrt(at.NORM_RATIO) * self._level:
            self._calm = 0
            incident.end_step = row.step
            incident.count += 1
            if norm > incident.evidence["peak"]:
                incident.evidence["peak"] = norm
                incident.evidence["ratio"] = norm / incident.evidence["level"]
            return
        self._calm += 1
        if self._calm >= at.NORM_CALM:
            self._resolve(row.step)
