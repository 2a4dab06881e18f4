"""Sends spans and events to an OpenTelemetry collector, with OTLP over HTTP."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from toolkit.telemetry.mirrors.otlp.transport import TRACES, CollectorSink, about_the_run, key_values
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter, SpanSelection
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.records import SPAN, SPAN_EVENT, SPAN_START, START, TAGS, Record

_TAGS: Final = ("perf_tag", "session_tag")
_SPANS_A_REQUEST: Final = 512
_EVENTS_A_SPAN: Final = 1_000
_EVENTS_KEPT: Final = 50_000
_LONG_SPANS_KEPT: Final = 10_000
_TIMEOUT_S: Final = 5.0
_INTERNAL: Final = 1
_FAILED: Final = 2
"""OpenTelemetry's numbers of a kind of span and of a status."""

_Item = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The attributes of the session that a span belongs to, and the fields of its message."""


class OtlpExporter(CollectorSink):
    """Sends the spans of a run to `endpoint`, as one trace whose id comes from the run's.

    A span is sent when it has ended, with its own id, its parent's, its attributes and its events. The events of a span
    that is open for a while are also sent while it is open, each as a span of zero duration, so that they do not wait
    for the end of the training. Secrets are masked.

    What was not delivered is sent first with the next batch. `endpoint` is the collector (`http://host:4318`) or the
    full address of its traces; a login is in it, or in a header of `OTEL_EXPORTER_OTLP_HEADERS`. `resource` has further
    attributes of the session.
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
    ) -> None:
        """Make an exporter; nothing is sent yet.

        Raises:
            OptionsError: `endpoint` is not an http or https address.
        """
        super().__init__(endpoint, TRACES, timeout_s=timeout_s, most_items=_SPANS_A_REQUEST)
        about = {"service.name": service_name, "run.id": run_id, "host.name": socket.gethostname()}
        self._resource = {**about, **(resource or {})}
        self._trace_id = hashlib.blake2b(run_id.encode(), digest_size=16).digest()
        self._filter = span_filter or SpanFilter()
        self._spans = SpanSelection(self._filter)
        self._events: dict[str, list[Record]] = {}
        self._events_left_out: dict[str, int] = {}
        self._events_kept = 0
        self._long: dict[str, None] = {}
        """Announced spans that are still open, oldest first."""

    def write(self, batch: Sequence[Record]) -> None:
        """Send the spans that ended in `batch`, and the events of open ones; what is not accepted is sent again."""
        for record in batch:
            if record.get("event") in (START, TAGS):
                self._take_tags(record)
        self._prepare(self._spans.take(batch))
        self._send()

    def close(self) -> None:
        """Send nothing more."""
        self.give_up()

    def _take_tags(self, record: Record) -> None:
        """Use the tags of this record from here on."""
        # A new mapping: spans made before keep the old one.
        tags = {name: record[name] for name in _TAGS if isinstance(record.get(name), str)}
        self._resource = {**self._resource, **tags}

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
                        self._put(None, self._point(earlier, masker))
            elif event == SPAN_EVENT:
                self._keep_event(record)
                if record["span_id"] in self._long:
                    self._put(None, self._point(record, masker))
            elif event == SPAN:
                events = self._take_events(record["id"])
                left_out = self._events_left_out.pop(record["id"], 0)
                self._long.pop(record["id"], None)
                self._put(record["seq"], self._span(record, events, left_out, masker))

    def _content(self, items: Sequence[_Item]) -> Mapping[str, Any]:
        groups = groupby(items, key=itemgetter(0))
        return {
            "resource_spans": [about_the_run(of, spans=[span for _, span in group]) for of, group in groups]
        }

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

    def _span(self, record: Record, events: Sequence[Record], left_out: int, masker: Masker) -> _Item:
        """Return a span that has ended, with its events."""
        start, parent_id = _nanoseconds(record["start"]), record.get("parent_id")
        about = {name: record[name] for name in _ABOUT if record.get(name) is not None}
        return self._item(
            record["name"],
            {**_attributes(record, masker), **about, **({"events_left_out": left_out} if left_out else {})},
            span_id=_span_id(record["id"]),
            parent_span_id=_span_id(parent_id) if parent_id else b"",
            start_time_unix_nano=start,
            end_time_unix_nano=start + _nanoseconds(record["duration"]),
            events=[
                {
                    "name": event["name"],
                    "attributes": key_values(_attributes(event, masker)),
                    "time_unix_nano": _nanoseconds(event["time"]),
                }
                for event in events
            ],
            status=_status(record, masker),
        )

    def _point(self, event: Record, masker: Masker) -> _Item:
        """Return an event of an open span, as a child span of zero duration."""
        time_ns = _nanoseconds(event["time"])
        about = {name: event[name] for name in ("session", "rank") if event.get(name) is not None}
        return self._item(
            event["name"],
            {**_attributes(event, masker), "event_of": event["span"], **about},
            span_id=_span_id(f"{event['span_id']} {event.get('session')} {event['seq']}"),
            parent_span_id=_span_id(event["span_id"]),
            start_time_unix_nano=time_ns,
            end_time_unix_nano=time_ns,
        )

    def _item(self, name: str, attributes: Mapping[str, Any], **fields: Any) -> _Item:
        """Return the fields of OpenTelemetry's `Span`, and those of the session that it belongs to."""
        known = {"trace_id": self._trace_id, "name": name, "kind": _INTERNAL}
        return self._resource, {**known, "attributes": key_values(attributes), **fields}


_ABOUT: Final = ("session", "rank", "global_step", "thread", "clock", "kept", "unfinished")


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _attributes(record: Record, masker: Masker) -> Mapping[str, Any]:
    attributes = masker.mask(record.get("attributes"))
    return attributes if isinstance(attributes, Mapping) else {}


def _status(record: Record, masker: Masker) -> dict[str, Any]:
    error = record.get("error")
    if not isinstance(error, Mapping):
        return {}
    return {"code": _FAILED, "message": masker.mask(str(error.get("message") or error.get("type") or ""))}


def _span_id(given: str) -> bytes:
    """Return an id as OpenTelemetry has it; a foreign one is hashed."""
    try:
        number = int(given, 16)
    except ValueError:
        number = 0
    if 0 < number < 2**64 and len(given) == 16:
        return number.to_bytes(8, "big")
    return hashlib.blake2b(given.encode(), digest_size=8).digest()
