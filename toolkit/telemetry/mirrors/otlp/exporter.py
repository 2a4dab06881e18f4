"""Sends spans and events to an OpenTelemetry collector, with OTLP over HTTP or gRPC."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.mirrors.otlp.transport import TRACES, CollectorSink, missing
from toolkit.telemetry.mirrors.shared.scalars import plain_attributes
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter, SpanSelection
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.records import SPAN, SPAN_EVENT, SPAN_START, START, TAGS, Record

_TAGS: Final = ("perf_tag", "session_tag")
_SPANS_A_REQUEST: Final = 512
_EVENTS_A_SPAN: Final = 1_000
_EVENTS_KEPT: Final = 50_000
_LONG_SPANS_KEPT: Final = 10_000
_TIMEOUT_S: Final = 5.0


class OtlpExporter(CollectorSink):
    """Sends the spans of a run to `endpoint`, as one trace whose id comes from the run's.

    A span is sent when it has ended, with its own id, its parent's, its attributes and its events. The events of a span
    that is open for a while are also sent while it is open, each as a span of zero duration, so that they do not wait
    for the end of the training. Secrets are masked.

    What was not delivered is sent first with the next batch. `endpoint` is the collector (`http://host:4318`, or
    `http://host:4317` for gRPC) or the full address of its traces; a login is in it, or in a header of
    `OTEL_EXPORTER_OTLP_HEADERS`. `resource` has further attributes of the session.
    """

    name = "otlp"
    what = "spans"

    def __init__(
        self,
        endpoint: str,
        *,
        service_name: str,
        run_id: str,
        resource: Mapping[str, Any] | None = None,
        span_filter: SpanFilter | None = None,
        timeout_s: float = _TIMEOUT_S,
        protocol: str | None = None,
    ) -> None:
        """Make an exporter; nothing is sent yet.

        Raises:
            OptionsError: `endpoint` is not an http or https address.
        """
        super().__init__(
            endpoint, TRACES, protocol=protocol, timeout_s=timeout_s, most_items=_SPANS_A_REQUEST
        )
        about = {"service.name": service_name, "run.id": run_id, "host.name": socket.gethostname()}
        self._resource = {**about, **(resource or {})}
        self._trace_id = int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=16).digest(), "big")
        self._filter = span_filter or SpanFilter()
        self._spans = SpanSelection(self._filter)
        self._events: dict[str, list[Record]] = {}
        self._events_left_out: dict[str, int] = {}
        self._events_kept = 0
        self._long: dict[str, None] = {}
        """Announced spans that are still open, oldest first."""
        self._otel: _OpenTelemetry | None = None

    def write(self, batch: Sequence[Record]) -> None:
        """Send the spans that ended in `batch`, and the events of open ones; what is not accepted is sent again."""
        for record in batch:
            if record.get("event") in (START, TAGS):
                self._take_tags(record)
        self._prepare(self._spans.take(batch))
        self._send()

    def close(self) -> None:
        """Send what was still held back, unless the collector has just failed to accept earlier spans."""
        try:
            if not self._unsent and not self._has_given_up:
                self._prepare(self._spans.rest())
                self._send()
        finally:
            self.give_up()

    def _take_tags(self, record: Record) -> None:
        """Use the tags of this record from here on."""
        tags = {name: record[name] for name in _TAGS if isinstance(record.get(name), str)}
        if {**self._resource, **tags} != self._resource:
            self._resource |= tags
            if self._otel is not None:
                self._otel.describe(self._resource)

    def is_undelivered(self, record: Record) -> bool:
        """Return whether a record is of a span that is not delivered yet; may be called on another thread."""
        seq, name = record.get("seq"), record.get("name")
        if record.get("event") != SPAN or not isinstance(seq, int) or not isinstance(name, str):
            return False
        return seq > self._delivered and self._filter.takes(name)

    def _prepare(self, records: Sequence[Record]) -> None:
        masker = Masker()
        for record in records:
            event = record.get("event")
            if event == SPAN_START:
                if record["id"] not in self._long:
                    self._long[record["id"]] = None
                    if len(self._long) > _LONG_SPANS_KEPT:
                        del self._long[next(iter(self._long))]
                    for earlier in self._events.get(record["id"], ()):
                        self._put(None, self._ready().point(earlier, masker))
            elif event == SPAN_EVENT:
                self._keep_event(record)
                if record["span_id"] in self._long:
                    self._put(None, self._ready().point(record, masker))
            elif event == SPAN:
                events = self._take_events(record["id"])
                left_out = self._events_left_out.pop(record["id"], 0)
                self._long.pop(record["id"], None)
                self._put(record["seq"], self._ready().span(record, events, left_out, masker))

    def _content(self, items: Sequence[Any]) -> Any:
        return items

    def _ready(self) -> _OpenTelemetry:
        if self._otel is None:
            self._otel = _OpenTelemetry(self._resource, self._trace_id)
        return self._otel

    def _keep_event(self, record: Record) -> None:
        kept = self._events.setdefault(record["span_id"], [])
        if len(kept) < _EVENTS_A_SPAN and self._events_kept < _EVENTS_KEPT:
            kept.append(record)
            self._events_kept += 1
        else:
            left_out = self._events_left_out
            left_out[record["span_id"]] = left_out.get(record["span_id"], 0) + 1

    def _take_events(self, span_id: str) -> list[Record]:
        events = self._events.pop(span_id, [])
        self._events_kept -= len(events)
        return events


class _OpenTelemetry:
    """Builds OpenTelemetry's own spans; imported on first use."""

    def __init__(self, resource: Mapping[str, Any], trace_id: int) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk import trace as sdk
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise missing("otlp", error) from error
        self._trace = trace
        self._sdk = sdk
        self._make_resource = Resource
        self.describe(resource)
        self._scope = InstrumentationScope("ai-toolkit-telemetry")
        self._trace_id = trace_id

    def describe(self, resource: Mapping[str, Any]) -> None:
        """Change the attributes of the session; spans built before keep the old ones."""
        self._resource = self._make_resource({**plain_attributes(resource)})

    def span(self, record: Record, events: Sequence[Record], events_left_out: int, masker: Masker) -> Any:
        """Return a finished span of OpenTelemetry's."""
        attributes = {
            **plain_attributes(masker.mask(record.get("attributes"))),
            **{name: record[name] for name in _ABOUT if record.get(name) is not None},
            **({"events_left_out": events_left_out} if events_left_out else {}),
        }
        start = _nanoseconds(record["start"])
        parent_id = record.get("parent_id")
        return self._sdk.ReadableSpan(
            name=record["name"],
            context=self._context(record["id"]),
            parent=self._context(parent_id) if parent_id else None,
            resource=self._resource,
            attributes=attributes,
            events=[
                self._sdk.Event(
                    name=event["name"],
                    attributes={**plain_attributes(masker.mask(event.get("attributes")))},
                    timestamp=_nanoseconds(event["time"]),
                )
                for event in events
            ],
            status=self._status(record, masker),
            start_time=start,
            end_time=start + _nanoseconds(record["duration"]),
            instrumentation_scope=self._scope,
        )

    def point(self, event: Record, masker: Masker) -> Any:
        """Return an event of an open span, as a child span of zero duration."""
        time_ns = _nanoseconds(event["time"])
        return self._sdk.ReadableSpan(
            name=event["name"],
            context=self._context(f"{event['span_id']} {event.get('session')} {event['seq']}"),
            parent=self._context(event["span_id"]),
            resource=self._resource,
            attributes={
                **plain_attributes(masker.mask(event.get("attributes"))),
                "event_of": event["span"],
                **{name: event[name] for name in ("session", "rank") if event.get(name) is not None},
            },
            start_time=time_ns,
            end_time=time_ns,
            instrumentation_scope=self._scope,
        )

    def _context(self, span_id: str) -> Any:
        return self._trace.SpanContext(
            trace_id=self._trace_id,
            span_id=_as_number(span_id),
            is_remote=False,
            trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
        )

    def _status(self, record: Record, masker: Masker) -> Any:
        error = record.get("error")
        if isinstance(error, Mapping):
            message = masker.mask(str(error.get("message") or error.get("type") or ""))
            return self._trace.Status(self._trace.StatusCode.ERROR, message)
        return self._trace.Status(self._trace.StatusCode.UNSET)


_ABOUT: Final = ("session", "rank", "global_step", "thread", "clock", "kept", "unfinished")


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _as_number(span_id: str) -> int:
    """Return the id as a number, as in OpenTelemetry; a foreign id is hashed."""
    try:
        number = int(span_id, 16)
    except ValueError:
        number = 0
    if 0 < number < 2**64 and len(span_id) == 16:
        return number
    return int.from_bytes(hashlib.blake2b(span_id.encode(), digest_size=8).digest(), "big")
