"""Spans and events to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import base64
import hashlib
import http.client
import logging
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from toolkit.runfolder.records import SPAN, SPAN_EVENT, START, TAGS, Record
from toolkit.telemetry.exporters.span_attributes import plain_attributes
from toolkit.telemetry.exporters.span_filter import SpanFilter, SpanSelection
from toolkit.telemetry.options import OptionsError
from toolkit.telemetry.privacy.masking import Masker

_log = logging.getLogger("toolkit.telemetry")

INSTALL: Final = 'pip install "ai-toolkit-telemetry[otlp]"'

_TAGS: Final = ("perf_tag", "session_tag")
_SPANS_A_REQUEST: Final = 512
_EVENTS_A_SPAN: Final = 1_000
_EVENTS_KEPT: Final = 50_000
_TIMEOUT_S: Final = 5.0
_LONGEST_ANSWER: Final = 64 * 1024


class OtlpError(OSError):
    """The collector did not take what it was sent; the message says why."""


class OtlpExporter:
    """Sends the spans of a run to `endpoint`, as one trace whose id comes from the run's.

    A span goes when it has ended, with its own id, its parent's, its attributes and its events. Each request is sent
    once: whoever called tries again. Secrets are masked. `endpoint` is the collector (`http://host:4318`) or the
    whole address of its traces; a login stands in it, or in a header of `OTEL_EXPORTER_OTLP_HEADERS`. `resource` is
    what else there is to say of the session as a whole.
    """

    name = "otlp"

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
        self._url, self._login = _without_login(traces_url(endpoint))
        about = {"service.name": service_name, "run.id": run_id, "host.name": socket.gethostname()}
        self._resource = {**about, **(resource or {})}
        self._trace_id = int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=16).digest(), "big")
        self._timeout_s = timeout_s
        self._spans = SpanSelection(span_filter)
        self._events: dict[str, list[Record]] = {}
        self._events_left_out: dict[str, int] = {}
        self._events_kept = 0
        self._unsent: list[Any] = []
        self._has_said_refused = False
        self._otel: _OpenTelemetry | None = None

    def write(self, batch: Sequence[Record]) -> None:
        """Send the spans that ended in `batch`.

        Raises:
            ModuleNotFoundError: OpenTelemetry is not installed.
            OtlpError: the collector did not take them; they are sent again with the next batch.
        """
        for record in batch:
            if record.get("event") in (START, TAGS):
                self._take_tags(record)
        self._send(self._spans.take(batch))

    def close(self) -> None:
        """Send what was still held back, unless the collector has just not taken what came before.

        Raises:
            OtlpError: the collector did not take it.
        """
        if not self._unsent:
            self._send(self._spans.rest())

    def _take_tags(self, record: Record) -> None:
        """Say from here on what the session is called since this record."""
        tags = {name: record[name] for name in _TAGS if isinstance(record.get(name), str)}
        if {**self._resource, **tags} != self._resource:
            self._resource |= tags
            if self._otel is not None:
                self._otel.describe(self._resource)

    def _send(self, records: Sequence[Record]) -> None:
        masker = Masker()
        for record in records:
            event = record.get("event")
            if event == SPAN_EVENT:
                self._keep_event(record)
            elif event == SPAN:
                self._otel = self._otel or _OpenTelemetry(self._resource, self._trace_id)
                events = self._take_events(record["id"])
                left_out = self._events_left_out.pop(record["id"], 0)
                self._unsent.append(self._otel.span(record, events, left_out, masker))
        while self._unsent:
            assert self._otel is not None
            piece = self._unsent[:_SPANS_A_REQUEST]
            self._post(self._otel.encode(piece))
            del self._unsent[: len(piece)]

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

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/x-protobuf", **self._login, **_headers(os.environ)}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310
        opener = urllib.request.build_opener(_NoRedirects, *_tls(self._url, os.environ))
        try:
            with opener.open(request, timeout=self._timeout_s) as answer:
                body = answer.read(_LONGEST_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                raise OtlpError(f"{self._shown_url} answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise OtlpError(f"{self._shown_url} does not answer: {reason}") from error
        except ValueError:
            # Python's own message has the header in it, and that may be a password.
            raise OtlpError("a header of OTEL_EXPORTER_OTLP_HEADERS has letters that none may have") from None
        self._say_what_was_refused(body)

    def _say_what_was_refused(self, answer: bytes) -> None:
        """Tell, once, that a collector took only a part: it says so itself, and wants nothing of it again."""
        assert self._otel is not None
        refused, why = self._otel.refused(answer)
        if refused and not self._has_said_refused:
            self._has_said_refused = True
            _log.warning("[telemetry] %s refused %d spans: %s", self._shown_url, refused, why)

    @property
    def _shown_url(self) -> str:
        """The address without what may be secret in it."""
        return self._url.partition("?")[0].partition("#")[0]


def traces_url(endpoint: str) -> str:
    """Return where traces are sent: to `endpoint`, or to the usual path of a collector if it names none.

    Raises:
        OptionsError: it is not an http or https address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionsError(
            f"otlp is {endpoint!r}; it must be an http or https address such as http://localhost:4318"
        )
    return urlunsplit(parts._replace(path="/v1/traces")) if parts.path in ("", "/") else endpoint


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without the login that may stand in it, and the header that says it instead."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    if not login:
        return url, {}
    given = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {given}"}


