"""A step record, made of what the caller gave and what was measured since the last one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import orjson
from orjson import OPT_APPEND_NEWLINE

from toolkit.core.run_context import RunContext
from toolkit.runfolder.records import LOSS_JUMP, MAX_RECORD_BYTES, NAN_INF_DETECTED, STEP
from toolkit.runfolder.script_interrupts import pass_on_interrupt
from toolkit.telemetry.records.folded_metrics import WELL_KNOWN
from toolkit.telemetry.records.plain_values import PlainValues, is_finite_number, number_in
from toolkit.telemetry.records.record_queue import MUCH, RecordQueue
from toolkit.telemetry.records.step_gate import BLOCK, MAX_FOLDED, NEVER, StepGate
from toolkit.telemetry.spans.totals import SpanTotals

_MAX_PLAIN: Final = MAX_RECORD_BYTES - 4096
_NUMBERS: Final = frozenset({float, int, bool})
_ALWAYS_FETCHED: Final = ("train_loss", "grad_norm")
_MOST_FETCHED: Final = 8
"""Other tensors of a step without a record that are fetched; each of them takes some microseconds."""


_Take = Callable[[Any, Any, dict[str, Any], dict[str, Any]], None]
_Point = tuple[int, float, float, float, float]
"""A moment between two steps: the last step, and as of then the seconds of the session, those that were not spent on
steps, those that were spent on steps (0 where nothing times them), and the samples that were missing."""
_Marks = tuple[tuple[_Point, bool], ...]
"""Where other records were logged between two steps, and whether each is known to belong to the earlier one."""
_Window = tuple[_Point, _Point, _Marks]
"""What a speed is worked out from: where it begins, where it ends, and what was logged before its last step."""
_Complete = Callable[[dict[str, Any], "float | None", _Window], None]
_Leave = Callable[[float, Any, "float | None"], None]
_Measure = Callable[[int, float, bool], _Window]

_NO_POINT: Final = (-NEVER, 0.0, 0.0, 0.0, 0.0)
_MOST_MARKS: Final = 16
_CALL_S: Final = 1e-3
"""Two calls that are closer together than this have no iteration between them."""
_ALIKE: Final = 3.0
"""A step that takes this many times as long as one before, or as short, has something else in it."""


class Interval(Protocol):
    """How often steps are recorded, and whether a request waits."""

    ready: bool
    log_every: int

    def apply(self, global_step: int | None) -> None:
        """Do what was asked, between two steps."""


class FixedInterval:
    """The interval of a run without control."""

    ready = False

    def __init__(self, log_every: int) -> None:
        self.log_every = log_every

    def apply(self, global_step: int | None) -> None:
        """Nothing is ever asked."""


def _are_numbers(record: Mapping[str, Any], scalars: Mapping[str, Any]) -> bool:
    return _NUMBERS.issuperset(map(type, record.values())) and _NUMBERS.issuperset(
        map(type, scalars.values())
    )


def _is_number(value: Any) -> bool:
    # JSON has no room for a larger integer: it would be written as text.
    return type(value) is float or (type(value) is int and -(2**63) <= value < 2**64)


def _foldable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is fetched of a step that is only folded: numbers, and the first few that are on a device.

    What else a caller gives is asked for its value where it is written, and not on every step.
    """
    kept = {}
    left = _MOST_FETCHED
    for name, value in given.items():
        kind = type(value)
        if kind in _NUMBERS or kind.__module__ == "numpy" or name in _ALWAYS_FETCHED:
            kept[name] = value
        elif kind is dict or kind.__module__.partition(".")[0] == "torch":
            left -= len(value) if kind is dict else 1
            if left >= 0:
                kept[name] = value
    return kept


def _seconds(begin: _Point, end: _Point) -> float:
    return (end[1] - begin[1]) - (end[2] - begin[2])


def _seconds_a_step(begin: _Point, end: _Point) -> float:
    seconds = _seconds(begin, end)
    # Steps may be inside something that is not training, and was perhaps never ended.
    return (seconds if seconds > 0.0 else end[1] - begin[1]) / max(1, end[0] - begin[0])


def _begin_of_steps(window: _Window, usual: float | None) -> _Point | None:
    """Return where the steps of a window began in which other records were logged; None where nothing tells.

    What such a record is about was done before it, perhaps after the iteration whose step it is logged ahead of.
    """
    begin, end, marks = window
    found = begin
    for point, is_over in marks:
        if is_over and _seconds(point, end) >= _CALL_S:
            found = point
    if usual is None:
        return found
    for point in (found, begin, *(point for point, _ in marks)):
        if usual / _ALIKE <= _seconds_a_step(point, end) <= usual * _ALIKE:
            return point
    return None


