"""A step record, made of what the caller gave and what was measured since the last one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from orjson import OPT_APPEND_NEWLINE

from toolkit.telemetry.core.checks import shown
from toolkit.telemetry.core.guard import guarded_step
from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.logger.records.folded_metrics import WELL_KNOWN
from toolkit.telemetry.logger.records.plain_values import PlainValues, number_in
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.logger.records.step_gate import MAX_FOLDED, NEVER, StepGate
from toolkit.telemetry.logger.spans.totals import SpanTotals
from toolkit.telemetry.logger.steps.step_speed import NO_POINT, StepSpeed, Window
from toolkit.telemetry.runfolder.codec import fits_json
from toolkit.telemetry.runfolder.records import LOSS_JUMP, MAX_RECORD_BYTES, NAN_INF_DETECTED, STEP

if TYPE_CHECKING:
    from toolkit.telemetry.logger.control.poller import ControlPoller

_MAX_PLAIN: Final = MAX_RECORD_BYTES - 4096
_NUMBERS: Final = frozenset({float, int, bool})
_ALWAYS_FETCHED: Final = ("train_loss", "grad_norm")
_MOST_FETCHED: Final = 8
"""Other tensors of a step without a record that are fetched; each of them takes some microseconds."""


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
    return type(value) is float or fits_json(value)


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


class StepRecords:
    """Decides which steps are written and completes their records."""

    def __init__(
        self,
        gate: StepGate,
        record_queue: RecordQueue,
        values: PlainValues,
        interval: ControlPoller | FixedInterval,
        times: SpanTotals,
        *,
        before_first: Callable[[], None],
        context: RunContext,
    ) -> None:
        self.guard = context.guard
        self.speed = StepSpeed(gate, times)
        self.system: dict[str, Any] = {}
        """System metrics to be put on the next step record."""
        self.step_at_start = -NEVER
        """The last step before the newest start record: a training that begins there may start over."""
        self.first_step: int | None = None
        """Of this session."""
        self.latest: Mapping[str, Any] = {}
        """The newest step record."""
        self._gate = gate
        self._record_queue = record_queue
        self._known_names = record_queue.masker.metric_names
        self._are_names = record_queue.masker.are_metric_names
        gate.metrics.name_of_metric = record_queue.masker.name_of_metric
        self._start_of_line = b'{"event":"step","session":%d,' % record_queue.session
        self._values = values
        self._interval = interval
        self._times = times
        self._before_first = before_first
        self._context = context
        self._threads: set[int] = set()
        self._log_every = self._look_every = 0
        self._next_due = self._last_due = -NEVER

    @guarded_step
    def take(self, step: Any, loss: Any, record: dict[str, Any], scalars: dict[str, Any]) -> None:
        """Take a step that is more than folded, from `log_step`; it never raises.

        `record` has the caller's well-known fields, and `scalars` the others.
        """
        gate = self._gate
        if type(step) is int and step == gate.due_at == self._next_due:
            # The usual record: the step is the one that was due, and nothing was requested. `last_step` comes before
            # `due_at`: a signal handler that logs a step in between leaves nothing to fold up to its own step.
            gate.last_step = step
            self._next_due = step + self._log_every
            gate.due_at = step + self._look_every
        else:
            step, is_due = self._look_at(step, record)
            if not is_due:
                self._take_any(step, False, record, scalars)
                return
        self._last_due = step
        if (
            type(loss) is not float
            or not gate.low < loss < gate.high
            or (scalars and not self._known_names.issuperset(scalars) and not self._are_names(scalars))
            # What was folded is put together with this step's own numbers, which may have to be fetched first.
            or ((gate.rows or gate.metrics.sums) and not _are_numbers(record, scalars))
            or not self._write(step, loss, record, scalars)
        ):
            self._take_any(step, True, record, scalars)

    def _look_at(self, step: Any, record: dict[str, Any]) -> tuple[int, bool]:
        """Return a step that was not the next one due as a number, and whether it is written."""
        gate = self._gate
        if type(step) is not int or not -NEVER < step < NEVER:
            step = self._as_step(record)
        if step > gate.due_at:
            # The first step of a thread skips some, or comes first.
            self._threads.add(threading.get_ident())
        if gate.due_at == -NEVER:
            self._adjust(step)
        if step < gate.last_step or step < 0:
            self._report_order(step)
        log_every = self._log_every
        # A loop that went back, after a reload, is seen at once; a step that is logged in two calls is one.
        is_due = step >= self._next_due or step < gate.last_step or step == self._last_due or gate.write_next
        next_due = self._next_due
        if is_due:
            gate.write_next = False
            next_due = step + log_every if step == next_due else step - step % log_every + log_every
        gate.last_step = step
        self._next_due = next_due
        gate.due_at = min(next_due, step + self._look_every)
        return step, is_due

    def _adjust(self, step: int) -> None:
        """Apply requests between two steps, and use the interval that is in force now."""
        awaiting, self._gate.awaiting = self._gate.awaiting, None
        if awaiting is not None and awaiting[0] == self._gate.last_step != step:
            awaiting.append(step)
        if not self._log_every:
            self.first_step = step
            self._times.follow_steps()
            self._before_first()
        if self._interval.ready:
            with self._times.in_control():
                self._interval.apply(step)
        if self._interval.log_every != self._log_every:
            self._log_every = log_every = self._interval.log_every
            # Looked at again after a while even where no record is due, so that folded losses do not pile up.
            self._look_every = min(log_every, MAX_FOLDED)
            last_step = self._gate.last_step
            self._next_due = last_step - last_step % log_every + log_every

    def _write(self, step: int, loss: float, record: dict[str, Any], scalars: dict[str, Any]) -> bool:
        """Put a record of plain numbers into the journal; return False if something else has to come first."""
        record_queue = self._record_queue
        with record_queue.lock:
            if not record_queue.is_direct or record_queue.busy:
                return False
            try:
                record_queue.busy = True
                if scalars:
                    record.update(scalars)
                elapsed = record["elapsed"]
                if self._times.active:
                    record.update(self._times.take(elapsed))
                self._complete(record, loss, self.speed.measure(step, elapsed, due=True))
                try:
                    # orjson refuses tensors and arrays, so that adding up asks no device; and adding up refuses what
                    # orjson takes although it is not a number.
                    record["seq"] = seq = record_queue.journal.next_seq
                    body = orjson.dumps(record, None, OPT_APPEND_NEWLINE)
                    total = sum(record.values(), 0.0)
                except TypeError:
                    total = math.nan
                if total - total == 0.0 and len(body) < _MAX_PLAIN:
                    record_queue.commit_line(body.replace(b"{", self._start_of_line, 1), STEP, seq)
                    return True
            finally:
                try:
                    if record_queue.interrupting:
                        record_queue.take_interrupting()
                finally:
                    record_queue.busy = False
        self._put_completed(record)
        return True

    def _complete(self, record: dict[str, Any], loss: float | None, window: Window) -> None:
        """Add to a record that is written what the caller did not say."""
        gate = self._gate
        if gate.losses or gate.rows or gate.summed or gate.metrics.sums:
            record.update(gate.take(loss))
            gate.metrics.take_into(record)
        elif loss is not None:
            gate.learn(loss)
        if "sec_per_step" not in record:
            self.speed.add_to(record, window)
        if self.system:
            # Each sample is on one record, the next one: none is shown older than it is.
            record.update({name: value for name, value in self.system.items() if name not in record})
            self.system = {}
        self.latest = record

    def put_rest(self) -> None:
        """Write a record for the steps that were folded and whose record never came due."""
        gate = self._gate
        if not gate.losses and not gate.rows and not gate.metrics.sums:
            return
        given = {"train_loss": gate.losses.pop()} if gate.losses else {}
        wall, elapsed = self._context.clock.wall(), self._context.elapsed()
        here = (gate.last_step, elapsed, 0.0, 0.0, 0.0)
        finish = partial(self._finish, True, (NO_POINT, here, ()))
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
        finish = partial(self._finish, due, self.speed.measure(step, elapsed, due=due))
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
        if number is not None and -NEVER < number < NEVER and type(taken) is not bool:
            step = int(number)
            is_clear = step == number and type(taken) is not str and type(taken) is not list
        else:
            step, is_clear = max(self._gate.last_step, -1) + 1, False
            is_shown = type(taken) in (int, float)
            text = taken if type(taken) is str else shown(taken) if is_shown else f"<{type(given).__name__}>"
            record["x_global_step"] = text[:100]
        record["global_step"] = step
        if not is_clear:
            what = shown(taken)[:50] if type(taken) in (str, int, float) else f"a {type(given).__name__}"
            self._context.guard.report_misuse(
                f"the step is {what}; it must be a whole number of 64 bits: it is recorded at step {step}",
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

    def _finish(self, due: bool, window: Window, fields: dict[str, Any]) -> dict[str, Any] | None:
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
