"""The seconds of one session, put where they belong as its records come in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeGuard

from toolkit.runfolder.records import Record
from toolkit.timing.names import (
    DATA_LOADING,
    ENTRY_OF,
    HOST_CLOCK,
    IN_CHECKPOINT,
    TIME_PREFIX,
    TRAINING_LOOP,
)
from toolkit.timing.power import PowerMeter, watts_in
from toolkit.timing.record_fields import LONGEST_S, moment_in, seconds_in, step_in
from toolkit.timing.segments import (
    CHECKPOINT,
    DATA_WAIT,
    EARLY,
    FIELDS,
    REST,
    SLOT_OF,
    SLOTS,
    TRAINING,
    UNSEEN,
    Mark,
    Segment,
    Sums,
    split,
)
from toolkit.timing.span_cover import SpanCover
from toolkit.timing.timeline import Timeline, at_most

_LOADING: Final = TIME_PREFIX + DATA_LOADING
_MOST_MARKS: Final = 100
_MOST_SAVED: Final = 20_000
_CLOCK_SET_S: Final = 0.2
_LONGEST_LEAD_S: Final = 86_400.0
"""How far before its logger a process is believed to have begun."""


class SessionTime:
    """One session: its timeline, and the open segment behind the last boundary.

    A boundary is a record with seconds or steps. Moments are seconds on the session's own clock.
    """

    def __init__(self, number: int, *, not_before: float = 0.0, paces: Iterable[float] = ()) -> None:
        self.number = number
        self.perf_tag: str | None = None
        self.timeline = Timeline(paces)
        self.begins_at: int | None = None
        """The step it went on from."""
        self.gets_to: int | None = None
        self.saved: set[int] = set()
        """Steps that checkpoints were told of."""
        self.origin: float | None = None
        """The wall time at which its clock stood at zero."""
        self.lead_s = 0.0
        """How long before that it had begun: a span may be dated back to the start of the process."""
        self.last_at = 0.0
        self.last_time: float | None = None
        self._ahead = self._ahead_before = 0.0
        """By how much the wall clock was ahead of the session's at the newest record, and at the one before it."""
        self.is_over = False
        self.times_training = False
        self.loading_s = self.waiting_s = 0.0
        """Seconds in which data were loaded, on whatever thread, and in which the loop waited for them."""
        self._not_before = not_before
        self._cut_at = 0.0
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
        self._marks: list[Mark] = []
        self._power = PowerMeter()

    # ------------------------------------------------------------ records

    def see(self, record: Record, at: float) -> None:
        """Take note of when a record came; every record of the session passes here before anything else."""
        if at < self.last_at and self.origin is not None:
            return
        time = record.get("time")
        if type(time) is not float or not 0.0 < time < LONGEST_S:
            time = moment_in(record, "time")
        if time is not None:
            self._ahead, self._ahead_before = time - at, self._ahead
            if self.origin is None:
                self.origin = self._ahead_before = self._ahead
            self.last_time = time
        self.last_at = max(at, self.last_at)

    def take_start(self, record: Record) -> None:
        """Take note of where it goes on from, and what it is called."""
        resumed = step_in(record, "resumed_from_step")
        if resumed is not None and self._last_logged is None:
            self.begins_at = resumed
        self.take_tags(record)

    def take_tags(self, record: Record) -> None:
        """Take note of what it is called from here on."""
        tag = record.get("perf_tag")
        if isinstance(tag, list):
            tag = ",".join(part for part in tag if isinstance(part, str))
        if isinstance(tag, str) and tag:
            self.perf_tag = tag

    def take_step(self, record: Record, at: float) -> None:
        """A step record: a boundary, and the end of an interval in which steps were made."""
        step = record.get("global_step")
        told = self._told(record)
        if self._is_usual(step, at) and self._take_usual_step(step, at, told):
            return
        step = step_in(record)
        if step is None:
            self._cut(at, self._step, told)
            return
        last, self._last_logged = self._last_logged, step
        if last is None:
            self._begin_with(step, record)
        had_begun = self._has_begun
        self._cut(at, step, told)
        if not had_begun:
            self._has_begun = True
            self._first_early_s = self.timeline.segments[-1].seconds[EARLY]
        self._get_to(step)
        self.timeline.settle(None if last is None else step - last)

    def take_ledger(self, record: Record, at: float) -> None:
        """A record that only tells of seconds."""
        step = step_in(record)
        self._cut(at, self._step if step is None else step, self._told(record) or [0.0] * SLOTS)
        if step is not None:
            self._get_to(step)

    def take_span(self, record: Record, at: float) -> None:
        """A span that is over."""
        span_id = record.get("id")
        if isinstance(span_id, str):
            self._cover.closes(span_id)
        duration = seconds_in(record, "duration")
        if duration is None or record.get("clock", HOST_CLOCK) != HOST_CLOCK:
            return
        begin = at - duration
        self._reach_back_to(begin)
        entry = _entry_of(record)
        if entry is None:
            return
        self._cover.add(begin, at, SLOT_OF[entry])
        if entry == IN_CHECKPOINT:
            self._mark(at, step_in(record))

    def take_span_start(self, record: Record, at: float) -> None:
        """A span that goes on."""
        begin, span_id = self._begin_of(record, at), record.get("id")
        if begin is None:
            return
        self._reach_back_to(begin)
        if record.get("name") == TRAINING_LOOP and not self._has_begun and record.get("thread") is None:
            covered = sum(self._cover.seconds)
            self._early_left_s = max(0.0, begin - self._cut_at + self._unplaced_lead_s - covered)
            self._has_begun = True
        entry = _entry_of(record)
        if entry is not None and isinstance(span_id, str):
            self._cover.opens(span_id, begin, SLOT_OF[entry])

    def _begin_of(self, record: Record, at: float) -> float | None:
        """Return when a span that goes on has begun; None where its record does not say."""
        age = seconds_in(record, "age")
        if age is not None:
            return at - age
        # Earlier versions wrote the wall time alone.
        start, now = moment_in(record, "start"), moment_in(record, "time")
        if start is None or now is None:
            return None
        before = start - self._ahead_before
        if abs(self._ahead - self._ahead_before) > _CLOCK_SET_S and before <= at:
            # The clock was set since the last record: the span began before that.
            return before
        return at - max(0.0, now - start)

    def take_checkpoint(self, record: Record, at: float) -> None:
        """A checkpoint that was saved, with the seconds it took where they are known."""
        seconds = seconds_in(record, "seconds")
        if seconds is not None:
            self._cover.add(at - seconds, at, CHECKPOINT)
            self.timeline.take_back_for_checkpoint(seconds - (at - self._cut_at))
        self._mark(at, step_in(record))

    def take_system(self, record: Record, at: float) -> None:
        """What the machine is doing: its power, and the step that the loop has got to."""
        watts = watts_in(record)
        if watts is not None:
            self._power.sample(at, watts)
        step = step_in(record)
        if step is not None and self._last_logged is not None:
            self._get_to(step)

    def take_end(self, at: float) -> None:
        """The session is over, and says so itself."""
        self._cut(at, self._step, None)
        self.timeline.end()
        self.is_over = True

    # ------------------------------------------------------------ what came of it

    @property
    def ended_s(self) -> float | None:
        """The moment of its end, where it told of one."""
        return self._cut_at if self.is_over else None

    @property
    def clock_went_further_s(self) -> float:
        """By how much the wall clock went further than the session's own, from its first record to its last."""
        if self.origin is None or self.last_time is None:
            return 0.0
        return (self.last_time - self.origin) - self.last_at

    @property
    def first_steps_s(self) -> float:
        """How much of the time up to the first step record its own steps are reckoned to have taken; 0 where told."""
        pace = self.timeline.usual_pace()
        if self.times_training or pace is None:
            return 0.0
        return min(self._first_early_s, pace * self._first_steps)

    def tail(self, end_s: float, *, is_alive: bool) -> list[Segment]:
        """Return what lies behind the last step record, up to `end_s`, as it looks now; the session is left as it is.

        Of a session that is alive the seconds behind its last record are like those before; of a killed one nobody
        knows.
        """
        tail = [segment.copy() for segment in self.timeline.unsettled]
        if self.is_over:
            return tail
        seen_s = end_s if is_alive else min(end_s, self.last_at)
        length = max(0.0, seen_s - self._cut_at) + self._unplaced_lead_s
        seconds = at_most(self._cover.with_open(seen_s), length)
        self._put_rest(seconds, length)
        joules, known_s = self._power.peek(seen_s)
        step = self._step if self.gets_to is None else max(self.gets_to, self._step or self.gets_to)
        tail += split(Segment(self._step, step, seconds, joules, known_s), self._marks)
        self.timeline.look_for_stall(tail)
        unseen_s = end_s - max(seen_s, self._cut_at)
        if unseen_s > 0.0:
            after = [0.0] * SLOTS
            after[UNSEEN] = unseen_s
            joules_then, known_then = self._power.peek(end_s)
            tail.append(Segment(step, step, after, joules_then - joules, known_then - known_s))
        return tail

    def sums(self, tail: list[Segment]) -> Sums:
        """Return the whole session by slot; `tail` is what `tail` gave."""
        sums = self.timeline.sums(tail)
        sums.move(EARLY, REST, self.first_steps_s)
        return sums

    # ------------------------------------------------------------ the usual step

    def _is_usual(self, step: Any, at: float) -> TypeGuard[int]:
        """Whether nothing but training happened since the last boundary record."""
        return (
            type(step) is int
            and self._last_logged is not None
            and self._last_logged == self._step
            and step > self._last_logged
            and at > self._cut_at
            and not self._marks
            and self._cover.is_empty
        )

    def _take_usual_step(self, step: int, at: float, told: list[float] | None) -> bool:
        """Do what `take_step` does at a fifth of the cost: nearly all records of a long run are like this.

        False where it is not so usual after all; then nothing was done.
        """
        length = at - self._cut_at
        if not self.timeline.extend(self._step, step, length, told, self._power, at):
            return False
        self._step = self._last_logged = step
        self._cut_at = at
        self._cover.start_at(at)
        self._get_to(step)
        return True

    # ------------------------------------------------------------ boundaries

    def _told(self, record: Record) -> list[float] | None:
        """Return the seconds that a record tells of, by slot; None where it tells of none."""
        told: list[float] | None = None
        loading = record.get(_LOADING)
        if type(loading) is float and 0.0 <= loading <= LONGEST_S:
            self.loading_s += loading
        for name, slot in FIELDS:
            value = record.get(name)
            if value is None:
                continue
            if told is None:
                told = [0.0] * SLOTS
            if (type(value) is float or type(value) is int) and 0 <= value <= LONGEST_S:
                told[slot] = float(value)
                if slot == TRAINING:
                    self.times_training = True
                elif slot == DATA_WAIT:
                    self.waiting_s += value
            else:
                self.timeline.odd += 1
        return told

    def _cut(self, at: float, step: int | None, told: list[float] | None) -> None:
        """End the open segment at `at`."""
        at = max(at, self._cut_at)
        length = at - self._cut_at + self._unplaced_lead_s
        spans = self._cover.seconds
        if told is None:
            seconds = self.timeline.guess(spans, length)
        else:
            seconds = self.timeline.fit(told, length, spans)
        self._put_rest(seconds, length)
        self._unplaced_lead_s = self._early_left_s = 0.0
        joules = known_s = 0.0
        if self._power.watts is not None:
            joules, known_s = self._power.take(at)
        if self._marks and (step is None or step < self._marks[-1].step):
            step = self._marks[-1].step
        segment = Segment(self._step, step, seconds, joules, known_s)
        self.timeline.add(segment, self._marks, is_told=told is not None)
        self._marks = []
        self._step = step
        self._cut_at = at
        self._cover.start_at(at)

    def _put_rest(self, seconds: list[float], length: float) -> None:
        """Put what is in no span where it belongs."""
        rest = max(0.0, length - sum(seconds))
        early = min(rest, self._early_left_s) if self._has_begun else rest
        seconds[EARLY] += early
        seconds[REST] += rest - early

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
        """Take note of a checkpoint in the open segment."""
        # One of a step that the loop has left behind says nothing about when that was.
        if step is None or (self._step is not None and step < self._step):
            return
        self._get_to(step)
        if len(self.saved) < _MOST_SAVED:
            self.saved.add(step)
        after_s = max(0.0, at - self._cut_at + self._unplaced_lead_s)
        mark = Mark(after_s, step, list(self._cover.seconds))
        if self._marks and (self._marks[-1].step == step or len(self._marks) >= _MOST_MARKS):
            self._marks[-1] = mark
        elif not self._marks or self._marks[-1].step < step:
            self._marks.append(mark)

    def _reach_back_to(self, begin: float) -> None:
        """Let the session have begun at `begin`, where that is before everything known of it."""
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
    """Return the entry that a span of the main thread counts as; None where it has none."""
    name = record.get("name")
    return ENTRY_OF.get(name) if isinstance(name, str) and record.get("thread") is None else None
