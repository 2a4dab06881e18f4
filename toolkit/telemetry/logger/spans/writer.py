"""Spans as records: what is written when one begins, ends, or something happens in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from itertools import count, islice
from typing import Any, Final

from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.logger.errors.failure import describe_failure
from toolkit.telemetry.logger.records.plain_values import PlainValues
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.logger.records.step_gate import StepGate
from toolkit.telemetry.logger.spans.span import FoldedSpan, Span, step_of
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder import records
from toolkit.telemetry.timing.names import DEVICE_CLOCK, HOST_CLOCK

LONGEST_NAME: Final = 200
_MOST_ATTRIBUTES: Final = 10_000
"""More than a record holds."""


class SpanWriter:
    """Writes the spans of one session."""

    def __init__(
        self, gate: StepGate, values: PlainValues, *, record_queue: RecordQueue, context: RunContext
    ) -> None:
        # Enough of it is chance that the sessions of a run, and its ranks, never use the same one. The letter in front
        # keeps tables from taking it for a number.
        self.prefix = f"a{os.urandom(4).hex()[1:]}"
        self.ids = count(1)
        self._gate = gate
        self._values = values
        self._record_queue = record_queue
        self._put = record_queue.put
        self.mask_name = record_queue.masker.mask_name
        self._wall = context.clock.wall
        self._monotonic = context.clock.monotonic
        self._began = context.began
        self._elapsed = context.elapsed
        self._guard = context.guard
        self._main_thread = threading.main_thread().ident

    def write(self, span: Span, now: float) -> None:
        """Write a span that ended, at a time of the monotonic clock; it never raises."""
        try:
            self._write(span, now)
        except Exception as error:  # noqa: BLE001 - as a guard does it, in one call less
            self._guard.take("writing a span", error)

    def _write(self, span: Span, now: float) -> None:
        record: dict[str, Any] = {"id": span.id}
        if span.parent_id is not None:
            record["parent_id"] = span.parent_id
        # Most spans have no other text of the caller's.
        is_masked = not span.attributes and span.error is None
        record["name"] = self.mask_name(span.name) if is_masked else span.name
        record["start"] = span.start
        record["duration"] = span.duration
        record["clock"] = HOST_CLOCK
        self._add_common(record, span.step, span.thread)
        if span.kept is not None:
            record["kept"] = span.kept
        if span.attributes:
            # From here on the span has them as they were written: the caller's own may be large, or on a GPU.
            record["attributes"] = span.attributes = self._values.tree(dict(span.attributes))
        if span.error is not None:
            record["error"] = _described(span.error)
            # Not the exception itself: its frames would keep alive what they hold, as long as the span is kept.
            span.error = record["error"]["message"]
        if span.is_unfinished:
            record["unfinished"] = True
        self._put(records.SPAN, self._wall(), now - self._began, record, is_masked=is_masked)

    def write_beginning(self, span: Span) -> None:
        """Write that `span` has begun and is open."""
        span.is_beginning_written = True
        fields: dict[str, Any] = {"id": span.id}
        if span.parent_id is not None:
            fields["parent_id"] = span.parent_id
        fields["name"] = span.name
        fields["start"] = span.start
        # By the monotonic clock.
        fields["age"] = max(0.0, self._monotonic() - span.began)
        self._add_common(fields, span.step, span.thread)
        if span.attributes:
            fields["attributes"] = self._values.tree(dict(span.attributes))
        with self._record_queue.lock:
            # It may end on its own thread just now: a beginning after its end would read as an open span.
            if not span.closed:
                self._put(records.SPAN_START, self._wall(), self._elapsed(), fields)

    def write_folded(
        self,
        spans: Iterable[FoldedSpan],
        why: str,
        *,
        root: Span | None,
        error: BaseException | str | None = None,
    ) -> None:
        """Write spans that were only added up, each inside the smallest of them that is around it."""
        around: dict[int, list[tuple[float, float, str, int]]] = {}
        for span in sorted(spans, key=lambda span: (span.began, -(span.duration or 0.0))):
            end = span.began + (span.duration or 0.0)
            # Of its own thread: what others do at the same time is around nothing here.
            inside = around.setdefault(span.thread, [])
            while inside and inside[-1][1] < end:
                inside.pop()
            outer = span.outer or root
            span_id = self._new_id()
            fields: dict[str, Any] = {"id": span_id}
            step = step_of(span)
            if inside and (outer is None or inside[-1][0] >= outer.began):
                fields["parent_id"], step = inside[-1][2:]
            elif outer is not None:
                fields["parent_id"] = outer.id
            fields |= {"name": span.name, "start": span.start, "duration": span.duration, "clock": HOST_CLOCK}
            self._add_common(fields, step, span.thread)
            if span.attributes:
                fields["attributes"] = self._values.tree(dict(span.attributes))
            if error is not None:
                fields["error"] = _described(error)
            fields["kept"] = why
            self._put(records.SPAN, self._wall(), end - self._began, fields)
            inside.append((span.began, end, span_id, step))

    def write_device_span(self, span: Span, seconds: float) -> None:
        """Write the time by the device's own clock of a span that was kept."""
        fields: dict[str, Any] = {
            "id": self._new_id(),
            "parent_id": span.id,
            "name": span.name,
            "start": span.start,
            "duration": seconds,
            "clock": DEVICE_CLOCK,
        }
        self._add_common(fields, span.step, span.thread)
        if span.kept is not None:
            fields["kept"] = span.kept
        self._put(records.SPAN, self._wall(), self._elapsed(), fields)

    def write_event(
        self, span: Span | None, span_name: str, name: Any, attributes: Mapping[str, Any], time: float | None
    ) -> None:
        """Write that something happened inside a span, now or at a wall time."""
        fields: dict[str, Any] = {"span_id": span.id} if span is not None and span.id else {}
        if span_name:
            fields["span"] = self.mask_name(span_name)
        fields["name"] = self.mask_name(self.as_name(name))
        is_masked = False
        if attributes:
            fields["attributes"] = plain = self._values.tree(as_attributes(attributes))
            # Numbers of an iteration, which come on the training's thread: there is nothing else to mask.
            is_masked = self._record_queue.masker.are_known_numbers(plain)
        self._add_common(fields, self._gate.last_step)
        wall = self._wall() if time is None else time
        self._put(records.SPAN_EVENT, wall, self._elapsed(), fields, is_masked=is_masked)

    def write_ledger(self, fields: dict[str, Any], now: float) -> None:
        """Write what the ledger has counted, where it has counted anything."""
        if fields:
            self._add_common(fields, self._gate.last_step)
            self._put(records.LEDGER, self._wall(), now - self._began, fields)

    def write_summary(self, fields: dict[str, Any], now: float) -> None:
        """Write how many spans of each name there were, and how long they took."""
        self._put(records.SPAN_SUMMARY, self._wall(), now - self._began, fields)

    def as_name(self, given: Any) -> str:
        """Return a text for any value that was given as a name."""
        # Never a tensor: its number would be on its way here from a device, and keep its place for good.
        taken = None if hasattr(type(given), "__torch_function__") else self._values.one(given)
        name = taken if type(taken) is str else f"<{type(given).__name__}>" if given is not None else ""
        return name[:LONGEST_NAME] or "span"

    def _new_id(self) -> str:
        return f"{self.prefix}{next(self.ids) & 0xFFFFFFFF:08x}"

    def _add_common(self, fields: dict[str, Any], step: int, thread: int | None = None) -> None:
        if step >= 0:
            fields["global_step"] = step
        if thread is not None and thread != self._main_thread:
            fields["thread"] = self.mask_name(name_of_thread(thread))


def _described(error: BaseException | str) -> dict[str, str]:
    if isinstance(error, BaseException):
        known = describe_failure(error)
        return {"type": str(known.get("type", "")), "message": str(known.get("message", ""))[:1000]}
    # What is neither is not asked for its text: a tensor's waits for its GPU.
    message = str.__str__(error) if isinstance(error, str) else f"<{type(error).__name__}>"
    return {"type": "", "message": mask_secrets(message[:1000])}


def name_of_thread(ident: int) -> str:
    """Return the name of a thread that runs; its number where none of that number does."""
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.name
    return str(ident)


def as_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of attributes that were given as a mapping of any kind, even an endless one.

    Raises:
        TypeError: it is something else; `dict` would read a list of endless lists to the end.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"attributes are of the type {type(given).__name__}; they must be a mapping")
    return dict(islice(given.items(), _MOST_ATTRIBUTES))