class StepRecords:
    """Decides which steps are written and completes their records.

    `take` is what the logger calls for a step that is more than folded: with the record as far as the caller's
    well-known fields go, and the caller's own scalars.
    """

    def __init__(
        self,
        gate: StepGate,
        record_queue: RecordQueue,
        values: PlainValues,
        interval: Interval,
        times: SpanTotals,
        *,
        before_first: Callable[[], None],
        context: RunContext,
    ) -> None:
        self.samples_per_step: float | None = None
        """Samples that one step trains on, where the start record says so."""
        self.samples_fewer = 0.0
        """How many samples fewer than that the steps of this session have had together."""
        self.system: dict[str, Any] = {}
        """System metrics to be put on the next step record."""
        self._threads: set[int] = set()
        self.step_at_start = -NEVER
        """The last step before the newest start record: a training that begins there may start over."""
        self.first_step: int | None = None
        """Of this session."""
        self.latest: Mapping[str, Any] = {}
        """The newest step record."""
        self._gate = gate
        self._record_queue = record_queue
        self._values = values
        self._interval = interval
        self._times = times
        self._before_first = before_first
        self._context = context
        self.take, self._complete, self.leave, self._measure = self._make_hot_path()

    def _make_hot_path(self) -> tuple[_Take, _Complete, _Leave, _Measure]:
        """Return `take`, `complete`, `leave` and `measure`.

        They are functions that share local variables, because attributes would cost 4 % of a step that is written.
        """
        gate, record_queue, interval, dumps = self._gate, self._record_queue, self._interval, orjson.dumps
        metrics, block = gate.metrics, gate.block
        known_names, are_names = record_queue.masker.metric_names, record_queue.masker.are_metric_names
        metrics.name_of_metric = record_queue.masker.name_of_metric
        journal, append = record_queue.journal, record_queue.journal.append
        lock, take_any = record_queue.lock, self._take_any
        times = self._times
        timed, take_times = times.active, times.take
        start_of_line = b'{"event":"step","session":%d,' % record_queue.session
        log_every = look_every = 0
        next_due = last_due = asked = -NEVER
        begin: _Point = _NO_POINT
        marks: _Marks = ()
        usual: float | None = None
        # Seconds that were spent between steps, in no span, as the caller says.
        reported_s = 0.0

        def take(step: Any, loss: Any, record: dict[str, Any], scalars: dict[str, Any]) -> None:
            nonlocal last_due, next_due, begin, marks
            if type(step) is int and step == gate.due_at == next_due:
                # The usual record: the step is the one that was due, and nothing was requested.
                next_due = step + log_every
                gate.due_at = step + look_every
            else:
                if type(step) is not int:
                    step = self._as_step(record)
                if step > gate.due_at:
                    # The first step of a thread skips some, or comes first.
                    self._threads.add(threading.get_ident())
                if gate.due_at == asked:
                    adjust(step)
                if step < gate.last_step or step < 0:
                    self._report_order(step)
                # A loop that went back, after a reload, is seen at once; a step that is logged in two calls is one.
                if step < next_due and step >= gate.last_step and step != last_due and not gate.write_next:
                    gate.last_step = step
                    gate.due_at = min(next_due, step + look_every)
                    take_any(step, False, record, scalars)
                    return
                gate.write_next = False
                next_due = step + log_every if step == next_due else step - step % log_every + log_every
                gate.due_at = min(next_due, step + look_every)
            last_due = gate.last_step = step
            if (
                type(loss) is not float
                or not gate.low < loss < gate.high
                or (scalars and not known_names.issuperset(scalars) and not are_names(scalars))
                # What was folded is put together with this step's own numbers, which may have to be fetched first.
                or ((metrics.rows or metrics.sums) and not _are_numbers(record, scalars))
            ):
                take_any(step, True, record, scalars)
                return
            # `with lock` would cost 4 %. Within the `try`, because a signal handler may raise after any call.
            try:
                lock.acquire()
                if record_queue.is_direct and not record_queue.busy:
                    try:
                        record_queue.busy = True
                        if scalars:
                            record.update(scalars)
                        elapsed = record["elapsed"]
                        if timed:
                            record.update(take_times(elapsed))
                        here = (step, elapsed, times.away + reported_s, times.at_steps, self.samples_fewer)
                        window = (begin, here, marks)
                        if step != begin[0]:
                            begin, marks = here, ()
                        if gate.losses or gate.summed or metrics.sums or self.system:
                            complete(record, loss, window)
                        else:
                            # What `complete` does where nothing was folded or sampled since the last record; the call
                            # would cost 3 %.
                            block.append(loss)
                            if len(block) >= BLOCK:
                                gate.update_jump_threshold()
                            if "sec_per_step" not in record:
                                add_speed(record, window)
                            self.latest = record
                        try:
                            # orjson refuses tensors and arrays, so that adding up asks no device; and adding up refuses
                            # what orjson takes although it is not a number.
                            record["seq"] = seq = journal.next_seq
                            body = dumps(record, None, OPT_APPEND_NEWLINE)
                            total = sum(record.values(), 0.0)
                        except TypeError:
                            total = math.nan
                        if total - total == 0.0 and len(body) < _MAX_PLAIN:
                            line = body.replace(b"{", start_of_line, 1)
                            fill = append(line)
                            if fill > MUCH or not fill:
                                record_queue.after_append(fill, line, STEP, seq)
                            return
                    finally:
                        try:
                            if record_queue.interrupting:
                                record_queue.take_interrupting()
                        finally:
                            record_queue.busy = False
                    self._put_completed(record)
                    return
            finally:
                try:
                    lock.release()
                except RuntimeError as error:
                    # Interrupted while another thread held it: there is nothing to release.
                    pass_on_interrupt(error)
            take_any(step, True, record, scalars)

        def adjust(step: int) -> None:
            """Apply requests between two steps, and use the interval that is in force now."""
            nonlocal log_every, look_every, next_due
            if not log_every:
                self.first_step = step
                self._before_first()
            if interval.ready:
                with self._times.in_control():
                    interval.apply(step)
            if interval.log_every != log_every:
                log_every = interval.log_every
                # Looked at again after a while even where no record is due, so that folded losses do not pile up.
                look_every = min(log_every, MAX_FOLDED)
                next_due = gate.last_step - gate.last_step % log_every + log_every

        def complete(record: dict[str, Any], loss: float | None, window: _Window) -> None:
            """Add to a record that is written what the caller did not say."""
            record.update(gate.take(loss))
            metrics.take_into(record)
            if "sec_per_step" not in record:
                add_speed(record, window)
            if self.system:
                # Each sample is on one record, the next one: none is shown older than it is.
                record.update({name: value for name, value in self.system.items() if name not in record})
                self.system = {}
            self.latest = record

        def add_speed(record: dict[str, Any], window: _Window) -> None:
            """Say how fast the steps of a window were: what else was done meanwhile is the ledger's."""
            nonlocal usual
            begin, end, marks = window
            steps = end[0] - begin[0]
            if begin[0] < 0 or steps <= 0:
                return
            if not marks:
                # As `_seconds_a_step`, whose call would cost 3 %.
                passed = end[1] - begin[1]
                seconds = passed - end[2] + begin[2]
                usual = seconds = (seconds if seconds > 0.0 else passed) / steps
            elif end[3] > begin[3]:
                # Spans say which seconds were the steps'; those between them belong to what was logged there.
                seconds = (end[3] - begin[3]) / steps
            else:
                found = _begin_of_steps(window, usual)
                if found is None:
                    usual = None
                    return
                begin, steps = found, max(1, end[0] - found[0])
                seconds = _seconds_a_step(found, end)
            record["sec_per_step"] = seconds
            if self.samples_per_step is not None and seconds > 0 and "samples_per_sec" not in record:
                record["samples_per_sec"] = (self.samples_per_step - (end[4] - begin[4]) / steps) / seconds

        def measure(step: int, elapsed: float, due: bool) -> _Window:
            """Return what the speed of a step is worked out from, and begin the next window with a due step."""
            nonlocal begin, marks
            here = point(step, elapsed)
            window = (begin, here, marks)
            # What came between two steps without a record is left out with the steps before.
            if step != begin[0] and (due or marks):
                begin, marks = here, ()
            return window

        def point(step: int, elapsed: float) -> _Point:
            away, at_steps = times.away_at(elapsed)
            return step, elapsed, away + reported_s, at_steps, self.samples_fewer

        def leave(elapsed: float, step: Any, seconds: float | None) -> None:
            """Take note of a record that belongs to `step`: what it took, `seconds` if that is known, is no step's."""
            nonlocal marks, reported_s
            if not times.is_of_training_thread():
                return
            if seconds is not None and not times.times_checkpoints:
                reported_s += min(seconds, elapsed - begin[1])
                return
            last = gate.last_step
            is_over = type(step) is not int or step <= last
            marks = (*marks[: _MOST_MARKS - 1], (point(last, elapsed), is_over))
            # So that the time of the next step is known.
            gate.due_at = asked

        return take, complete, leave, measure

    def count_samples(self, share: Any) -> None:
        """Set which share of its usual samples the current step has."""
        if self.samples_per_step is not None and is_finite_number(share) and share >= 0:
            self.samples_fewer += self.samples_per_step * (1.0 - share)

    def put_rest(self) -> None:
        """Write a record for the steps that were folded and whose record never came due."""
        gate = self._gate
        if not gate.losses and not gate.metrics.rows and not gate.metrics.sums:
            return
        given = {"train_loss": gate.losses.pop()} if gate.losses else {}
        wall, elapsed = self._context.clock.wall(), self._context.elapsed()
        here = (gate.last_step, elapsed, 0.0, 0.0, 0.0)
        finish = partial(self._finish, True, (_NO_POINT, here, ()))
        fields = {**given, **(self._times.take(elapsed) if self._times.active else {})}
        self._record_queue.put(STEP, wall, elapsed, fields, finish=finish)

    def _take_any(self, step: int, due: bool, record: dict[str, Any], scalars: dict[str, Any]) -> None:
        """Take a step of whatever values."""
        wall, elapsed = record.pop("time"), record.pop("elapsed")
        del record["seq"]
        record.pop("global_step", None)
        if not due:
            record, scalars = _foldable({**record, **scalars}), {}
        plain, pending = self._values.fields({**record, **scalars} if scalars else record)
        self._values.numbers_only(WELL_KNOWN, plain, _is_number)
        if due and self._times.active:
            # Taken now, though the record may have to wait for its device: these are the times up to this step.
            plain.update(self._times.take(elapsed))
        finish = partial(self._finish, due, self._measure(step, elapsed, due))
        self._record_queue.put(STEP, wall, elapsed, plain, pending, finish=finish)

    def _put_completed(self, record: dict[str, Any]) -> None:
        """Write a record that was completed before one of its values turned out to need a closer look."""
        wall, elapsed = record.pop("time"), record.pop("elapsed")
        del record["seq"]
        plain, pending = self._values.fields(record)
        self._values.numbers_only(WELL_KNOWN, plain, _is_number)
        self._record_queue.put(STEP, wall, elapsed, plain, pending)

    def _as_step(self, record: dict[str, Any]) -> int:
        """Return a step that is no plain integer as one; what cannot be one is noted, and the record kept."""
        given = record["global_step"]
        taken = self._values.one(given)
        number = number_in(taken)
        if number is not None and is_finite_number(number) and type(taken) is not bool:
            step = int(number)
            is_clear = step == number and type(taken) is not str and type(taken) is not list
        else:
            step, is_clear = max(self._gate.last_step, -1) + 1, False
            record["x_global_step"] = taken[:100] if type(taken) is str else f"<{type(given).__name__}>"
        record["global_step"] = step
        if not is_clear:
            what = f"{taken!r:.50}" if type(taken) in (str, float) else f"a {type(given).__name__}"
            self._context.guard.report_misuse(
                f"the step is {what}; it must be a whole number: it is recorded at step {step}",
                "the step is no whole number",
            )
        return step

    def _report_order(self, step: int) -> None:
        if step < 0:
            self._context.guard.report_misuse(
                f"step {step} is negative; steps count up from 0", "a negative step"
            )
        elif self._gate.last_step == self.step_at_start:
            self.step_at_start = -NEVER
        elif len(self._threads | {threading.get_ident()}) == 1:
            # Threads that log steps of their own count each for itself.
            self._context.guard.report_misuse(
                f"step {step} was logged after step {self._gate.last_step}; steps count up over the whole run: where "
                "they begin again with each epoch, log `epoch * len(loader) + i`. The records are kept as they are",
                "a step that goes back",
            )

    def _finish(self, due: bool, window: _Window, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Return the whole record, or None for a step that was folded; called in the order of the steps."""
        loss = fields.get("train_loss")
        if type(loss) is int or type(loss) is bool:
            loss = float(loss)
        ordinary = type(loss) is not float or self._gate.low < loss < self._gate.high
        if not due and ordinary:
            if type(loss) is float:
                self._gate.add(loss)
            self._gate.metrics.add(fields)
            return None
        record = {"global_step": window[1][0], NAN_INF_DETECTED: False, **fields}
        is_finite = type(loss) is float and loss - loss == 0.0
        self._complete(record, loss if is_finite else None, window)
        if not ordinary:
            record[LOSS_JUMP if is_finite else NAN_INF_DETECTED] = True
            self._context.events.incident.publish()
        return record
