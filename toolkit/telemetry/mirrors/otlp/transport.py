"""Wraps OpenTelemetry's exporters of spans and metrics, over HTTP and gRPC, to learn why one did not deliver."""

from __future__ import annotations

import base64
import importlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.install import install_extra

_log = logging.getLogger("toolkit.telemetry")

HTTP: Final = "http"
GRPC: Final = "grpc"
TRACES: Final = "traces"
METRICS: Final = "metrics"

_LONGEST_ANSWER: Final = 64 * 1024
_OK: Final = range(200, 300)
_TEMPORARY: Final = frozenset({401, 403, 404, 405, 407, 408, 429})
"""Refusals that are not caused by the spans: a login, a path or a limit."""
_TOO_LARGE: Final = "RESOURCE_EXHAUSTED"
_INVALID: Final = "INVALID_ARGUMENT"
_NO_ANSWER: Final = frozenset({"", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


class OtlpError(OSError):
    """The collector did not accept the spans; the message says why."""


class OtlpRefusalError(OtlpError):
    """The collector refuses this request. `is_final` if a smaller one would not help."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


class Transport(Protocol):
    """Sends OpenTelemetry's spans or metrics to a collector; one call at a time."""

    def send(self, content: Any) -> None:
        """Deliver spans, or metrics, with retries until the request times out. Raises OtlpError if that failed."""

    def give_up(self) -> None:
        """Stop retrying; may be called on another thread."""


def make_transport(endpoint: str, protocol: str, *, timeout_s: float, signal: str = TRACES) -> Transport:
    """Return the transport to `endpoint`; nothing is sent yet.

    Raises:
        ModuleNotFoundError: OpenTelemetry's exporter is not installed.
        OtlpError: a header from the environment is invalid.
    """
    url, login = without_login(endpoint)
    headers = {**login, **_headers(os.environ, signal)}
    if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(headers[name]) for name in headers):
        # Without the header, which may be a password.
        raise OtlpError("OTEL_EXPORTER_OTLP_HEADERS contains an invalid header")
    try:
        return (_Grpc if protocol == GRPC else _Http)(url, headers, timeout_s, signal)
    except ImportError as error:
        raise ModuleNotFoundError(f"otlp needs OpenTelemetry: {install_extra('otlp')} ({error})") from error


def protocol_of(given: str | None, environ: Mapping[str, str], signal: str = TRACES) -> str:
    """Return `http` or `grpc`: from the option, else from the environment, else `http`."""
    of_signal = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
    asked = given or of_signal or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or HTTP
    return GRPC if asked.strip().lower() == GRPC else HTTP


def metrics_url(endpoint: str, protocol: str = HTTP) -> str:
    """Return the address of metrics, as `traces_url` does."""
    return traces_url(endpoint, protocol, option="otlp_metrics", signal=METRICS)


def traces_url(endpoint: str, protocol: str = HTTP, *, option: str = "otlp", signal: str = TRACES) -> str:
    """Return the address of traces: `endpoint`, with a collector's default path if it has no path.

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


@dataclass(slots=True)
class _LastAnswer:
    """The response to the last request."""

    status: int | None = None
    why: str = ""
    content: bytes = b""

    def clear(self) -> None:
        self.status, self.why, self.content = None, "", b""


class _Http:
    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float, signal: str) -> None:
        import requests

        module, exporter, answer, self._success = _of_signal(signal, HTTP)

        last = self._last = _LastAnswer()

        class Session(requests.Session):
            """Keeps the last response, and follows no redirect, as to a login page."""

            def send(self, request: Any, **options: Any) -> Any:
                last.clear()
                try:
                    answer = super().send(request, **{**options, "allow_redirects": False})
                except requests.RequestException as error:
                    last.why = _reason_of(error)
                    raise
                last.status, last.why = answer.status_code, _printable(answer.reason)
                last.content = answer.content[:_LONGEST_ANSWER]
                return answer

        session = Session()
        # Else the machine's .netrc would replace the login.
        session.auth = _unchanged
        self._shown_url = _without_query(url)
        self._exporter: Any = exporter(
            endpoint=url, headers=dict(headers), timeout=timeout_s, session=session
        )
        self._failure = requests.RequestException
        self._parse = answer.FromString
        self._listening = _LogCapture(module)
        self._has_reported_refusal = False

    def send(self, content: Any) -> None:
        self._last.clear()
        result = None
        # Older exporters raise what newer ones log; the reason is known anyway.
        with self._listening, suppress(self._failure):
            result = self._exporter.export(content)
        status, why = self._last.status, self._last.why
        if status is None:
            raise OtlpError(f"{self._shown_url} does not answer: {why or 'no connection'}")
        if result is not self._success or status not in _OK:
            message = f"{self._shown_url} answers {status} {why}"
            if status in range(400, 500) and status not in _TEMPORARY:
                raise OtlpRefusalError(message, is_final=True)
            raise OtlpError(message)
        self._report_partial_refusal()

    def give_up(self) -> None:
        self._exporter.shutdown()

    def _report_partial_refusal(self) -> None:
        """Log, once, that a collector has refused part of the spans; they must not be sent again."""
        from google.protobuf.message import DecodeError

        try:
            partial = self._parse(self._last.content).partial_success
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

        module, exporter, _, self._success = _of_signal(signal, GRPC)
        self._shown_url = _without_query(url)
        self._exporter: Any = exporter(
            endpoint=url,
            insecure=url.startswith("http:"),
            headers=tuple((name.lower(), value) for name, value in headers.items()),
            timeout=timeout_s,
        )
        self._listening = _LogCapture(shared.__name__, module)

    def send(self, content: Any) -> None:
        with self._listening:
            result = self._exporter.export(content)
        if result is self._success:
            return
        code, why = self._listening.code, self._listening.why
        verb = "does not answer" if code in _NO_ANSWER else "answers"
        message = f"{self._shown_url} {verb}: {code} {why}".rstrip(": ")
        if code in (_INVALID, _TOO_LARGE):
            raise OtlpRefusalError(message, is_final=code == _INVALID)
        raise OtlpError(message)

    def give_up(self) -> None:
        self._exporter.shutdown()


def _of_signal(signal: str, protocol: str) -> tuple[str, Any, Any, Any]:
    """Return the exporter's module and class, what answers it, and the result that says that it delivered."""
    package = f"opentelemetry.exporter.otlp.proto.{protocol}"
    if signal == METRICS:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.sdk.metrics.export import MetricExportResult

        module = importlib.import_module(f"{package}.metric_exporter")
        answer: Any = metrics_service_pb2.ExportMetricsServiceResponse
        return module.__name__, module.OTLPMetricExporter, answer, MetricExportResult.SUCCESS
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    from opentelemetry.sdk.trace.export import SpanExportResult

    module = importlib.import_module(f"{package}.trace_exporter")
    answer = trace_service_pb2.ExportTraceServiceResponse
    return module.__name__, module.OTLPSpanExporter, answer, SpanExportResult.SUCCESS


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


def _unchanged(request: Any) -> Any:
    return request


def _reason_of(error: BaseException) -> str:
    """Return why a request failed, without its address, which may contain a secret."""
    import requests

    if isinstance(error, requests.Timeout):
        return "timed out"
    found: BaseException | None = error
    reason = type(error).__name__
    for _ in range(10):
        if found is None:
            break
        if isinstance(found, OSError) and found.strerror:
            return f"[Errno {found.errno}] {found.strerror}"
        reason = type(found).__name__
        inner = found.args[0] if found.args else None
        inner = getattr(inner, "reason", inner)
        found = inner if isinstance(inner, BaseException) else found.__cause__ or found.__context__
    return reason


def _without_query(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


def _headers(environ: Mapping[str, str], signal: str) -> dict[str, str]:
    """Return the headers from the environment: percent-encoded `name=value` pairs between commas."""
    given = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS") or environ.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return {unquote(name).strip().lower(): unquote(value).strip() for name, _, value in pairs}
