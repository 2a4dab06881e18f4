"""Spikes and divergence of the training loss: it rises above its level, and recovers or does not."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from operator import sub

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.detector import SingleIncidentDetector
from toolkit.diagnostics.finding import INFO
from toolkit.diagnostics.incident import Incident, Incidents
from toolkit.diagnostics.metric_aliases import LOSS, LR, Row, name_of
from toolkit.diagnostics.robust import CHANGE_TO_SIGMA, LossAxis, Window, median
from toolkit.diagnostics.step_batch import StepBatch

_SPIKE = "spike"
_DIVERGENCE = "divergence"
_MIDDLE = at.SHORT_WINDOW // 2
_ABOVE = at.LEVEL_WINDOW // 2
_BELOW = _ABOVE - 1
_ALLOWED = at.ALLOWANCE * CHANGE_TO_SIGMA
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
        self._top = 0.0
        self._same = 0
        self._same_since = 0
        self._level_before = 0.0
        self._best = 0.0
        self._best_step = 0
        self._best_of = 0
        self._has_best = False
        self._risen = 0
        self._lr = 0.0
        self._lr_raised_at = 0
        # The incident that is open: its level and noise stay what they were when it began.
        self._opened_as = _SPIKE
        self._opened_with: str | None = None
        self._is_start = False
        self._level = 0.0
        self._sigma = 0.0
        self._since = 0

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
            if self._incident is not None:
                # It rose and then became infinite or NaN.
                self._say_diverged(self._incident)
            return
        self._rows = rows = self._rows + 1
        lr = values.get(LR)
        if lr is not None:
            if lr > at.LR_RAISED * self._lr and rows > at.FIRST_RECORDS:
                self._lr_raised_at = rows
            self._lr = lr
        y = self._axis.place(loss)
        if self._axis.has_changed:
            self._change_axis(y, row)
        longer = self._longer
        if self._incident is not None:
            self._follow(self._incident, loss, y, row)
        elif len(longer) >= at.FIRST_RECORDS:
            # There are seven of them by now: the middle one is the fourth.
            level = min(sorted(self._recent)[_MIDDLE], longer.median)
            above = y - level
            self._above.append(above)
            if above > self._allowed or self._sum:
                self._watch(loss, y, level, row)
            if self._same or self._axis.is_plain or abs(y - self._previous) < _NEARLY_NO_CHANGE:
                self._watch_for_a_collapse(loss, y, row)
            if not rows % at.CLIMB_LOOK_EVERY or (
                rows <= at.CLIMB_SHORT and not rows % at.CLIMB_LOOK_EVERY_IF_SHORT
            ):
                self._watch_the_level(loss, row)
        elif len(longer) >= at.FIRST_RECORDS_FOR_A_BLOW_UP and not self._axis.is_plain:
            self._watch_for_a_blow_up(loss, y, row)
        if self._start is not None:
            self._watch_the_start(self._start, loss, y, row)
        self._recent.append(y)
        if self._incident is None:
            # Values during an incident are not usual values.
            longer.push(y)
            # Noise changes slowly: once there is a measure of it, every other record keeps it up to date.
            if rows & 1 or len(self._changes) < at.LEVEL_WINDOW:
                self._changes.push(abs(y - self._previous) if rows > 1 else 0.0)
                # Less than this above the level adds nothing: most records need no further look.
                self._allowed = at.ALLOWANCE * CHANGE_TO_SIGMA * self._changes.median
        self._previous = y
        if y > self._highest or rows == 1:
            self._highest = y

    def skim(self, batch: StepBatch, start: int) -> int:
        """Pass over losses at their level."""
        lowest, _ = batch.range_of(LOSS)
        if (
            self._incident is not None
            or self._start is not None
            or self._same
            or start == len(batch)
            or not lowest > self._axis.bottom > 0.0
            or min(len(self._changes), len(self._longer)) < at.LEVEL_WINDOW
            or self._rows < at.CLIMB_SHORT
        ):
            return start
        rates = batch.columns.get(LR)
        if rates is not None:
            lowest_rate, highest_rate = batch.range_of(LR)
            if highest_rate > at.LR_RAISED * min(lowest_rate, self._lr):
                return start
        end = self._pass_over(batch, start)
        if end > start:
            losses = batch.columns[LOSS]
            self._last_loss, self._last_step = losses[end - 1], batch.steps[end - 1]
            # The logarithm of the highest loss is the highest of the logarithms.
            self._highest = max(self._highest, math.log(max(losses[start:end])))
            if rates is not None:
                self._lr = rates[end - 1]
        return end

    def _pass_over(self, batch: StepBatch, start: int) -> int:
        """Move the windows, which are full, up to a loss that needs a closer look; return its place."""
        ys, changes_between = batch.once(_logarithms)
        ys = ys[start:]
        gap = self._axis.gap
        climbed, no_change, alone = gap(0.0, at.CLIMB), gap(0.0, at.NO_CHANGE), gap(0.0, at.ALONE_RISE)
        rows, allowed, total, floor = self._rows, self._allowed, self._sum, self._axis.floor(0.0)
        changes = [abs(ys[0] - self._previous), *changes_between[start:]]
        # Every other change comes into its window, and one leaves it.
        all_changes = [*self._changes.newest, *changes[rows & 1 :: 2]]
        changes_in_turn = zip(all_changes[at.LEVEL_WINDOW :], all_changes, strict=False)
        all_longer, all_recent = [*self._longer.newest, *ys], [*self._recent, *ys]
        # Moved in place: a call for each record would take as long as the rest.
        longer, recent, noises = self._longer.ordered, sorted(self._recent), self._changes.ordered
        aboves: list[float] = []
        add_above, leave_recent = aboves.append, recent.remove
        look_every, best = at.CLIMB_LOOK_EVERY, self._best if self._has_best else math.inf
        if min(changes) <= no_change:
            ys = ys[: next(place for place, change in enumerate(changes) if change <= no_change)]
        for y, leaves, leaves_recent in zip(ys, all_longer, all_recent, strict=False):
            level, middle = 0.5 * (longer[_BELOW] + longer[_ABOVE]), recent[_MIDDLE]
            above = y - (level if level < middle else middle)  # noqa: FURB136
            rows += 1
            is_raised = above > allowed or total
            if is_raised:
                sigma = max(CHANGE_TO_SIGMA * (0.5 * (noises[_BELOW] + noises[_ABOVE])), floor)
                raised = _raised(total, above / sigma)
                if above >= alone or raised > at.ENOUGH:
                    break
            if not rows % look_every:
                if level < best:
                    self._best = best = level
                    self._best_of, self._has_best = at.LEVEL_WINDOW, True
                    self._best_step = batch.steps[start + len(aboves)]
                elif level - best >= climbed:
                    break
                self._risen = 0
            if is_raised:
                place = start + len(aboves)
                total = self._add_up(batch.columns[LOSS][place], raised, batch.steps[place])
            add_above(above)
            leave_recent(leaves_recent)
            insort(recent, y)
            del longer[bisect_left(longer, leaves)]
            insort(longer, y)
            if rows & 1:
                comes, goes = next(changes_in_turn)
                del noises[bisect_left(noises, goes)]
                insort(noises, comes)
                allowed = _ALLOWED * (0.5 * (noises[_BELOW] + noises[_ABOVE]))
        count = len(aboves)
        if count:
            rows = self._rows + count
            moved = (rows + 1) // 2 - (self._rows + 1) // 2
            self._changes.newest = deque(all_changes[moved : moved + at.LEVEL_WINDOW])
            self._longer.newest = deque(all_longer[count : count + at.LEVEL_WINDOW])
            self._recent.extend(ys[:count])
            self._above.extend(aboves)
            self._rows, self._allowed, self._previous = rows, allowed, ys[count - 1]
        return start + count

    def restart(self, step: int) -> None:
        """Resolve the open incident: another state of the model has another level."""
        if self._incident is not None:
            self._incident.variant = "left behind"
        super().restart(step)

    def _resolve(self, step: int, *, end_step: int | None = None) -> None:
        super()._resolve(step, end_step=end_step)
        self._incidents.never_learned = False

    def _change_axis(self, y: float, row: Row) -> None:
        """Start over: a negative loss is below every earlier level, and earlier distances are meaningless."""
        if self._incident is not None:
            self._end(self._incident, row)
        self._forget()
        self._highest = y

    def _forget(self) -> None:
        # Only the first losses of a run say what the weights could do before the training.
        self._start = None
        self._sum = 0.0
        self._same = 0
        self._has_best = False
        self._recent.clear()
        self._longer.clear()
        self._changes.clear()
        self._above.clear()

    def _noise(self, level: float) -> float:
        return max(CHANGE_TO_SIGMA * self._changes.median, self._axis.floor(level))

    def _watch(self, loss: float, y: float, level: float, row: Row) -> None:
        sigma = self._noise(level)
        total = self._add_up(loss, _raised(self._sum, (y - level) / sigma), row.step)
        if total <= 0.0:
            return
        rises = at.RISES[min(self._high, len(at.RISES)) - 1]
        is_high = y - level > self._axis.gap(level, rises)
        if not is_high and self._high >= len(at.RISES) and total > at.TOP_ENOUGH:
            top = self._axis.place(self._top)
            is_high = top - level > self._axis.gap(level, at.TOP_RISE)
        if (total > at.ENOUGH and is_high and self._is_beyond_its_tail(sigma)) or self._is_above_all(
            y, level, sigma
        ):
            incident = self._begin(self._began, level, sigma, self._top, row)
            incident.count += self._high - 1
            self._note(incident, loss)

    def _add_up(self, loss: float, total: float, step: int) -> float:
        """Take `total` as the sum of how far losses are above their level, up to this one; return it, at least 0."""
        if total <= 0.0:
            self._sum = 0.0
            return 0.0
        if self._sum == 0.0:
            self._began = step
            self._high = 0
            self._top = loss
        self._sum = total
        self._top = max(self._top, loss)
        self._high += 1
        return total

    def _is_beyond_its_tail(self, sigma: float) -> bool:
        """Whether it is enough for a loss whose noise has a long tail upwards, as that of a diffusion model has.

        Its quartiles say nothing about batches that are hard by chance; how high those are is seen from the highest
        of the last records.
        """
        records = list(self._above)
        before, now = sorted(records[: -self._high]), records[-self._high :]
        if not before:
            return True
        tail = before[min(len(before) - 1, int(at.TAIL_SHARE * len(before)))]
        sigma = max(sigma, tail / at.TAIL_SIGMAS)
        total = 0.0
        for above in now:
            total = max(0.0, total + min(above / sigma, at.MOST_OF_ONE_RECORD) - at.ALLOWANCE)
        return total > at.ENOUGH

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
            self._begin(row.step, self._longer.median, self._axis.floor(self._highest), loss, row)
            self._is_start = self._start is not None

    def _watch_the_start(self, start: list[tuple[int, float]], loss: float, y: float, row: Row) -> None:
        """Detect a run that left its first losses within a few records: later levels know nothing of them."""
        start.append((row.step, y))
        if len(start) == at.START_RECORDS:
            self._start = None
        if self._incident is not None or len(start) <= at.START_AFTER:
            return
        ys = [value for _, value in start]
        for lead in range(1, min(at.START_LEAD, len(start) - at.START_AFTER) + 1):
            first, since = ys[:lead], ys[lead:]
            level = median(first)
            if min(since) - max(first) <= self._axis.gap(level, at.START_APART):
                continue
            rise = max(self._axis.gap(level, at.START_RISE), at.START_SIGMAS * _deviation(since))
            if median(since) - level > rise:
                top = self._axis.value(max(since))
                incident = self._begin(start[lead][0], level, self._axis.floor(level), top, row)
                incident.count = len(since)
                self._note(incident, loss)
                self._is_start = True
                self._say_diverged(incident)
                return

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
            incident = self._begin(self._same_since, level, self._axis.floor(level), loss, row)
            incident.variant = "collapse"
            self._opened_as = _DIVERGENCE
            self._incidents.escalate(incident, _DIVERGENCE)

    def _watch_the_level(self, loss: float, row: Row) -> None:
        """Detect a climb that is too slow for the recent level by comparing with the best one."""
        if self._incident is not None:
            return
        # In a short run, fifty records are most of it: a quarter of them has to do.
        size = min(len(self._longer), max(at.SHORT_WINDOW, self._rows // at.CLIMB_PART))
        level = self._longer.median if size == len(self._longer) else median(self._longer.values()[-size:])
        if level < self._best or not self._has_best:
            self._best, self._best_step, self._has_best = level, row.step, True
            self._best_of = size
            self._risen = 0
            return
        sigma = self._noise(level)
        # The middle of a window that is not full yet is less certain, and the lowest of several such is low by luck.
        luck = math.sqrt(at.LEVEL_WINDOW * (0.5 / self._best_of + 0.5 / size))
        if level - self._best < max(self._axis.gap(self._best, at.CLIMB), at.CLIMB_SIGMAS * sigma * luck):
            self._risen = 0
            return
        self._risen += at.CLIMB_LOOK_EVERY if self._rows > at.CLIMB_SHORT else at.CLIMB_LOOK_EVERY_IF_SHORT
        if self._risen >= max(at.CLIMB_RECORDS, at.CLIMB_SHARE * self._rows):
            incident = self._begin(self._best_step, self._best, sigma, loss, row)
            incident.variant = "slow"
            self._opened_as = _DIVERGENCE
            self._incidents.escalate(incident, _DIVERGENCE)

    def _begin(self, start: int, level: float, sigma: float, loss: float, row: Row) -> Incident:
        self._sum = 0.0
        self._same = 0
        self._level, self._sigma, self._since = level, sigma, self._rows
        usual = self._axis.value(level)
        self._incident = incident = self._incidents.open(
            _SPIKE,
            name_of(LOSS, row.record),
            start_step=start,
            noticed_step=row.step,
            level=usual,
            peak=loss,
            ratio=loss / usual if usual > 0.0 else 0.0,
        )
        self._opened_as = incident.kind
        self._is_start = False
        incident.variant = ""
        was_mild = incident.repeats == 0 or incident.severity == INFO
        incident.severity = None
        if was_mild and self._lr_raised_at and self._rows - self._lr_raised_at <= at.LR_RAISED_WITHIN:
            # A schedule that restarts raises the loss on purpose.
            incident.variant = "after a restart"
            incident.severity = INFO
        self._opened_with = incident.severity
        self._note(incident, loss)
        return incident

    def _note(self, incident: Incident, loss: float) -> None:
        evidence = incident.evidence
        evidence["now"] = loss
        if loss > evidence["peak"]:
            evidence["peak"] = loss
        level = evidence["level"]
        if level > 0.0:
            evidence["ratio"] = evidence["peak"] / level
            evidence["now_ratio"] = loss / level

    def _follow(self, incident: Incident, loss: float, y: float, row: Row) -> None:
        self._note(incident, loss)
        lasted = self._rows - self._since
        near = max(at.BACK_SIGMAS * self._sigma, self._axis.gap(self._level, at.BACK_RISE))
        if y - self._level > near:
            incident.end_step = row.step
            incident.count += 1
        recent = median(self._recent)
        if lasted < at.CALM_RECORDS or recent - self._level > near:
            if lasted >= max(at.LASTING_RECORDS, at.LASTING_SHARE * self._rows):
                self._say_diverged(incident)
            return
        self._end(incident, row)

    def _say_diverged(self, incident: Incident) -> None:
        if incident.severity is not None:
            incident.severity = None
            self._incidents.mark_changed(incident)
        if incident.variant == "after a restart":
            incident.variant = ""
        if self._is_start:
            incident.variant = "from the start"
            incident.evidence.setdefault("first", incident.evidence["level"])
            self._incidents.never_learned = True
        self._incidents.escalate(incident, _DIVERGENCE)

    def _end(self, incident: Incident, row: Row) -> None:
        if self._rows - self._since < at.LONG_SHARE * self._rows:
            self._incidents.escalate(incident, self._opened_as)
            incident.severity = self._opened_with
        incident.variant = "recovered"
        self._resolve(row.step)
        self._has_best = False


def _logarithms(batch: StepBatch) -> tuple[list[float], list[float]]:
    """Return the logarithms of the losses, and by how much each but the first differs from the one before it."""
    ys = list(map(math.log, batch.columns[LOSS]))
    return ys, list(map(abs, map(sub, ys[1:], ys)))


def _raised(total: float, deviations: float) -> float:
    """Return the sum with one more record; what is usual for a record is taken off."""
    return total + min(deviations, at.MOST_OF_ONE_RECORD) - at.ALLOWANCE


def _deviation(values: list[float]) -> float:
    """The plain standard deviation: of a dozen values the quartiles say too little."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
