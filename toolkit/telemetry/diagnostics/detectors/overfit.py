"""A validation loss that rises from its best while the training loss does not."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import VAL_LOSS, Row
from toolkit.telemetry.diagnostics.robust import CHANGE_TO_SIGMA, change_sigma, median


class Overfit(SingleIncidentDetector):
    """Keeps the best validation loss and checks whether the median of those since then is clearly above it.

    The best of many noisy values is low by luck. So the rise has to be clear of the noise as well when it is measured
    from the best three in a row, which luck moves far less.
    """

    kind = "overfit"
    signals = (VAL_LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._vals: deque[float] = deque(maxlen=at.OVERFIT_NOISE_WINDOW)
        self._evals = 0
        self._first = 0.0
        self._best = 0.0
        self._best_step = 0
        self._best_eval = 0
        self._best_around = 0.0
        self._train_at_best: float | None = None
        self._since: deque[float] = deque(maxlen=at.OVERFIT_MIDDLE_OF)
        self._last: tuple[int, float] | None = None

    def take(self, row: Row) -> None:
        """Look at one validation loss."""
        val = row.values[VAL_LOSS]
        # An evaluation may be logged twice, in its own record and in the epoch's.
        if val - val == 0.0 and self._last != (row.step, val):
            self._last = (row.step, val)
            if self._train_at_best is None:
                # The best evaluation came before the first step: the first loss is the one that belongs to it.
                self._train_at_best = self._incidents.first_train_loss
            # Zeros at the very start are not losses yet.
            if val or self._evals:
                self._check(val, row)

    def restart(self, step: int) -> None:
        """Keep everything: the validation data is the same, so the best loss stays the best."""

    def _check(self, val: float, row: Row) -> None:
        self._evals += 1
        self._vals.append(val)
        around = median(list(self._vals)[-at.OVERFIT_AROUND :])
        if self._evals == 1:
            self._first = self._best_around = val
        self._best_around = min(self._best_around, around)
        if self._evals == 1 or val < self._best:
            self._is_best(val, row)
            return
        if not self._incidents.val_spike_is_open or self._incident is not None:
            self._since.append(val)
        elif not self._since:
            return
        # Otherwise the jump may come back, and those before it have to be enough.
        noise = self._noise()
        middle = median(self._since)
        enough = max(at.OVERFIT_RISE * abs(self._best), at.NOTHING_LEFT_OF_VAL * abs(self._first))
        rise = middle - self._best
        if self._incident is not None:
            self._follow(self._incident, val, rise < at.OVERFIT_BACK * enough, row)
            return
        evals_since = self._evals - self._best_eval
        if evals_since < max(at.OVERFIT_CONFIRM, at.OVERFIT_CONFIRM_SHARE * self._best_eval):
            return
        if rise <= enough or val - self._best <= 0.5 * max(rise, enough) or self._train_rises():
            return
        sigmas = (middle - self._best_around) / max(noise, at.LEAST_VAL_NOISE * abs(self._best), 1e-300)
        evidence = sigmas + self._train_fall()
        is_long = evals_since >= at.OVERFIT_LONG
        least = at.OVERFIT_EVIDENCE_OF_MANY if is_long else at.OVERFIT_EVIDENCE
        if evidence < least or sigmas < at.OVERFIT_LEAST_SIGMAS:
            return
        is_clear = evidence >= at.OVERFIT_CLEAR_EVIDENCE
        if rise < at.OVERFIT_CLEAR_RISE * abs(self._best) and not is_clear:
            return
        # Few values say little about their noise: then only a steady climb counts.
        few = at.OVERFIT_CONFIRM_UNSTEADY - is_clear
        if evals_since >= few or self._climbs(rise):
            incident = self._report(VAL_LOSS, row, start_step=self._best_step, count=evals_since)
            # There is no percentage above 0.
            incident.variant = "never" if self._best_eval == 1 or not self._best else ""
            self._note(incident, val)

    def _climbs(self, rise: float) -> bool:
        since = [self._best, *self._since]
        return all(later > earlier - at.OVERFIT_DIP * rise for earlier, later in pairwise(since))

    def _is_best(self, val: float, row: Row) -> None:
        self._best, self._best_step, self._best_eval = val, row.step, self._evals
        self._train_at_best = self._train_now()
        self._since.clear()
        if self._incident is not None:
            self._resolve(row.step)

    def _follow(self, incident: Incident, val: float, is_back: bool, row: Row) -> None:
        if is_back:
            self._resolve(row.step)
            return
        incident.grow(row.step)
        self._note(incident, val)

    def _note(self, incident: Incident, val: float) -> None:
        evidence = incident.evidence
        evidence["best"], evidence["best_step"], evidence["now"] = self._best, self._best_step, val
        if self._best:
            evidence["rise_pct"] = round(100.0 * (val - self._best) / abs(self._best), 1)

    def _train_now(self) -> float | None:
        train = list(self._incidents.train_losses)
        return median(train[-at.SHORT_WINDOW :]) if train else None

    def _train_rises(self) -> bool:
        """Whether the training loss went up as well: then the run is unstable and not overfitting."""
        if self._incidents.never_learned:
            return True
        train = self._incidents.train_losses
        before, now = self._train_at_best, self._train_now()
        if before is None or now is None:
            return False
        if now > before + max(at.OVERFIT_TRAIN_SLACK * abs(before), change_sigma(train)):
            return True
        # Where few steps are logged, a training loss that has just exploded does not move its median yet.
        latest = median(list(train)[-at.TRAIN_NOW :])
        return latest > before + at.START_RISE * abs(before)

    def _train_fall(self) -> float:
        """How far the training loss fell since the best evaluation, in the unit of the evidence."""
        before, now = self._train_at_best, self._train_now()
        if before is None or now is None or before <= 0.0:
            return 0.0
        if now <= 0.0:
            return at.OVERFIT_MOST_OF_TRAIN
        return max(0.0, min(at.OVERFIT_MOST_OF_TRAIN, at.OVERFIT_PER_FALL * math.log(before / now)))

    def _noise(self) -> float:
        """The noise of the validation loss around its trend."""
        vals = list(self._vals)
        changes = [later - earlier for earlier, later in pairwise(vals)]
        if len(changes) < 2:
            return 0.0
        usual = median(changes)
        return CHANGE_TO_SIGMA * median([abs(change - usual) for change in changes])
