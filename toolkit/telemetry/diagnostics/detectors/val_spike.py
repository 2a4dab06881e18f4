"""Validation losses that jump for an evaluation or a few, while the training loss does not."""

from __future__ import annotations

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import VAL_LOSS, Row
from toolkit.telemetry.diagnostics.robust import CHANGE_TO_SIGMA, LossAxis, Window, change_sigma, median


class ValidationSpike(SingleIncidentDetector):
    """Compares each validation loss with the few before it, on the scale of their own ups and downs."""

    kind = "val_spike"
    signals = (VAL_LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._axis = LossAxis()
        self._recent = Window(at.VAL_WINDOW)
        self._changes = Window(at.VAL_NOISE_WINDOW)
        self._previous = 0.0
        self._level = 0.0
        self._peak = 0.0
        self._peak_step = 0
        self._length = 0
        self._last: tuple[int, float] | None = None
        self._has_begun = False
        self._doubted: tuple[int, float] | None = None
        """The step and value of a jump that counts only if it comes back."""

    def take(self, row: Row) -> None:
        """Look at one validation loss."""
        val = row.values[VAL_LOSS]
        # An evaluation may be logged twice, in its own record and in the epoch's.
        if val - val == 0.0 and self._last != (row.step, val):
            self._last = (row.step, val)
            # Zeros at the very start are not losses yet.
            self._has_begun = self._has_begun or val != 0.0
            if self._has_begun:
                self._check(val, row)

    def restart(self, step: int) -> None:
        """Keep everything: the validation data stays the same."""

    def _check(self, val: float, row: Row) -> None:
        y = self._axis.place(val)
        if self._axis.has_changed:
            if self._incident is not None:
                # A loss below 0 is below every level that there was.
                self._end(self._incident, "recovered", row)
            self._recent.clear()
            self._changes.clear()
        if self._incident is not None:
            if self._continues(self._incident, val, y, row):
                return
        elif self._doubted is not None:
            if self._is_still_doubted(self._doubted, val, y, row):
                return
        elif self._is_jump(y) and not self._train_jumps():
            self._peak, self._peak_step, self._length = y, row.step, 1
            if self._is_clear(y):
                self._open(row.step, val, row)
            else:
                self._doubted = row.step, val
            return
        if len(self._recent):
            self._changes.push(abs(y - self._previous))
        self._recent.push(y)
        self._previous = y

    def _open(self, step: int, peak: float, row: Row) -> Incident:
        level = self._axis.value(self._level)
        incident = self._report(
            VAL_LOSS,
            row,
            start_step=step,
            level=level,
            peak=peak,
            peak_step=self._peak_step,
            ratio=peak / level if level > 0 else 0.0,
        )
        incident.variant = ""
        self._incidents.val_spike_is_open = True
        return incident

    def _is_still_doubted(self, doubted: tuple[int, float], val: float, y: float, row: Row) -> bool:
        self._length += 1
        if y > self._level + at.VAL_BACK_SHARE * (self._peak - self._level):
            if self._length <= at.VAL_SPIKE_LONGEST:
                if y > self._peak:
                    self._peak, self._peak_step, self._doubted = y, row.step, (doubted[0], val)
                return True
            self._recent.clear()
        else:
            incident = self._open(doubted[0], doubted[1], row)
            incident.count = self._length - 1
            self._end(incident, "recovered", row)
        self._doubted = None
        return False

    def _continues(self, incident: Incident, val: float, y: float, row: Row) -> bool:
        if y > self._level + at.VAL_BACK_SHARE * (self._peak - self._level):
            incident.grow(row.step)
            self._length += 1
            if y > self._peak:
                self._peak = y
                incident.evidence["peak"], incident.evidence["peak_step"] = val, row.step
                if incident.evidence["level"] > 0:
                    incident.evidence["ratio"] = val / incident.evidence["level"]
            if self._length <= at.VAL_SPIKE_LONGEST:
                return True
            # A level that stays is not a spike: it is the new level, which other detectors watch.
            self._recent.clear()
            self._end(incident, "", row)
        else:
            self._end(incident, "recovered", row)
        return False

    def _end(self, incident: Incident, variant: str, row: Row) -> None:
        incident.variant = variant
        self._incidents.val_spike_is_open = False
        self._resolve(row.step)

    def _is_jump(self, y: float) -> bool:
        count = len(self._recent)
        if not count:
            return False
        self._level = self._recent.median
        share = at.VAL_RISE_SMALL if count >= at.VAL_FIRST else at.VAL_RISE_EARLY
        return self._rises(y, share, at.VAL_ABOVE_ALL_SMALL)

    def _is_clear(self, y: float) -> bool:
        """Whether the jump counts before it has come back: it is large, and there is enough to compare it with."""
        return len(self._recent) >= at.VAL_FIRST and self._rises(y, at.VAL_RISE, at.VAL_ABOVE_ALL)

    def _rises(self, y: float, share: float, above_all: float) -> bool:
        noise = CHANGE_TO_SIGMA * self._changes.median if len(self._changes) else 0.0
        if y - self._level < max(self._axis.gap(self._level, share), at.VAL_SIGMAS * noise):
            return False
        highest = self._recent.quantile(1.0)
        return y - highest > self._axis.gap(highest, above_all)

    def _train_jumps(self) -> bool:
        if self._incidents.never_learned:
            return True
        losses = list(self._incidents.train_losses)
        if len(losses) < 2 * at.TRAIN_NOW:
            return False
        # With few records, most of them may be from after the jump: the first ones are the level.
        level = median(losses) if len(losses) >= at.FIRST_RECORDS else min(losses[: at.TRAIN_NOW])
        return median(losses[-at.TRAIN_NOW :]) - level > max(at.LEAST_RISE * abs(level), change_sigma(losses))
