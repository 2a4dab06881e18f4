"""How spans and metrics get to a collector: as protobuf over HTTP or gRPC, and again where it did not take them."""

from __future__ import annotations

import base64
import logging
import os
import re
import ssl
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.core.post import post

_log = logging.getLogger("toolkit.telemetry")

HTTP: Final = "http"
GRPC: Final = "grpc"
TRACES: Final = "traces"
METRICS: Final = "metrics"

_TEMPORARY: Final = frozenset({401, 403, 404, 405, 407, 408, 429})
"""Refusals that are not caused by the content: a login, a path or a limit."""
_TOO_LARGE: Final = "RESOURCE_EXHAUSTED"
_INVALID: Final = "INVALID_ARGUMENT"
_NO_ANSWER: Final = frozenset({"", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


class OtlpError(OSError):
    """The collector did not accept the content; the message says why."""


class OtlpRefusalError(OtlpError):
    """The collector refuses this request. `is_final` if a smaller one would not help."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


def missing(option: str, error: ImportError) -> ModuleNotFoundError:
    """Return the error of an option whose package is not installed."""
    return ModuleNotFoundError(f"{option} needs OpenTelemetry: {install_extra('otlp')} ({error})")


class CollectorSink:
    """The base of a sink that sends items of records to a collector; what it did not take is sent first the next time.

    A subclass queues items by `_put`, and makes a request of some of them in `_content`.
    """

    name: str
    what: str
    """What is left out where the collector refuses it."""

    def __init__(
        self, endpoint: str, signal: str, *, protocol: str | None, timeout_s: float, most_items: int
    ) -> None:
        """Raise OptionsError if `endpoint` is no http or https address; nothing is sent yet."""
        self._signal = signal
        self._protocol = protocol_of(protocol, os.environ, signal)
        self._url = signal_url(endpoint, self._protocol, option=self.name, signal=signal)
        self._timeout_s = timeout_s
        self._most_items = self._piece = most_items
        self._unsent: deque[tuple[int | None, Any]] = deque()
        """Items that wait to be sent, each with the number of its record; None if it does not count."""
        self._delivered = -1
        self._transport: Transport | None = None
        self._has_given_up = False
        self.refused = 0
        """Records that the collector has refused."""
        self.leaves_out = ""
        """Why it has."""

    def give_up(self) -> None:
        """Send nothing more, and cancel a pending retry; may be called on another thread."""
        has_given_up, self._has_given_up = self._has_given_up, True
        if self._transport is not None and not has_given_up:
            self._transport.give_up()

    def _content(self, items: Sequence[Any]) -> Any:
        """Return the content of a request."""
        raise NotImplementedError

    def _put(self, seq: int | None, item: Any) -> None:
        self._unsent.append((seq, item))

    def _send(self) -> None:
        while self._unsent and not self._has_given_up:
            count = min(self._piece, len(self._unsent))
            try:
                content = self._content([self._unsent[number][1] for number in range(count)])
                if self._transport is None:
                    self._transport = _make_transport(
                        self._url, self._protocol, timeout_s=self._timeout_s, signal=self._signal
                    )
            except ImportError as error:
                raise missing(self.name, error) from error
            try:
                self._transport.send(content)
            except OtlpRefusalError as refusal:
                if count > 1:
                    # One item may be the reason, or the size of the request.
                    self._piece = count // 2
                    continue
                if not refusal.is_final:
                    raise
                self.refused += self._unsent[0][0] is not None
                self.leaves_out = f"{refusal}: {self.what} are left out"
            for _ in range(count):
                seq, _ = self._unsent.popleft()
                self._delivered = self._delivered if seq is None else seq
            self._piece = min(self._most_items, 2 * self._piece)


class Transport(Protocol):
    """Sends OpenTelemetry's spans or metrics to a collector; one call at a time."""

    def send(self, content: Any) -> None:
        """Deliver spans, or metrics. Raises OtlpError if that failed."""

    def give_up(self) -> None:
        """Stop retrying; may be called on another thread."""


def _make_transport(endpoint: str, protocol: str, *, timeout_s: float, signal: str) -> Transport:
    """Return the transport to `endpoint`; nothing is sent yet.

    Raises:
        ImportError: OpenTelemetry's exporter is not installed.
        OtlpError: a header from the environment is invalid.
    """
    url, login = without_login(endpoint)
    headers = {**login, **_headers(signal)}
    if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(headers[name]) for name in headers):
        # Without the header, which may be a password.
        raise OtlpError("OTEL_EXPORTER_OTLP_HEADERS contains an invalid header")
    return (_Grpc if protocol == GRPC else _Http)(url, headers, timeout_s, signal)


def protocol_of(given: str | None, environ: Mapping[str, str], signal: str = TRACES) -> str:
    """Return `http` or `grpc`: from the option, else from the environment, else `http`."""
    of_signal = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
    asked = given or of_signal or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or HTTP
    return GRPC if asked.strip().lower() == GRPC else HTTP


def signal_url(endpoint: str, protocol: str = HTTP, *, option: str = "otlp", signal: str = TRACES) -> str:
    """Return the address of traces or metrics: `endpoint`, with a collector's default path if it has no path.

    Raises:
        OptionsError: it is not an http or https address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionsError(
            f"{option} is {endpoint!r}; it must be an http or https address such as http://localhost:4318"
        )
    if protocol == GRPC:
        # gRPC has no path.
        return urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    return urlunsplit(parts._replace(path=f"/v1/{signal}")) if parts.path in ("", "/") else endpoint


def without_login(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without its login, and the header that replaces it."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    if not login:
        return url, {}
    given = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"authorization": f"Basic {given}"}


class _Http:
    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float, signal: str) -> None:
        from opentelemetry.exporter.otlp.proto.common import metrics_encoder, trace_encoder
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        is_metrics = signal == METRICS
        self._encode: Any = metrics_encoder.encode_metrics if is_metrics else trace_encoder.encode_spans
        self._answer: Any = ExportMetricsServiceResponse if is_metrics else ExportTraceServiceResponse
        self._url = url
        self._shown_url = _without_query(url)
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._timeout_s = timeout_s
        self._certificates = _certificates(signal)
        self._has_reported_refusal = False

    def send(self, content: Any) -> None:
        body = self._encode(content).SerializeToString()
        try:
            answer = post(
                self._url, body, self._headers, timeout_s=self._timeout_s, certificates=self._certificates
            )
        except NotSentError as error:
            if not error.status:
                raise OtlpError(f"{self._shown_url} does not answer: {error}") from None
            if error.status in range(400, 500) and error.status not in _TEMPORARY:
                raise OtlpRefusalError(f"{self._shown_url} {error}", is_final=True) from None
            raise OtlpError(f"{self._shown_url} {error}") from None
        self._report_partial_refusal(answer)

    def give_up(self) -> None:
        """Do nothing: a request ends by its timeout."""

    def _report_partial_refusal(self, answer: bytes) -> None:
        """Log, once, that a collector has refused part of the content; it must not be sent again."""
        from google.protobuf.message import DecodeError

        try:
            partial = self._answer.FromString(answer).partial_success
        except DecodeError:
            return
        spans = getattr(partial, "rejected_spans", 0)
        count, what = (spans, "spans") if spans else (getattr(partial, "rejected_data_points", 0), "points")
        if count and not self._has_reported_refusal:
            self._has_reported_refusal = True
            _log.warning(
                f"[telemetry] %s refused %d {what}: %s",
                self._shown_url,
                count,
                _printable(partial.error_message),
            )


class _Grpc:
    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float, signal: str) -> None:
        from opentelemetry.exporter.otlp.proto.grpc import exporter as shared
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        exporter: Any = OTLPMetricExporter if signal == METRICS else OTLPSpanExporter
        self._shown_url = _without_query(url)
        self._exporter: Any = exporter(
            endpoint=url,
            insecure=url.startswith("http:"),
            headers=tuple((name.lower(), value) for name, value in headers.items()),
            timeout=timeout_s,
        )
        self._listening = _LogCapture(shared.__name__, exporter.__module__)

    def send(self, content: Any) -> None:
        with self._listening:
            result = self._exporter.export(content)
        if result.name == "SUCCESS":
            return
        code, why = self._listening.code, self._listening.why
        verb = "does not answer" if code in _NO_ANSWER else "answers"
        message = f"{self._shown_url} {verb}: {code} {why}".rstrip(": ")
        if code in (_INVALID, _TOO_LARGE):
            raise OtlpRefusalError(message, is_final=code == _INVALID)
        raise OtlpError(message)

    def give_up(self) -> None:
        self._exporter.shutdown()


class _LogCapture(logging.Filter):
    """Captures what an exporter logs on this thread: the caller reports its failures, once."""

    def __init__(self, *loggers: str) -> None:
        super().__init__()
        self.code = ""
        """The last gRPC status that was logged."""
        self.why = ""
        self._loggers = [logging.getLogger(name) for name in loggers]
        self._thread = 0

    def __enter__(self) -> None:
        self.code = self.why = ""
        self._thread = threading.get_ident()
        for logger in self._loggers:
            # Before the filters that drop repeated messages.
            logger.filters.insert(0, self)

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers:
            logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Capture the record, and drop it."""
        if threading.get_ident() != self._thread:
            return True
        given = record.args if isinstance(record.args, tuple) else ()
        for number, value in enumerate(given):
            name = getattr(value, "name", None)
            if isinstance(name, str) and type(value).__name__ == "StatusCode":
                self.code = name
                self.why = next(
                    (_printable(text) for text in given[number + 1 :] if isinstance(text, str)), ""
                )
        return False


def _printable(text: object) -> str:
    """Return the beginning of what a collector says, without what could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in str(text)[:300])


def _without_query(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


def _from_environment(name: str, signal: str) -> str:
    """Return OpenTelemetry's variable `name`, of the signal or of all."""
    of_signal = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
    return of_signal or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _certificates(signal: str) -> ssl.SSLContext | None:
    """Return whom to trust, and the certificate to show, if the environment names files of them."""
    trusted = _from_environment("CERTIFICATE", signal)
    own, key = _from_environment("CLIENT_CERTIFICATE", signal), _from_environment("CLIENT_KEY", signal)
    if not trusted and not own:
        return None
    context = ssl.create_default_context(cafile=trusted or None)
    if own:
        context.load_cert_chain(own, key or None)
    return context


def _headers(signal: str) -> dict[str, str]:
    """Return the headers from the environment: percent-encoded `name=value` pairs between commas."""
    given = _from_environment("HEADERS", signal)
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return {unquote(name).strip().lower(): unquote(value).strip() for name, _, value in pairs}
