"""Assigns the seconds of one session to slots as its records come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Final

from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.timing import names
from toolkit.telemetry.timing.power import PowerMeter, watts_in
from toolkit.telemetry.timing.record_fields import LONGEST_S, seconds_in, step_in, time_in
from toolkit.telemetry.timing.segments import (
    CHECKPOINT,
    DATA_WAIT,
    EARLY,
    FIELDS,
    OTHER,
    REST,
    SLOT_OF,
    SLOTS,
    TRAINING,
    UNSEEN,
    Segment,
    Sums,
    cut_off,
)
from toolkit.telemetry.timing.timeline import Timeline, at_most

_LOADING: Final = names.TIME_PREFIX + names.DATA_LOADING
_OWN_SLOTS: Final = (*SLOT_OF.values(), OTHER)
_MOST_OWN_SPANS: Final = 1_000
_MOST_SAVED: Final = 20_000
_LONGEST_LEAD_S: Final = 86_400.0
"""A process starts at most this long before its logger."""


class SessionTime:
    """One session: its timeline, and the open segment after the last boundary.

    A boundary is a record with seconds or steps. Times are seconds on the session's own clock.
    """

    def __init__(self, number: int, *, not_before: float = 0.0, paces: Iterable[float] = ()) -> None:
        self.number = number
        self.perf_tag: str | None = None
        self.timeline = Timeline(paces)
        self.begins_at: int | None = None
        """The step it resumed from."""
        self.gets_to: int | None = None
        self.saved: set[int] = set()
        """Steps with a checkpoint."""
        self.origin: float | None = None
        """The wall time at which its clock was zero."""
        self.lead_s = 0.0
        """How long before that it started: a span may be dated back to the start of the process."""
        self.last_at = 0.0
        self.last_time: float | None = None
        self.is_over = False
        self.times_training = False
        self.loading_s = self.waiting_s = 0.0
        """Seconds in which any thread loaded data, and in which the loop waited for data."""
        self._not_before = not_before
        self._boundary_at = 0.0
        self._step: int | None = None
        """At the last boundary."""
        self._unplaced_lead_s = 0.0
        self._last_logged: int | None = None
        self._has_begun = False
        self._early_left_s = 0.0
        """Seconds of the open segment that passed before training began."""
        self._first_early_s = 0.0
        self._first_steps = 0
        self._cover = SpanCover()
        self._own_cover = SpanCover()
        """Spans of the user, which get seconds that are in no entry. The others are in it as `UNSEEN`.

        A checkpoint is no boundary for it: what is in no entry is only known by the next record with seconds.
        """
        self._own_spans: list[tuple[int, float, int, float]] = []
        """Step, end, slot and seconds of each since the boundary of `_own_cover`."""
        self._power = PowerMeter()

    # ------------------------------------------------------------ records

    def see(self, record: Record, at: float) -> None:
        """Note the time of a record; called for every record of the session before anything else."""
        if at < self.last_at and self.origin is not None:
            return
        time = record.get("time")
        if type(time) is not float or not 0.0 < time < LONGEST_S:
            time = time_in(record, "time")
        if time is not None:
            if self.origin is None:
                self.origin = time - at
            self.last_time = time
        self.last_at = max(at, self.last_at)

    def take_start(self, record: Record) -> None:
        """Note the step it resumed from, and its tags."""
        resumed = step_in(record, "resumed_from_step")
        if resumed is not None and self._last_logged is None:
            self.begins_at = resumed
        self.take_tags(record)

    def take_tags(self, record: Record) -> None:
        """Note its tag from here on."""
        tag = record.get("perf_tag")
        if isinstance(tag, list):
            tag = ",".join(part for part in tag if isinstance(part, str))
        if isinstance(tag, str) and tag:
            self.perf_tag = tag

    def take_step(self, record: Record, at: float) -> None:
        """Take a step record: a boundary, and the end of an interval of steps."""
        recorded = self._recorded_seconds(record)
        step = step_in(record)
        if step is None:
            self._end_segment(at, self._step, recorded)
            return
        last, self._last_logged = self._last_logged, step
        if last is None:
            self._begin_with(step, record)
        had_begun = self._has_begun
        self._end_segment(at, step, recorded, is_step=True)
        if not had_begun:
            self._has_begun = True
            self._first_early_s = self.timeline.segments[-1].seconds[EARLY]
        self._get_to(step)
        self.timeline.settle(None if last is None else step - last)

    def take_ledger(self, record: Record, at: float) -> None:
        """Take a record that has only seconds."""
        step = step_in(record)
        self._end_segment(
            at, self._step if step is None else step, self._recorded_seconds(record) or [0.0] * SLOTS
        )
        if step is not None:
            self._get_to(step)

    def take_span(self, record: Record, at: float) -> None:
        """Take a span that ended."""
        span_id = record.get("id")
        if isinstance(span_id, str):
            self._cover.closes(span_id)
            self._own_cover.closes(span_id)
        duration = seconds_in(record, "duration")
        if duration is None or record.get("clock", names.HOST_CLOCK) != names.HOST_CLOCK:
            return
        begin = at - duration
        self._reach_back_to(begin)
        entry = _entry_of(record)
        if entry is None:
            slot = self._own_slot(record)
            if slot is not None:
                before = self._own_cover.seconds[slot]
                self.timeline.take_back(self._own_cover.add(begin, at, slot), slot)
                step = step_in(record)
                if step is not None and len(self._own_spans) < _MOST_OWN_SPANS:
                    self._own_spans.append((step, at, slot, self._own_cover.seconds[slot] - before))
            return
        self._cover.add(begin, at, SLOT_OF[entry])
        self._own_cover.add(begin, at, UNSEEN)
        if entry == names.IN_CHECKPOINT:
            self._mark(at, step_in(record))

    def take_span_start(self, record: Record, at: float) -> None:
        """Take a span that is still open."""
        begin, span_id = self._begin_of(record, at), record.get("id")
        if begin is None:
            return
        self._reach_back_to(begin)
        if record.get("name") == names.TRAINING_LOOP and not self._has_begun and record.get("thread") is None:
            covered = sum(self._cover.seconds)
            self._early_left_s = max(0.0, begin - self._boundary_at + self._unplaced_lead_s - covered)
            self._has_begun = True
        entry = _entry_of(record)
        if entry is not None and isinstance(span_id, str):
            self._cover.opens(span_id, begin, SLOT_OF[entry])
            self._own_cover.opens(span_id, begin, UNSEEN)
        elif isinstance(span_id, str) and (slot := self._own_slot(record)) is not None:
            self._own_cover.opens(span_id, begin, slot)

    def _begin_of(self, record: Record, at: float) -> float | None:
        """Return when an open span began; None if its record does not say."""
        age = seconds_in(record, "age")
        if age is not None:
            return at - age
        start, now = time_in(record, "start"), time_in(record, "time")
        return None if start is None or now is None else at - max(0.0, now - start)

    def take_checkpoint(self, record: Record, at: float) -> None:
        """Take a saved checkpoint, with its seconds if they are known."""
        seconds = seconds_in(record, "seconds")
        if seconds is not None:
            self._cover.add(at - seconds, at, CHECKPOINT)
            self._own_cover.add(at - seconds, at, UNSEEN)
            self.timeline.take_back_for_checkpoint(seconds - (at - self._boundary_at))
        self._mark(at, step_in(record))

    def take_system(self, record: Record, at: float) -> None:
        """Take a system record: power, and the step that the loop has reached."""
        watts = watts_in(record)
        if watts is not None:
            self._power.sample(at, watts)
        step = step_in(record)
        if step is not None and self._last_logged is not None:
            self._get_to(step)

    def take_end(self, at: float) -> None:
        """Take the end record."""
        self._end_segment(at, self._step, None)
        self.timeline.end()
        self.is_over = True

    # ------------------------------------------------------------ results

    @property
    def ended_s(self) -> float | None:
        """When it ended; None without an end record."""
        return self._boundary_at if self.is_over else None

    @property
    def clock_went_further_s(self) -> float:
        """How much more the wall clock advanced than the session's clock, from the first record to the last."""
        if self.origin is None or self.last_time is None:
            return 0.0
        return (self.last_time - self.origin) - self.last_at

    @property
    def first_steps_s(self) -> float:
        """Estimated seconds of steps before the first step record; 0 if they were recorded."""
        pace = self.timeline.usual_pace()
        if self.times_training or pace is None:
            return 0.0
        return min(self._first_early_s, pace * self._first_steps)

    def tail(self, end_s: float, *, is_alive: bool) -> list[Segment]:
        """Return the segments after the last step record, up to `end_s`, without changing the session.

        In a live session the seconds after its last record are like those before; in a killed one they are unknown.
        """
        tail = deepcopy(self.timeline.unsettled)
        if self.is_over:
            return tail
        seen_s = end_s if is_alive else min(end_s, self.last_at)
        length = max(0.0, seen_s - self._boundary_at) + self._unplaced_lead_s
        seconds = at_most(self._cover.with_open(seen_s), length)
        self._add_rest(seconds, length)
        _add_own([*cut_off(tail), seconds], self._own_cover.with_open(seen_s))
        joules, known_s = self._power.peek(seen_s)
        step = self._step if self.gets_to is None else max(self.gets_to, self._step or self.gets_to)
        tail.append(Segment(self._step, step, seconds, joules, known_s))
        self.timeline.look_for_stall(tail)
        unseen_s = end_s - max(seen_s, self._boundary_at)
        if unseen_s > 0.0:
            after = [0.0] * SLOTS
            after[UNSEEN] = unseen_s
            joules_then, known_then = self._power.peek(end_s)
            tail.append(Segment(step, step, after, joules_then - joules, known_then - known_s))
        return tail

    def sums(self, tail: list[Segment]) -> Sums:
        """Return the whole session by slot; `tail` is the result of `tail()`."""
        sums = self.timeline.sums(tail)
        sums.move(EARLY, REST, self.first_steps_s)
        return sums

    # ------------------------------------------------------------ boundaries

    def _recorded_seconds(self, record: Record) -> list[float] | None:
        """Return the seconds in a record by slot; None if it has none."""
        recorded: list[float] | None = None
        loading = record.get(_LOADING)
        if type(loading) is float and 0.0 <= loading <= LONGEST_S:
            self.loading_s += loading
        for name, slot in FIELDS:
            value = record.get(name)
            if value is None:
                continue
            if recorded is None:
                recorded = [0.0] * SLOTS
            if is_number(value) and 0 <= value <= LONGEST_S:
                recorded[slot] = float(value)
                if slot == TRAINING:
                    self.times_training = True
                elif slot == DATA_WAIT:
                    self.waiting_s += value
            else:
                self.timeline.odd += 1
        return recorded

    def _end_segment(
        self,
        at: float,
        step: int | None,
        recorded: list[float] | None,
        *,
        is_step: bool = False,
        saves: bool = False,
    ) -> None:
        """End the open segment at `at`."""
        at = max(at, self._boundary_at)
        length = at - self._boundary_at + self._unplaced_lead_s
        spans = self._cover.seconds
        if recorded is None:
            seconds = self.timeline.guess(self._cover.with_open(at), length)
        else:
            seconds = self.timeline.fit(recorded, length, spans)
        self._add_rest(seconds, length)
        if not saves:
            own = self._own_seconds(at, step if is_step else None)
            _add_own([*cut_off(self.timeline.segments), seconds], own)
        self._unplaced_lead_s = self._early_left_s = 0.0
        joules = known_s = 0.0
        if self._power.watts is not None:
            joules, known_s = self._power.take(at)
        segment = Segment(self._step, step, seconds, joules, known_s, saves=saves)
        self.timeline.add(segment, is_recorded=recorded is not None)
        self._step = step
        self._boundary_at = at
        self._cover.start_at(at)
        if not saves:
            self._own_cover.start_at(at)
            self._own_spans = []
        if is_step:
            self._cover.forget()
            self._own_cover.forget()

    def _add_rest(self, seconds: list[float], length: float) -> None:
        """Add the seconds that are in no span with an entry."""
        rest = max(0.0, length - sum(seconds))
        early = min(rest, self._early_left_s) if self._has_begun else rest
        seconds[EARLY] += early
        seconds[REST] += rest - early

    def _own_slot(self, record: Record) -> int | None:
        """Return the slot of a user's span on the main thread; None if it counts as the span around it."""
        name, parent = record.get("name"), record.get("parent_id")
        if not isinstance(name, str) or name in names.STANDARD or record.get("thread") is not None:
            return None
        if isinstance(parent, str) and self._cover.is_open(parent):
            return None
        entry = names.entry_like(name)
        return OTHER if entry is None else SLOT_OF[entry]

    def _own_seconds(self, at: float, step: int | None) -> list[float]:
        """Return the seconds in the user's spans, by slot, without those in the step that was logged at `at`.

        Spans between two steps have the number of the first.
        """
        seconds = list(self._own_cover.seconds)
        for span_step, end, slot, part in self._own_spans:
            if span_step == step and end <= at:
                seconds[slot] = max(0.0, seconds[slot] - part)
        return seconds

    def _begin_with(self, step: int, record: Record) -> None:
        self._first_steps = max(0, step_in(record, "steps_folded") or 0) + 1
        if self.begins_at is None:
            self.begins_at = step - self._first_steps
        if self._step is None:
            self._step = self.begins_at

    def _get_to(self, step: int) -> None:
        if self.gets_to is None or step > self.gets_to:
            self.gets_to = step

    def _mark(self, at: float, step: int | None) -> None:
        """Note a checkpoint: it ends the open segment, which separates what it saved from the work after it."""
        # A checkpoint of an earlier step says nothing about when that step was.
        if step is None or (self._step is not None and step < self._step):
            return
        self._get_to(step)
        if len(self.saved) < _MOST_SAVED:
            self.saved.add(step)
            self._end_segment(at, step, None, saves=True)

    def _reach_back_to(self, begin: float) -> None:
        """Make the session start at `begin` if that is before everything known about it."""
        if begin >= -self.lead_s or self.origin is None:
            return
        lead_s = min(-begin, self.origin - self._not_before, _LONGEST_LEAD_S)
        more = lead_s - self.lead_s
        if more <= 0.0:
            return
        self.lead_s = lead_s
        if self.timeline.segments:
            self.timeline.add_lead(more)
        else:
            self._unplaced_lead_s += more


