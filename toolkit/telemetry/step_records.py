"""A step record, made of what the caller gave and what was measured since the last one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import orjson
from orjson import OPT_APPEND_NEWLINE

from toolkit.core.run_context import RunContext
from toolkit.core.script_interrupts import pass_on_interrupt
from toolkit.runfolder.records import ENVELOPE, LOSS_JUMP, MAX_RECORD_BYTES, NAN_INF_DETECTED, STEP
from toolkit.telemetry.records.folded_metrics import COLUMNS
from toolkit.telemetry.records.plain_values import PlainValues, is_finite_number
from toolkit.telemetry.records.record_queue import MUCH, RecordQueue
from toolkit.telemetry.records.step_gate import BLOCK, MAX_FOLDED, NEVER, StepGate
from toolkit.telemetry.spans.totals import SpanTotals

_ENVELOPE: Final = frozenset(ENVELOPE)
_MAX_PLAIN: Final = MAX_RECORD_BYTES - 4096
_NUMBERS: Final = frozenset({float, int, bool})
_WELL_KNOWN: Final = ("train_loss", *COLUMNS)
_ALWAYS_FETCHED: Final = ("train_loss", "grad_norm")
_MOST_FETCHED: Final = 8
"""Other tensors of a step without a record that are fetched; each of them takes some microseconds."""


_Take = Callable[[Any, Any, dict[str, Any], dict[str, Any]], None]
_Complete = Callable[[dict[str, Any], int, "float | None", float], None]
_Leave = Callable[[float, "float | None"], None]


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


def _of_one_type(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a step; a well-known one that is not a number gets another name."""
    odd = [name for name in _WELL_KNOWN if name in fields and not _is_number(fields[name])]
    for name in odd:
        value = fields.pop(name)
        fields[name if type(value) is bool else f"x_{name}"] = int(value) if type(value) is bool else value
    return fields


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
        """How many samples fewer than that the steps since the last record have had together."""
        self.left_s = 0.0
        """Seconds of this session that were spent between steps, and in no span."""
        self.system: dict[str, Any] = {}
        """System metrics to be put on the next step record."""
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
        self.take, self._complete, self.leave = self._make_hot_path()

    def _make_hot_path(self) -> tuple[_Take, _Complete, _Leave]:
        """Return `take`, `complete` and `leave`.

        They are functions that share local variables, because attributes would cost 4 % of a step that is written.
        """
        gate, record_queue, interval, dumps = self._gate, self._record_queue, self._interval, orjson.dumps
        metrics, block = gate.metrics, gate.block
        journal, append = record_queue.journal, record_queue.journal.append
        lock, take_any = record_queue.lock, self._take_any
        times = self._times
        timed, take_times = times.active, times.take
        start_of_line = b'{"event":"step","session":%d,' % record_queue.session
        log_every = look_every = 0
        next_due = last_due = last_recorded = asked = -NEVER
        last_elapsed = last_away = 0.0
        due_elapsed = left_at = left_away = 0.0

        def take(step: Any, loss: Any, record: dict[str, Any], scalars: dict[str, Any]) -> None:
            nonlocal last_due, next_due, last_recorded, last_elapsed, last_away, due_elapsed
            if type(step) is int and step == gate.due_at == next_due:
                # The usual record: the step is the one that was due, and nothing was requested.
                next_due = step + log_every
                gate.due_at = step + look_every
            else:
                if type(step) is not int:
                    step = self._as_step(record)
                if gate.due_at == asked:
                    adjust(step)
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
            due_elapsed = record["elapsed"]
            if (
                type(loss) is not float
                or not gate.low < loss < gate.high
                or (scalars and not _ENVELOPE.isdisjoint(scalars))
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
                        if timed:
                            record.update(take_times(record["elapsed"]))
                        if gate.losses or gate.summed or metrics.sums or self.system:
                            complete(record, step, loss, times.away + self.left_s)
                        else:
                            # What `complete` does where nothing was folded or sampled since the last record; the call
                            # would cost 3 %.
                            block.append(loss)
                            if len(block) >= BLOCK:
                                gate.update_jump_threshold()
                            if step != last_recorded:
                                away = times.away + self.left_s
                                if "sec_per_step" in record:
                                    self.samples_fewer = 0.0
                                elif step > last_recorded >= 0:
                                    add_speed(record, due_elapsed, away, step - last_recorded)
                                last_recorded, last_elapsed, last_away = step, due_elapsed, away
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

        def complete(record: dict[str, Any], step: int, loss: float | None, away: float) -> None:
            """Add to a record that is written what the caller did not say."""
            nonlocal last_recorded, last_elapsed, last_away
            record.update(gate.take(loss))
            metrics.take_into(record)
            elapsed = record["elapsed"]
            if step != last_recorded:
                if step > last_recorded >= 0:
                    add_speed(record, elapsed, away, step - last_recorded)
                last_recorded, last_elapsed, last_away = step, elapsed, away
            if self.system:
                # Each sample is on one record, the next one: none is shown older than it is.
                record.update({name: value for name, value in self.system.items() if name not in record})
                self.system = {}
            self.latest = record

        def add_speed(record: dict[str, Any], elapsed: float, away: float, steps: int) -> None:
            """Say how fast the steps since the last record were: what else was done meanwhile is the ledger's."""
            passed = elapsed - last_elapsed
            seconds = passed - (away - last_away)
            if seconds <= 0.0:
                # Steps inside something that is not training, and was perhaps never ended.
                seconds = passed
            fewer, self.samples_fewer = self.samples_fewer, 0.0
            if "sec_per_step" not in record:
                record["sec_per_step"] = seconds = seconds / steps
                if self.samples_per_step is not None and seconds > 0 and "samples_per_sec" not in record:
                    record["samples_per_sec"] = (self.samples_per_step - fewer / steps) / seconds

        def leave(elapsed: float, seconds: float | None) -> None:
            """Have what was done since the last step not count as a step's: all of it, or `seconds` of it."""
            nonlocal left_at, left_away
            if not times.is_of_training_thread():
                return
            if gate.last_step == last_due:
                # No step has come since. What spans have counted already is not counted again.
                since, away = (left_at, left_away) if left_at > due_elapsed else (due_elapsed, times.away)
                left_at, left_away = elapsed, times.away_at(elapsed)
                self.left_s += max(0.0, elapsed - since - (left_away - away))
            elif seconds is not None and not times.times_checkpoints:
                self.left_s += seconds

        return take, complete, leave

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
        finish = partial(self._finish_rest, gate.last_step, elapsed)
        fields = {**given, **(self._times.take(elapsed) if self._times.active else {})}
        self._record_queue.put(STEP, wall, elapsed, fields, finish=finish)

    def _finish_rest(self, step: int, elapsed: float, fields: dict[str, Any]) -> dict[str, Any] | None:
        record = self._finish(step, True, elapsed, 0.0, fields)
        if record is not None:
            # The time since the last step was not spent on steps.
            record.pop("sec_per_step", None)
            record.pop("samples_per_sec", None)
        return record

    def _take_any(self, step: int, due: bool, record: dict[str, Any], scalars: dict[str, Any]) -> None:
        """Take a step of whatever values."""
        wall, elapsed = record.pop("time"), record.pop("elapsed")
        del record["seq"]
        record.pop("global_step", None)
        if not due:
            record, scalars = _foldable({**record, **scalars}), {}
        plain, pending = self._values.fields({**record, **scalars} if scalars else record)
        plain = _of_one_type(plain)
        if due and self._times.active:
            # Taken now, though the record may have to wait for its device: these are the times up to this step.
            plain.update(self._times.take(elapsed))
        finish = partial(self._finish, step, due, elapsed, self._times.away + self.left_s)
        self._record_queue.put(STEP, wall, elapsed, plain, pending, finish=finish)

    def _put_completed(self, record: dict[str, Any]) -> None:
        """Write a record that was completed before one of its values turned out to need a closer look."""
        wall, elapsed = record.pop("time"), record.pop("elapsed")
        del record["seq"]
        plain, pending = self._values.fields(record)
        self._record_queue.put(STEP, wall, elapsed, _of_one_type(plain), pending)

    def _as_step(self, record: dict[str, Any]) -> int:
        """Return a step that is no plain integer as one; what cannot be one is noted, and the record kept."""
        given = record["global_step"]
        taken = self._values.one(given)
        if is_finite_number(taken):
            step = int(taken)
        else:
            step = max(self._gate.last_step, 0)
            record["x_global_step"] = f"<{type(given).__name__}>"
        record["global_step"] = step
        return step

    def _finish(
        self, step: int, due: bool, elapsed: float, away: float, fields: dict[str, Any]
    ) -> dict[str, Any] | None:
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
        record = {"elapsed": elapsed, "global_step": step, NAN_INF_DETECTED: False, **fields}
        is_finite = type(loss) is float and loss - loss == 0.0
        self._complete(record, step, loss if is_finite else None, away)
        if not ordinary:
            record[LOSS_JUMP if is_finite else NAN_INF_DETECTED] = True
            self._context.events.incident.publish()
        del record["elapsed"]
        return record
