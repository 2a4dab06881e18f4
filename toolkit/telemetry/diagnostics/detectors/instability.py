"""Spikes and divergence of the training loss: it rises above its level, and recovers or does not."""

from __future__ import annotations

import math
from collections import deque
from operator import itemgetter
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incident, Incidents, LrRaise
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, Row, name_of
from toolkit.telemetry.diagnostics.robust import CHANGE_TO_SIGMA, LossAxis, Window, median

ALLOWED: Final = at.ALLOWANCE * CHANGE_TO_SIGMA
"""How many of the usual changes a loss may be above its level before that counts."""
_SPIKE = "spike"
_DIVERGENCE = "divergence"
_MIDDLE = at.SHORT_WINDOW // 2
# On the logarithmic axis: beyond this it is not worth a closer look.
_NEARLY_NO_CHANGE = 2.0 * at.NO_CHANGE


class Instability(SingleIncidentDetector):
    """Adds up how far the loss is above its recent level; enough is a spike, and a spike that lasts a divergence.

    Distances are ratios (the axis is logarithmic) while the loss is positive, so that a jump from 0.003 to 0.02 at the
    end of a run counts like one from 3 to 20 at its beginning.
    """

    signals = (LOSS,)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._axis = LossAxis()
        self._rows = 0
        # What is usual: the level of the last few records and of more of them, and how much one differs from the next.
        self._recent: deque[float] = deque(maxlen=at.SHORT_WINDOW)
        self._longer = Window(at.LEVEL_WINDOW)
        self._changes = Window(at.LEVEL_WINDOW)
        self._above: deque[float] = deque(maxlen=at.TAIL_WINDOW)
        self._last_loss = math.nan
        self._last_step = 0
        self._previous = 0.0
        self._highest = 0.0
        self._start: list[tuple[int, float]] | None = []
        # What may become an incident.
        self._allowed = 0.0
        self._sum = 0.0
        self._high = 0
        self._began = 0
        self._began_at_row = 0
        self._top = (0, 0.0)
        self._same = 0
        self._same_since = 0
        self._level_before = 0.0
        self._best = 0.0
        self._best_step = 0
        self._best_at_row = 0
        self._best_of = 0
        self._has_best = False
        self._risen = 0
        self._lr = 0.0
        # The lowest of the last few.
        self._low_lr = 0.0
        self._low_lr_at = 0
        # The incident that is open: its level and noise stay what they were when it began.
        self._is_start = self._is_doubtful = False
        self._left = _Left()
        # A divergence stays open while its own level is learnt: a spike on top of it is an incident of its own,
        # which is reported when it is over, as until then it may be the divergence that goes on.
        self._divergence: Incident | None = None
        self._left_for_long = self._left
        self._usual_before = (self._longer, self._changes, self._above)
        # A spike that came to rest above its level, and what it left: should that be a divergence, it is the same.
        self._rested: tuple[Incident, _Left] | None = None
        # A divergence that was over after a quarter of the run, and the number of records of which it is less.
        self._long: Incident | None = None
        self._long_until = 0.0

    def take(self, row: Row) -> None:
        """Read one loss."""
        values = row.values
        loss = values[LOSS]
        if not loss and not self._rows:
            # Some trainers log zeros until a buffer is full or a first batch counts: that is not a level.
            return
        if loss == self._last_loss and row.step == self._last_step:
            # Logged twice: the second says nothing about noise.
            return
        self._last_loss, self._last_step = loss, row.step
        if loss - loss != 0.0:
            if self._incident is not None and self._divergence is None:
                # It rose and then became infinite or NaN.
                self._say_diverged(self._incident)
            return
        self._rows = rows = self._rows + 1
        lr = values.get(LR)
        if lr is not None:
            self._lr = lr
            if lr > at.LR_RAISED * self._low_lr:
                # Before that it is a warm-up.
                if self._low_lr_at > at.FIRST_RECORDS:
                    self._incidents.lr_raised = LrRaise(row.step, self._incidents.rows, self._low_lr, lr)
                self._low_lr, self._low_lr_at = lr, rows
            elif lr <= self._low_lr or rows - self._low_lr_at > at.LR_RAISED_OVER:
                self._low_lr, self._low_lr_at = lr, rows
        axis = self._axis
        y = axis.place(loss)
        if axis.has_changed:
            self._change_axis(y, row)
        if self._divergence is not None:
            self._follow_divergence(self._divergence, loss, y, row)
        elif self._long is not None and rows > self._long_until:
            self._incidents.escalate(self._long, _SPIKE)
            self._long = None
        longer = self._longer
        if self._incident is not None:
            self._follow(self._incident, loss, y, row)
        elif len(longer.newest) >= at.FIRST_RECORDS:
            # There are seven of them by now: the middle one is the fourth.
            level, of_more = sorted(self._recent)[_MIDDLE], longer.median
            if of_more < level:
                level = of_more
            above = y - level
            self._above.append(above)
            if above > self._allowed or self._sum:
                self._watch(loss, y, level, row)
            if self._divergence is None:
                if self._same or axis.is_plain or abs(y - self._previous) < _NEARLY_NO_CHANGE:
                    self._watch_for_a_collapse(loss, y, row)
                if not rows % at.CLIMB_LOOK_EVERY or (
                    rows <= at.CLIMB_SHORT and not rows % at.CLIMB_LOOK_EVERY_IF_SHORT
                ):
                    self._watch_the_level(loss, y, row)
        elif len(longer.newest) >= at.FIRST_RECORDS_FOR_A_BLOW_UP and not axis.is_plain:
            self._watch_for_a_blow_up(loss, y, row)
        if self._start is not None:
            self._watch_the_start(self._start, loss, y, row)
        self._recent.append(y)
        if self._incident is None:
            # Values during an incident are not usual values.
            longer.push(y)
            # Noise changes slowly: once there is a measure of it, every other record keeps it up to date.
            if rows & 1 or len(self._changes.newest) < at.LEVEL_WINDOW:
                self._changes.push(abs(y - self._previous) if rows > 1 else 0.0)
                # Less than this above the level adds nothing: most records need no further look.
                self._allowed = ALLOWED * self._changes.median
            if y > self._highest or rows == 1:
                self._highest = y
        self._previous = y

    def restart(self, step: int) -> None:
        """Resolve what is open: another state of the model has another level."""
        incident = self._divergence or self._incident
        if incident is not None:
            incident.variant = "left behind"
        self._end_divergence(step)
        self._resolve(step)
        self._start_over()

    def _change_axis(self, y: float, row: Row) -> None:
        """Start over: a negative loss is below every earlier level, and earlier distances are meaningless."""
        self._end_divergence(row.step)
        if self._incident is not None:
            self._end(self._incident, row)
        self._start_over()
        self._highest = y

    def _start_over(self) -> None:
        # Only the first losses of a run say what the weights could do before the training.
        self._start = None
        self._sum = 0.0
        self._same = 0
        self._has_best = False
        self._rested = None
        self._recent.clear()
        self._longer.clear()
        self._changes.clear()
        self._above.clear()

    def _noise(self, level: float) -> float:
        return max(CHANGE_TO_SIGMA * self._changes.median, self._axis.floor(level))

    def _watch(self, loss: float, y: float, level: float, row: Row) -> None:
        sigma = self._noise(level)
        # What is usual for a record is taken off.
        total = self._sum + min((y - level) / sigma, at.MOST_OF_ONE_RECORD) - at.ALLOWANCE
        if total <= 0.0:
            self._sum = 0.0
            return
        if self._sum == 0.0:
            self._began, self._began_at_row = row.step, self._incidents.rows
            self._high = 0
            self._top = (row.step, loss)
        self._sum = total
        if loss > self._top[1]:
            self._top = (row.step, loss)
        self._high += 1
        rises = at.RISES[min(self._high, len(at.RISES)) - 1]
        is_high = y - level > self._axis.gap(level, rises)
        if not is_high and self._high >= len(at.RISES) and total > at.TOP_ENOUGH:
            top = self._axis.place(self._top[1])
            is_high = top - level > self._axis.gap(level, at.TOP_RISE)
        enough = at.ENOUGH_IF_HIGH if y - level > self._axis.gap(level, at.RISES[0]) else at.ENOUGH
        if (total > enough and is_high and self._is_beyond_its_tail(sigma, enough)) or self._is_above_all(
            y, level, sigma
        ):
            incident = self._begin(self._began, level, sigma, self._top, row)
            incident.count += self._high - 1
            self._note(incident, loss, row)
            # They are no measure of what is usual.
            for _ in range(min(self._high, len(self._above))):
                self._above.pop()

    def _is_beyond_its_tail(self, sigma: float, enough: float) -> bool:
        """Whether it is enough for a loss whose noise has a long tail upwards, as that of a diffusion model has.

        Its quartiles say nothing about batches that are hard by chance; how high those are is seen from the highest
        of the last records.
        """
        records = list(self._above)
        before, now = sorted(records[: -self._high]), records[-self._high :]
        if not before:
            return True
        tail = before[min(len(before) - 1, int(at.TAIL_SHARE * len(before)))]
        drift = self._drift() if self._high >= len(at.RISES) else 0.0
        sigma = max(sigma, tail / at.TAIL_SIGMAS, at.DRIFT * drift)
        total = 0.0
        for above in now:
            total = max(0.0, total + min(above / sigma, at.MOST_OF_ONE_RECORD) - at.ALLOWANCE)
        return total > enough

    def _drift(self) -> float:
        """How much losses a few records apart differ: more than neighbours do where the log has running means."""
        values = self._longer.values()
        changes = Window(at.LEVEL_WINDOW)
        for earlier, later in zip(values, values[at.SHORT_WINDOW :], strict=False):
            changes.push(later - earlier)
        return changes.sigma / math.sqrt(2.0) if len(changes) > at.SHORT_WINDOW else 0.0

    def _is_above_all(self, y: float, level: float, sigma: float) -> bool:
        """Whether one record is so far above its level, and above every recent one, that no noise explains it."""
        if self._axis.is_plain or y - level < max(
            self._axis.gap(level, at.ALONE_RISE), at.ALONE_SIGMAS * sigma
        ):
            return False
        before = list(self._above)[:-1]
        return y - level > max(before, default=0.0) + self._axis.gap(level, at.ALONE_ABOVE)

    def _watch_for_a_blow_up(self, loss: float, y: float, row: Row) -> None:
        spread = self._longer.quantile(1.0) - self._longer.quantile(0.0)
        if y - self._highest > max(self._axis.gap(self._highest, at.BLOW_UP), at.BLOW_UP_SPREADS * spread):
            level, since, sigma = self._longer.median, row.step, self._axis.floor(self._highest)
            # After an incident the windows know nothing of the first losses.
            is_start = self._start is not None and len(self._start) == len(self._longer)
            if is_start:
                level, since = self._left_first(self._start or [], level, since)
            self._begin(since, level, sigma, (row.step, loss), row)
            self._is_start = is_start

    def _watch_the_start(self, start: list[tuple[int, float]], loss: float, y: float, row: Row) -> None:
        """Detect a run that left its first losses within a few records: later levels know nothing of them."""
        start.append((row.step, y))
        if len(start) == at.START_RECORDS:
            self._start = None
        if self._incident is not None or self._divergence is not None or len(start) <= at.START_AFTER:
            return
        ys = [value for _, value in start]
        for lead in range(1, min(at.START_LEAD, len(start) - at.START_AFTER) + 1):
            first, since = ys[:lead], ys[lead:]
            level = median(first)
            if min(since) - max(first) <= self._axis.gap(level, at.START_APART):
                continue
            rise = max(self._axis.gap(level, at.START_RISE), at.START_SIGMAS * _deviation(since))
            if median(since) - level > rise:
                top_step, top_y = max(start[lead:], key=itemgetter(1))
                top = (top_step, self._axis.value(top_y))
                level, step = self._left_first(start, level, start[lead][0])
                incident = self._begin(step, level, self._axis.floor(level), top, row)
                # It may be one that began later, from a level that was not the first one any more.
                incident.start_step, incident.count = step, len(since)
                incident.evidence |= {"level": self._axis.value(level), "peak": top[1], "peak_step": top[0]}
                self._note(incident, loss, row)
                self._is_start = True
                self._say_diverged(incident)
                return

    def _left_first(self, start: list[tuple[int, float]], level: float, step: int) -> tuple[float, int]:
        """Return the level of the first losses and the step at which they left it, perhaps before they left `level`."""
        first = start[0][1]
        apart = self._axis.gap(first, at.START_RISE)
        level = level if level - first <= apart else first
        return level, next((before for before, value in start if value - level > apart), step)

    def _watch_for_a_collapse(self, loss: float, y: float, row: Row) -> None:
        """A loss that repeats itself, above where it was, comes from a model that gives one answer to everything."""
        if self._incident is not None or abs(y - self._previous) > self._axis.gap(y, at.NO_CHANGE):
            self._same = 0
            return
        if self._same == 0:
            self._same_since = row.step
            self._level_before = min(median(self._recent), self._longer.median)
        self._same += 1
        level = self._level_before
        if self._same == at.SAME_RECORDS and y - level > self._axis.gap(level, at.COLLAPSE_RISE):
            incident = self._begin(
                self._same_since, level, self._axis.floor(level), (row.step, loss), row, _DIVERGENCE
            )
            self._name_divergence(incident)
            incident.variant = "collapse"
            self._keep_open(incident)

    def _watch_the_level(self, loss: float, y: float, row: Row) -> None:
        """Detect a climb that is too slow for the recent level by comparing with the best one."""
        if self._incident is not None or self._divergence is not None:
            return
        # In a short run, fifty records are most of it: a quarter of them has to do.
        size = min(len(self._longer), max(at.SHORT_WINDOW, self._rows // at.CLIMB_PART))
        level = self._longer.median if size == len(self._longer) else median(self._longer.values()[-size:])
        if level < self._best or not self._has_best:
            self._best, self._best_step, self._has_best = level, row.step, True
            self._best_at_row = self._incidents.rows
            self._best_of = size
            self._risen = 0
            return
        # Around zero every level is near the best one: there the changes from value to value say too little.
        sigma = max(self._noise(level), self._axis.spread)
        # The middle of a window that is not full yet is less certain, and the lowest of several such is low by luck.
        luck = math.sqrt(at.LEVEL_WINDOW / self._best_of)
        if level - self._best < max(self._axis.gap(self._best, at.CLIMB), at.CLIMB_SIGMAS * sigma * luck):
            self._risen = 0
            return
        self._risen += at.CLIMB_LOOK_EVERY if self._rows > at.CLIMB_SHORT else at.CLIMB_LOOK_EVERY_IF_SHORT
        if y > self._best and self._risen >= max(at.CLIMB_RECORDS, at.CLIMB_SHARE * self._rows):
            if self._rested is not None and self._rested[0].start_step >= self._best_step:
                (incident, self._left), self._rested = self._rested, None
                # At rest it was no divergence.
                self._left.since = self._rows
                self._incidents.reopen(incident, noticed_step=row.step)
                self._note(incident, loss, row)
                self._stay_up(incident)
                return
            incident = self._begin(self._best_step, self._best, sigma, (row.step, loss), row, _DIVERGENCE)
            incident.variant = "slow"
            self._keep_open(incident)

    def _begin(
        self, start: int, level: float, sigma: float, top: tuple[int, float], row: Row, kind: str = _SPIKE
    ) -> Incident:
        peak_step, peak = top
        self._sum = 0.0
        self._same = 0
        self._rested = None
        self._left = _Left(level, sigma, self._rows, self._axis.place(peak))
        self._left.highest = self._highest
        usual = self._axis.value(level)
        rows = {self._best_step: self._best_at_row, self._began: self._began_at_row}
        raised = self._incidents.lr_raise_before(start, rows.get(start))
        incidents = self._incidents if self._divergence is None else Incidents()
        self._incident = incident = incidents.open(
            _SPIKE if raised else kind,
            name_of(LOSS, row.record),
            start_step=start,
            noticed_step=row.step,
            level=usual,
            peak=peak,
            peak_step=peak_step,
            ratio=peak / usual if usual > 0.0 else 0.0,
        )
        self._is_start = False
        incident.variant = ""
        was_mild = incident.repeats == 0 or incident.severity == INFO
        incident.severity = None
        if was_mild and raised:
            # A schedule that restarts raises the loss on purpose.
            incident.evidence |= raised
            incident.severity = INFO
        self._is_doubtful = self._incidents.loss_may_rise
        if self._is_doubtful or self._axis.is_around_zero(level):
            incident.severity = INFO
        self._left.severity = incident.severity
        self._note(incident, peak, row)
        return incident

    def _note(self, incident: Incident, loss: float, row: Row) -> None:
        evidence = incident.evidence
        evidence["now"] = loss
        if loss > evidence["peak"]:
            evidence["peak"], evidence["peak_step"] = loss, row.step
        level = evidence["level"]
        if level > 0.0:
            evidence["ratio"] = evidence["peak"] / level
            evidence["now_ratio"] = loss / level

    def _is_back(self, incident: Incident, left: _Left, loss: float, y: float, row: Row) -> bool:
        """Add one more loss to `incident`; return whether the last ones are near the level that it left."""
        self._note(incident, loss, row)
        left.peak = max(left.peak, y)
        near = max(at.BACK_SIGMAS * left.sigma, self._axis.gap(left.level, at.BACK_RISE))
        if y - left.level > near:
            incident.grow(row.step)
        return self._rows - left.since >= at.CALM_RECORDS and median(self._recent) - left.level <= near

    def _follow(self, incident: Incident, loss: float, y: float, row: Row) -> None:
        left = self._left
        if self._is_back(incident, left, loss, y, row):
            self._end(incident, row)
        elif _is_up(incident, left, loss, y) and self._rows - left.since >= max(
            at.LASTING_RECORDS, at.LASTING_SHARE * self._rows
        ):
            if self._divergence is not None:
                # A step up within the divergence.
                self._incident = None
                self._learn_again()
            elif median(self._recent) - left.level > at.BACK_SHARE * (left.peak - left.level):
                self._stay_up(incident)
            else:
                # Most of the way back: what is usual is where it came to rest.
                self._end(incident, row, "at rest")
                self._learn_again()
                self._rested = incident, left

    def _follow_divergence(self, incident: Incident, loss: float, y: float, row: Row) -> None:
        if self._is_back(incident, self._left_for_long, loss, y, row):
            incident.variant = "recovered"
            # It has learnt something after all.
            incident.evidence.pop("first", None)
            if f"-{_SPIKE}-" in incident.id:
                lasted = self._rows - self._left_for_long.since
                self._long, self._long_until = incident, lasted / at.LONG_SHARE
                incident.severity = self._left_for_long.severity
            if self._incident is not None:
                self._end(self._incident, row)
            self._end_divergence(row.step)
        elif (
            incident.kind == _SPIKE
            and _is_up(incident, self._left_for_long, loss, y)
            and not self._is_of_the_lr(incident, self._left_for_long)
        ):
            self._name_divergence(incident)

    def _stay_up(self, incident: Incident) -> None:
        """Follow a loss that does not come back: a divergence, unless that of the learning rate explains it."""
        if not self._is_of_the_lr(incident, self._left):
            self._name_divergence(incident)
        self._keep_open(incident)

    def _is_of_the_lr(self, incident: Incident, left: _Left) -> bool:
        """Whether the learning rate was raised and is still up, and the loss is no higher than it ever was before.

        Where the rate has come down again, the loss has to follow it.
        """
        raised, before = incident.evidence.get("lr", 0.0), incident.evidence.get("lr_before", math.inf)
        now = median(self._recent)
        return now <= left.highest and (
            self._lr > max(at.LR_BACK * before, at.LR_DECAYED * raised)
            or (before < math.inf and now - left.level <= at.BACK_SHARE * (left.peak - left.level))
        )

    def _say_diverged(self, incident: Incident) -> None:
        self._name_divergence(incident)
        self._keep_open(incident)

    def _name_divergence(self, incident: Incident) -> None:
        if incident.severity is not None and not self._is_doubtful:
            incident.severity = None
            self._incidents.mark_changed(incident)
        incident.variant = ""
        if self._is_start:
            incident.variant = "from the start"
            incident.evidence.setdefault("first", incident.evidence["level"])
            self._incidents.never_learned = True
        self._incidents.escalate(incident, _DIVERGENCE)

    def _keep_open(self, incident: Incident) -> None:
        """Learn the level of a divergence, until the loss is back where it was before."""
        self._usual_before = (self._longer, self._changes, self._above)
        self._learn_again()
        self._divergence, self._left_for_long, self._incident = incident, self._left, None

    def _learn_again(self) -> None:
        self._longer, self._changes = Window(at.LEVEL_WINDOW), Window(at.LEVEL_WINDOW)
        self._above = deque(maxlen=at.TAIL_WINDOW)
        self._sum = 0.0

    def _end_divergence(self, step: int) -> None:
        incident = self._divergence
        if incident is None:
            return
        self._divergence = self._incident = None
        self._incidents.never_learned = False
        self._longer, self._changes, self._above = self._usual_before
        self._allowed = ALLOWED * self._changes.median if len(self._changes) else 0.0
        self._has_best = False
        self._incidents.close(incident, resolved_step=step)

    def _end(self, incident: Incident, row: Row, variant: str = "recovered") -> None:
        if self._divergence is not None:
            on_top = incident
            self._incident = incident = self._incidents.open(
                _SPIKE,
                on_top.metric,
                start_step=on_top.start_step,
                noticed_step=row.step,
                count=on_top.count,
                **on_top.evidence,
            )
            incident.end_step, incident.severity = on_top.end_step, on_top.severity
        incident.variant = variant
        self._resolve(row.step)


class _Left:
    """What an incident left: the level and the noise, at which record, and how high the loss went and had been."""

    __slots__ = ("highest", "level", "peak", "severity", "sigma", "since")

    def __init__(self, level: float = 0.0, sigma: float = 0.0, since: int = 0, peak: float = 0.0) -> None:
        self.level, self.sigma, self.since, self.peak = level, sigma, since, peak
        self.highest = peak
        self.severity: str | None = None


def _is_up(incident: Incident, left: _Left, loss: float, y: float) -> bool:
    """Whether this loss is above the level before: that it has not come back would be wrong of a lower one."""
    return y > left.level and loss > incident.evidence["level"]


def _deviation(values: list[float]) -> float:
    """The plain standard deviation: of a dozen values the quartiles say too little."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