class _OpenTelemetry:
    """OpenTelemetry's own spans and their encoding, imported for whoever exports some."""

    def __init__(self, resource: Mapping[str, Any], trace_id: int) -> None:
        try:
            from google.protobuf.message import DecodeError
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
            from opentelemetry.sdk import trace as sdk
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise ModuleNotFoundError(f"otlp needs OpenTelemetry: {INSTALL} ({error})") from error
        self._trace = trace
        self._sdk = sdk
        self._encode = encode_spans
        self._answer = ExportTraceServiceResponse
        self._not_a_message = DecodeError
        self._make_resource = Resource
        self.describe(resource)
        self._scope = InstrumentationScope("ai-toolkit-telemetry")
        self._trace_id = trace_id

    def describe(self, resource: Mapping[str, Any]) -> None:
        """Say something else of the session as a whole; spans that were made before keep what was said then."""
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

    def encode(self, spans: Sequence[Any]) -> bytes:
        """Return the body of a request."""
        body: bytes = self._encode(spans).SerializeToString()
        return body

    def refused(self, answer: bytes) -> tuple[int, str]:
        """Return how many spans the collector says that it refused, and why."""
        try:
            partial = self._answer.FromString(answer).partial_success
        except self._not_a_message:
            return 0, ""
        return partial.rejected_spans, partial.error_message[:500]

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
    """Return the id as OpenTelemetry has it; one that is not of ours gets a number of its own."""
    try:
        number = int(span_id, 16)
    except ValueError:
        number = 0
    if 0 < number < 2**64 and len(span_id) == 16:
        return number
    return int.from_bytes(hashlib.blake2b(span_id.encode(), digest_size=8).digest(), "big")


def _headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that the environment asks for: `name=value` pairs between commas, percent-encoded."""
    given = environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in pairs}


def _tls(url: str, environ: Mapping[str, str]) -> list[urllib.request.HTTPSHandler]:
    """Return how to tell who answers: the machine's own certificates, or the file that the environment names."""
    if not url.startswith("https:"):
        return []
    certificates = environ.get("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE") or environ.get(
        "OTEL_EXPORTER_OTLP_CERTIFICATE"
    )
    context = ssl.create_default_context(cafile=certificates or None)
    return [urllib.request.HTTPSHandler(context=context)]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A page that asks for a login is no collector; following it there would look like success."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Go nowhere else."""