def _entry_of(record: Record) -> str | None:
    """Return the ledger entry of a span on the main thread, or None."""
    name = record.get("name")
    return names.ENTRY_OF.get(name) if isinstance(name, str) and record.get("thread") is None else None


def _add_own(parts: Sequence[list[float]], own: Sequence[float]) -> None:
    """Count as `own`, the seconds in spans of the user, what is in no entry in the parts of a segment."""
    own_s = sum(own[slot] for slot in _OWN_SLOTS)
    if own_s <= 0.0:
        return
    whole_s = max(own_s, sum(seconds[REST] for seconds in parts))
    for seconds in parts:
        share = seconds[REST] / whole_s
        for slot in _OWN_SLOTS:
            seconds[slot] += own[slot] * share
        seconds[REST] = max(0.0, seconds[REST] - own_s * share)


_MOST_INTERVALS: Final = 1_000
_MOST_OPEN: Final = 1_000


class SpanCover:
    """Finished spans since the last boundary, and open ones; an inner span is recorded first and keeps its seconds."""

    def __init__(self) -> None:
        self.seconds = [0.0] * SLOTS
        """By slot, in finished spans since the last boundary."""
        self._since = 0.0
        self._intervals: list[tuple[float, float]] = []
        self._open: dict[str, tuple[float, int]] = {}

    def start_at(self, at: float) -> None:
        """Start over at `at`; what is open stays open."""
        if self._intervals:
            self.seconds = [0.0] * SLOTS
        self._since = at

    def forget(self) -> None:
        """Forget where finished spans were."""
        if self._intervals:
            self._intervals = []

    def opens(self, span_id: str, begin: float, slot: int) -> None:
        """Note an open span."""
        if len(self._open) < _MOST_OPEN:
            self._open[span_id] = (begin, slot)

    def is_open(self, span_id: str) -> bool:
        """Return whether a span is open."""
        return span_id in self._open

    def closes(self, span_id: str) -> None:
        """Note that a span has ended."""
        self._open.pop(span_id, None)

    def add(self, begin: float, end: float, slot: int) -> float:
        """Count the seconds from `begin` to `end` in no span yet as `slot`; return those before the boundary."""
        self.seconds[slot] += self._fill(max(begin, self._since), end)
        return self._fill(begin, min(end, self._since))

    def _fill(self, begin: float, end: float) -> float:
        if end <= begin:
            return 0.0
        low, high, covered = begin, end, 0.0
        later: list[tuple[float, float]] = []
        while self._intervals and self._intervals[-1][1] > begin:
            first, last = self._intervals.pop()
            if first >= end:
                later.append((first, last))
                continue
            covered += min(last, end) - max(first, begin)
            low, high = min(low, first), max(high, last)
        self._intervals.append((low, high))
        self._intervals.extend(reversed(later))
        del self._intervals[:-_MOST_INTERVALS]
        return max(0.0, end - begin - covered)

    def with_open(self, at: float) -> list[float]:
        """Return `seconds` as if all open spans had ended at `at`, without changing anything."""
        if not self._open:
            return list(self.seconds)
        trial = SpanCover()
        trial._since = self._since
        trial.seconds = list(self.seconds)
        trial._intervals = list(self._intervals)
        # The one that began last is the innermost.
        for begin, slot in sorted(self._open.values(), reverse=True):
            trial.add(begin, at, slot)
        return trial.seconds
