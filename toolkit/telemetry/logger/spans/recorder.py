"""Keeps the spans of one session: which are open, what is inside what, and which of them get a record."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from threading import get_ident
from typing import Any, Final

from toolkit.telemetry.core.clock import SET_S, WallTimes
from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.logger.errors.error_recorder import note_spans
from toolkit.telemetry.logger.options import SpanOptions
from toolkit.telemetry.logger.records.plain_values import PlainValues
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.logger.records.step_gate import StepGate
from toolkit.telemetry.logger.spans.detail_window import DetailWindow
from toolkit.telemetry.logger.spans.device import DeviceSpan, DeviceTimer
from toolkit.telemetry.logger.spans.ledger_meter import LedgerMeter
from toolkit.telemetry.logger.spans.span import NO_FAILURES, NO_SPAN, AnySpan, CurrentSpan, FoldedSpan, Span
from toolkit.telemetry.logger.spans.totals import THE_REST, SpanTimes, SpanTotals
from toolkit.telemetry.logger.spans.writer import LONGEST_NAME, SpanWriter, as_attributes, name_of_thread
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.timing.names import (
    APART_FROM_TRAINING,
    APPLICATION,
    ENTRY_OF,
    FOLDED,
    OF_A_STEP,
    ONE_LOGGER_NAMES,
    TESTING_ITERATION,
    TRAINING_ITERATION,
    TRAINING_LOOP,
    VALIDATION_ITERATION,
)

_LONG_LIVED: Final = frozenset({APPLICATION, TRAINING_LOOP, *ENTRY_OF}) - FOLDED
_KEPT_COUNTING: Final = (_LONG_LIVED | {TRAINING_ITERATION, VALIDATION_ITERATION, TESTING_ITERATION}) & {
    *ONE_LOGGER_NAMES
}
"""Parts of a job whose figures and ledger need their time even where they are not to be written."""
_KEPT_OF_A_NAME: Final = 200
"""Spans of a caller's own name that are written one by one; a name that comes more often is only added up.
Of a name that is added up anyway, as many are written because they failed."""
_KEPT_OF_THE_REST: Final = 2_000
"""The same for all the names together that there are too many of."""
_MAX_CLOSED: Final = 200_000
_BEGINNING_AFTER_S: Final = 1.0
_LEDGER_EVERY_S: Final = 5.0
_SUMMARY_EVERY_S: Final = 30.0
_NAMES_A_SUMMARY: Final = 20
"""Of more names the summary is longer, and comes less often."""
_LATEST_TIME: Final = 1e12
_DEEPEST: Final = 50
"""Nested spans that an error or a hang reports."""


class SpanRecorder:
    """The spans of one session."""

    def __init__(
        self,
        options: SpanOptions,
        gate: StepGate,
        values: PlainValues,
        *,
        record_queue: RecordQueue,
        context: RunContext,
    ) -> None:
        clock = context.clock
        self.options = options
        self.gate = gate
        self.times = SpanTotals(clock.monotonic, context.began)
        self.meter: LedgerMeter = self.times.meter
        self.monotonic = clock.monotonic
        self.walls = WallTimes(clock)
        self.current = CurrentSpan()
        self.closed: deque[FoldedSpan | Span] = deque(maxlen=_MAX_CLOSED)
        """Spans that ended and were not counted in the summary yet."""
        self.folding: dict[str, SpanTimes] = {}
        """What `make` need not be asked for: names whose spans are only added up now."""
        self.is_open = True
        self.guard = context.guard
        self.writer = SpanWriter(gate, values, record_queue=record_queue, context=context)
        self.device = DeviceTimer(self.guard, self.writer.write_device_span)
        self._prefix, self._ids, self._write = self.writer.prefix, self.writer.ids, self.writer.write
        self._detail = DetailWindow(gate, self.folding, steps=options.around)
        self._root: Span | None = None
        self._apart: Span | None = None
        """The outermost open span of something apart from the training."""
        self._open: dict[str, Span] = {}
        self._to_fold = frozenset() if options.all else (FOLDED | set(options.fold)) - set(options.keep)
        self._summary_at = clock.monotonic()
        self._summarised = 0
        self._tending = threading.Lock()
        self._first_span = context.events.first_span
        self._has_spans = False
        context.events.incident.subscribe(self.keep_around_an_incident)

    # Making spans.

    def make(self, name: Any, attributes: dict[str, Any]) -> AnySpan:
        """Return a span that has not begun."""
        if not self.is_open:
            return NO_SPAN
        if type(name) is not str or not 0 < len(name) <= LONGEST_NAME:
            if type(name) is str and not name:
                self.guard.report_misuse("a span was made without a name; it is called 'span'")
            name = self.writer.as_name(name)
        if name in self.options.drop:
            if name not in _KEPT_COUNTING:
                return NO_SPAN
            dropped = self.times.of(name, on_steps=False)
            dropped.is_dropped = True
            return FoldedSpan(self, dropped, attributes)
        detail = self._detail
        detail.count()
        times = detail.foldable.get(name)
        if times is None and name in self._to_fold:
            times = self._fold(name)
        span: Span | FoldedSpan
        if times is not None and detail.why is None:
            span = FoldedSpan(self, times, attributes)
        elif times is not None:
            span = Span(self, name, times, attributes)
            span.kept = detail.why
        else:
            span = self._make_kept(name, attributes)
        return DeviceSpan(self.device, span) if name in self.options.device else span  # type: ignore[return-value]

    def begin_part(self, name: str) -> AnySpan:
        """Return a span that has begun, of a part of each step: what `make` and `with` do, in fewer calls."""
        times = self.folding.get(name)
        if times is not None:
            span = FoldedSpan.__new__(FoldedSpan)
            span.recorder, span.times, span.attributes = self, times, {}
            span.error = span.duration = None
            return span.__enter__()
        return (self.guard.call("making a span", self.make, name, {}) or NO_SPAN).__enter__()

    def _make_kept(self, name: str, attributes: dict[str, Any]) -> Span | FoldedSpan:
        """Return a span with a record of its own, as long as there are not too many of its name."""
        times = self.times.of(name, on_steps=name in _LONG_LIVED or name in FOLDED)
        may_be_too_frequent = not (self.options.all or name in self.options.keep or name in _LONG_LIVED)
        is_of_the_rest = times.name == THE_REST
        most = _KEPT_OF_THE_REST if is_of_the_rest else _KEPT_OF_A_NAME
        if may_be_too_frequent and times.kept >= most:
            # One more of the names that there are too many of: none of them is remembered.
            return FoldedSpan(self, times, attributes)
        span = Span(self, name, times, attributes)
        times.kept += 1
        if may_be_too_frequent and times.kept >= most:
            self._fold(THE_REST if is_of_the_rest else name)
            span.attributes.setdefault("summed_from_here_on", True)
        return span

    def make_on_device(self, name: Any, attributes: dict[str, Any]) -> AnySpan:
        """Return a span that is timed by the device's clock as well."""
        span = self.make(name, attributes)
        return DeviceSpan(self.device, span) if isinstance(span, (Span, FoldedSpan)) else span  # type: ignore[return-value]

    def start(
        self,
        name: Any,
        attributes: Mapping[str, Any] | None,
        start_time: float | None,
        parent: AnySpan | str | None,
    ) -> AnySpan:
        """Return a span that has begun, now or at a wall time, inside `parent` or what is open now."""
        span = self.make(name, as_attributes(attributes) if attributes else {})
        start_time = self.as_time(start_time) if start_time is not None else None
        # One that is timed by the device as well has its fields in the one by the host's clock.
        timed: Any = getattr(span, "timed", span)
        if isinstance(timed, Span):
            if isinstance(parent, str):
                timed.parent_id = self.writer.mask_name(parent[:LONGEST_NAME])
            elif parent is not None and parent.id:
                timed.parent_id = parent.id
            timed.start = start_time
        since, top = self.meter.since, self.meter.top
        span.__enter__()
        if isinstance(timed, FoldedSpan) and start_time is not None:
            began = timed.began = self.walls.monotonic_of(start_time)
            if self.meter.top is timed:
                self.meter.enter_earlier(began, since, top)
        return span

    def as_time(self, given: Any) -> float | None:
        """Return a given wall time; None, which is now, where it is not a time."""
        # Not milliseconds either, and a comparison with NaN is never true.
        if is_number(given) and 0 <= given < _LATEST_TIME:
            return float(given)
        self.guard.report_misuse("a time was given that is no number of seconds since the epoch; it is now")
        return None

    def end_folded_at(self, span: FoldedSpan, stop_time: Any) -> None:
        """End a short span at a wall time; what has passed since is whatever is around it."""
        stopped_at = self.as_time(stop_time)
        ended = None if stopped_at is None else self.walls.monotonic_of(stopped_at)
        if ended is not None:
            now = self.monotonic()
            # As long as it was, though it ends only now.
            span.began = min(now, span.began + now - ended)
        is_metered = self.meter.top is span
        since = self.meter.since
        span.__exit__(None, None, None)
        if is_metered and ended is not None:
            self.meter.left_earlier(span, max(ended, since))

    def _fold(self, name: str) -> SpanTimes:
        times = self.times.of(name, on_steps=True)
        # One that the device times as well is more than its name and its times.
        self._detail.add(name, times, is_always_asked=name in self.options.device)
        return times

    # A span's beginning and end.

    def begin(self, span: Span) -> None:
        """Take note that `span` begins. Nothing in here can fail but what is guarded."""
        if not self.is_open or span.id:
            return
        now = self.monotonic()
        if span.start is None:
            span.began = now
            span.start = now + self.walls.ahead
        else:
            span.began = self.walls.monotonic_of(span.start)
        span.id = f"{self._prefix}{next(self._ids) & 0xFFFFFFFF:08x}"
        current = self.current
        outer = current.get()
        while outer is not None and outer.closed:
            outer = outer.outer
        if outer is None:
            # A thread that was begun without its parent's context still belongs to the run.
            outer = self._root
        if outer is not None:
            span.outer = outer
            if span.parent_id is None:
                span.parent_id = outer.id
        name = span.name
        span.thread = thread = get_ident()
        around: Any = self.meter.top if thread == self.meter.owner else None
        if around is not None and around.times.name in OF_A_STEP:
            # Its step is that of the iteration, whether the loop logs the step inside of it or after it.
            span.step = around.step + 1 if isinstance(around, FoldedSpan) else around.step
        else:
            span.step = self.gate.last_step + (name in OF_A_STEP)
        current.set(span)
        self._open[span.id] = span
        if name in _LONG_LIVED:
            if name == APPLICATION and self._root is None:
                self._root = span
            with self.guard.catch("telling that a span began"):
                self.writer.write_beginning(span)
        if thread != self.meter.owner and name in (TRAINING_LOOP, TRAINING_ITERATION):
            self.meter.move_to(thread)
        if span.times.bucket is not None and thread == self.meter.owner:
            # A span that began in the past gets the time that no other span has had since.
            self.meter.enter(span, max(min(span.began, now), self.meter.since))
            if name in APART_FROM_TRAINING and self._apart is None:
                self._apart = span
                self.times.leave_training(ENTRY_OF[name])

    def unwind(self, span: Span) -> None:
        """Take note that an exception leaves the block of `span`, and with it all that began in there."""
        with self.guard.catch("noting where an error arose"):
            note_spans(span.error, self.path)
        if span.thread == self.meter.owner and not span.closed:
            self.meter.unwind(span, self.monotonic())

    def enter_from_elsewhere(self, span: FoldedSpan, now: float) -> None:
        """Take note of a span on a thread that the meter does not follow; an iteration is where the training is."""
        span.below = None
        if span.times.name == TRAINING_ITERATION:
            self.meter.move_to(threading.get_ident())
            self.meter.enter(span, now)

    def end(self, span: Span) -> None:
        """Take note that `span` ends, and write it. Nothing in here can fail but what is guarded."""
        if not self.is_open:
            return
        if span.closed or not span.id:
            self.say_stopped_twice(span.name)
            return
        now = ended = self.monotonic()
        span.closed = True
        if span.stopped_at is None:
            duration = now - span.began
        else:
            ended = self.walls.monotonic_of(span.stopped_at)
            duration = span.stopped_at - (span.start or span.stopped_at)
            if abs(duration - (ended - span.began)) > SET_S:
                # The clock was set while it went on.
                duration = ended - span.began
        if duration < 0.0:
            # By the given times it ended before it began.
            duration = 0.0
        span.duration = duration
        times, meter = span.times, self.meter
        if times.bucket is not None and meter.top is span:
            meter.leave(span, max(ended, meter.since))
        if span is self._apart:
            self._apart = None
            self.times.return_to_training()
        outer = span.outer
        if outer is not None and outer.closed:
            while outer is not None and outer.closed:
                outer = outer.outer
            # Or spans of which each begins before the last one ends would hold on to all that came before them.
            span.outer = outer
        current = self.current
        if current.get() is span:
            current.set(outer)
        self._open.pop(span.id, None)
        if span is self._root:
            self._root = None
        if span.thread == meter.owner:
            times.seconds += duration
            times.count += 1
        else:
            times.others.append(duration)
        self.closed.append(span)
        self._write(span, now)

    def put_event(
        self, span: Span | None, span_name: str, name: str, attributes: Mapping[str, Any], time: float | None
    ) -> None:
        """Write that something happened inside a span."""
        if self.is_open:
            time = self.as_time(time) if time is not None else None
            self.writer.write_event(span, span_name, name, attributes, time)

    def innermost(self) -> Span | None:
        """Return the span that is open here, on this thread or in this task."""
        span = self.current.get()
        while span is not None and span.closed:
            span = span.outer
        return span

    def path(self, just_ended: FoldedSpan | None = None) -> list[str]:
        """Return the names of the spans that are open on this thread or in this task, innermost last."""
        found: list[Span | FoldedSpan] = [just_ended] if just_ended is not None else []
        span = self.innermost()
        while span is not None and len(found) < _DEEPEST:
            found.append(span)
            span = span.outer
        if get_ident() == self.meter.owner:
            found += self._metered()
        unique = {id(span): span for span in found if span is just_ended or not span.closed}
        return [span.name for span in sorted(unique.values(), key=lambda span: span.began)]

    def open_now(self) -> list[dict[str, Any]]:
        """Return what is open on any thread, the longest first: name, seconds, and the thread if not the training's.

        Short spans are among them if they are an entry of the ledger; no others are known (`backward`).
        """
        now = self.monotonic()
        spans: dict[int, Span | FoldedSpan] = {id(span): span for span in list(self._open.values())}
        spans |= {id(span): span for span in self._metered()}
        found = []
        for span in sorted(spans.values(), key=lambda span: span.began)[:_DEEPEST]:
            known: dict[str, Any] = {"name": span.name, "seconds": round(now - span.began, 3)}
            if span.thread != self.meter.owner:
                known["thread"] = name_of_thread(span.thread)
            found.append(known)
        return found

    def ended(self) -> int:
        """Return how many spans the training's thread has ended in this session."""
        return sum(times.count for times in list(self.times.by_name.values()))

    def _metered(self) -> list[Span | FoldedSpan]:
        """Return the open spans of the training's thread that count as an entry of the ledger."""
        found: list[Span | FoldedSpan] = []
        span: Any = self.meter.top
        while span is not None and len(found) < _DEEPEST:
            if isinstance(span, (Span, FoldedSpan)) and not span.closed and not span.times.is_dropped:
                found.append(span)
            span = span.below
        return found

    def say_stopped_twice(self, name: str) -> None:
        """Report that a span was stopped while it was not open, unless the end of the run had stopped it."""
        if self.is_open:
            self.guard.report_misuse(f"the span {name!r} was stopped twice, or had never begun")

    # Looking closely: short spans one by one.

    def keep_failed(self, span: FoldedSpan, error: BaseException | str | None) -> None:
        """Write a short span by itself, because something went wrong in it."""
        span.error = None
        if not self.is_open or isinstance(error, NO_FAILURES) or span.times.is_dropped:
            return
        with self.guard.catch("ending a span"):
            note_spans(error, lambda: self.path(span))
            times = span.times
            times.failed += 1
            if times.failed <= _KEPT_OF_A_NAME:
                self.writer.write_folded([span], "incident", root=self._root, error=error)
            self.keep_around_an_incident()

    def keep_next(self, why: str = "asked") -> None:
        """Write the short spans of the next steps one by one."""
        self._detail.ask(why)

    def keep_around_an_incident(self) -> None:
        """Have the short spans before now written, and those of the next steps as well."""
        if self.options.around and self.is_open:
            self._detail.has_incident = True

    # What is done in the background.

    def tend(self, *, last: bool = False) -> None:
        """Count what ended, and write what has become due: on a thread that is not the training's."""
        with self._tending:
            self._count_closed()
            if last or not self.is_open:
                return
            if self.times.by_name and not self._has_spans:
                self._has_spans = True
                self._first_span.publish()
            # Where the clock was set, or the machine slept, spans from now on get the wall time of records from now on.
            self.walls.look()
            now = self.monotonic()
            for span in list(self._open.values()):
                if not span.is_beginning_written and now - span.began > _BEGINNING_AFTER_S:
                    self.writer.write_beginning(span)
            if self._detail.take_incident(now):
                self._write_last_steps("incident")
                if self._detail.why is None:
                    self._detail.ask("incident")
            if self.times.by_name and now - self.meter.taken_at > _LEDGER_EVERY_S:
                self._put_ledger(now)
            names = len(self.times.by_name)
            if now - self._summary_at > _SUMMARY_EVERY_S * max(1.0, names / _NAMES_A_SUMMARY):
                self._put_summary(now)

    def close(self) -> None:
        """Write what is left: open spans, the short spans of the last steps, the ledger's last seconds, the summary."""
        with self.guard.catch("closing the spans"):
            self.tend(last=True)
            self.device.settle()
            if self.options.around:
                self._write_last_steps("end")
            now = self.monotonic()
            for span in sorted(self._open.values(), key=lambda span: span.began, reverse=True):
                if not span.closed:
                    span.is_unfinished = True
                    self.end(span)
            self._count_closed()
            if self.times.by_name:
                self._put_ledger(now)
                self._put_summary(now)
        self.is_open = False
        self.folding.clear()

    def after_fork_in_child(self) -> None:
        """Write nothing any more: the files are the parent's."""
        self.is_open = False
        self.folding.clear()

    def _count_closed(self) -> None:
        closed = self.closed
        # No more than there are now: a loop of nothing but spans may end them faster than they are counted.
        for _ in range(len(closed)):
            span = closed.popleft()
            assert span.duration is not None
            if span.times.is_dropped:
                continue
            span.times.add_to_spread(span.duration)
            self._summarised += 1
            if type(span) is FoldedSpan:
                self._detail.remember(span)

    def _write_last_steps(self, why: str) -> None:
        self.writer.write_folded(self._detail.of_the_last_steps(), why, root=self._root)

    def _put_ledger(self, now: float) -> None:
        self.writer.write_ledger(self.meter.take(now), now)

    def _put_summary(self, now: float) -> None:
        self._summary_at = now
        if self._summarised:
            self._summarised = 0
            fields: dict[str, Any] = {"span_times": self.times.summary()}
            if self.device.skipped:
                fields["not_timed_on_device"] = self.device.skipped
            self.writer.write_summary(fields, now)
