"""How spans and metrics get to a collector: as protobuf over HTTP or gRPC, and again where it did not take them."""

from __future__ import annotations

import base64
import importlib
import logging
import os
import re
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.formatting import cut, one_line
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.core.post import post
from toolkit.telemetry.mirrors.shared.scalars import Plain, plain_attributes

_log = logging.getLogger("toolkit.telemetry")

HTTP: Final = "http"
GRPC: Final = "grpc"
TRACES: Final = "traces"
METRICS: Final = "metrics"
_SERVICES: Final = {TRACES: "Trace", METRICS: "Metrics"}

_TEMPORARY: Final = frozenset({401, 403, 404, 405, 407, 408, 429})
"""Refusals that are not caused by the content: a login, a path or a limit."""
_TOO_LARGE: Final = "RESOURCE_EXHAUSTED"
_INVALID: Final = "INVALID_ARGUMENT"
_NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_LONGEST_REASON: Final = 300
_FIELDS: Final = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}


class OtlpError(OSError):
    """The collector did not accept the content; the message says why."""


class OtlpRefusalError(OtlpError):
    """The collector refuses this request. `is_final` if a smaller one would not help."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


class CollectorSink:
    """The base of a sink that sends items of records to a collector; what it did not take is sent first the next time.

    A subclass queues items by `_put`, and says in `_content` what a request with some of them has.
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
        self._client: _Http | _Grpc | None = None
        self._has_given_up = self._has_said_what_is_refused = False
        self.refused = 0
        """Records that the collector has refused."""
        self.leaves_out = ""
        """Why it has."""

    def give_up(self) -> None:
        """Send nothing more, and cancel a pending retry; may be called on another thread."""
        has_given_up, self._has_given_up = self._has_given_up, True
        if self._client is not None and not has_given_up:
            self._client.give_up()

    def _content(self, items: Sequence[Any]) -> Mapping[str, Any]:
        """Return the fields of the request with `items`, named as in OpenTelemetry's messages."""
        raise NotImplementedError

    def _put(self, seq: int | None, item: Any) -> None:
        self._unsent.append((seq, item))

    def _send(self) -> None:
        while self._unsent and not self._has_given_up:
            count = min(self._piece, len(self._unsent))
            try:
                self._deliver([self._unsent[number][1] for number in range(count)])
            except ImportError as error:
                install = install_extra("otlp")
                raise ModuleNotFoundError(f"{self.name} needs OpenTelemetry: {install} ({error})") from error
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

    def _deliver(self, items: Sequence[Any]) -> None:
        url, headers = _without_login(self._url)
        shown = url.partition("?")[0].partition("#")[0]
        service = _SERVICES[self._signal]
        make: Any = getattr(_module(service, "pb2"), f"Export{service}ServiceRequest")
        request = make(**self._content(items))
        if self._client is None:
            client = _Grpc if self._protocol == GRPC else _Http
            headers |= _headers(self._signal)
            certificates = _from_environment("CERTIFICATE", self._signal)
            self._client = client(url, headers, certificates, service, self._timeout_s)
        try:
            partial = self._client.deliver(request)
        except OtlpRefusalError as error:
            raise OtlpRefusalError(f"{shown} {error}", is_final=error.is_final) from None
        except OtlpError as error:
            raise OtlpError(f"{shown} {error}") from None
        spans = getattr(partial, "rejected_spans", 0)
        count, what = (spans, "spans") if spans else (getattr(partial, "rejected_data_points", 0), "points")
        if count and not self._has_said_what_is_refused:
            # Once; what a collector has refused must not be sent again.
            self._has_said_what_is_refused = True
            why = _printable(partial.error_message)
            _log.warning("[telemetry] %s refused %d %s: %s", shown, count, what, why)


def about_the_run(resource: Mapping[str, Any], **content: Any) -> dict[str, Any]:
    """Return what a request has of one session: its attributes, and `content` of our scope."""
    name, value = next(iter(content.items()))
    scope = {"scope": {"name": "ai-toolkit-telemetry"}, name: value}
    return {"resource": {"attributes": key_values(resource)}, f"scope_{name}": [scope]}


def key_values(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes, which are made plain, as OpenTelemetry's `KeyValue`s."""
    return [{"key": name, "value": _any_value(value)} for name, value in plain_attributes(attributes).items()]


def _any_value(value: Plain) -> dict[str, Any]:
    if isinstance(value, list):
        return {"array_value": {"values": [_any_value(item) for item in value]}}
    return {_FIELDS[type(value)]: value}


def protocol_of(given: str | None, environ: Mapping[str, str], signal: str = TRACES) -> str:
    """Return `http` or `grpc`: from the option, else from the environment, else `http`."""
    asked = given or _from_environment("PROTOCOL", signal, environ)
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


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without its login, and the header that replaces it."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    if not login:
        return url, {}
    given = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"authorization": f"Basic {given}"}


def _module(service: str, ending: str) -> Any:
    name = service.lower()
    return importlib.import_module(f"opentelemetry.proto.collector.{name}.v1.{name}_service_{ending}")


class _Http:
    def __init__(
        self, url: str, headers: Mapping[str, str], certificates: str, service: str, timeout_s: float
    ) -> None:
        self._answer: Any = getattr(_module(service, "pb2"), f"Export{service}ServiceResponse")
        self._url = url
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._timeout_s = timeout_s
        self._certificates = ssl.create_default_context(cafile=certificates) if certificates else None

    def deliver(self, request: Any) -> Any:
        """Return what the collector says about the part that it took."""
        from google.protobuf.message import DecodeError

        body = request.SerializeToString()
        try:
            answer = post(
                self._url, body, self._headers, timeout_s=self._timeout_s, certificates=self._certificates
            )
        except NotSentError as error:
            if not error.status:
                raise OtlpError(f"does not answer: {error}") from None
            if error.status in range(400, 500) and error.status not in _TEMPORARY:
                raise OtlpRefusalError(str(error), is_final=True) from None
            raise OtlpError(str(error)) from None
        try:
            return self._answer.FromString(answer).partial_success
        except DecodeError:
            return None

    def give_up(self) -> None:
        """Do nothing: a request ends by its timeout."""


class _Grpc:
    def __init__(
        self, url: str, headers: Mapping[str, str], certificates: str, service: str, timeout_s: float
    ) -> None:
        self._grpc: Any = importlib.import_module("grpc")
        self._stub: Any = getattr(_module(service, "pb2_grpc"), f"{service}ServiceStub")
        self._address = urlsplit(url)
        self._headers = tuple((name.lower(), value) for name, value in headers.items())
        self._certificates = certificates
        self._timeout_s = timeout_s
        self._channel: Any = None

    def deliver(self, request: Any) -> Any:
        """Return what the collector says about the part that it took."""
        if self._channel is None:
            self._channel = self._connect()
        try:
            export = self._stub(self._channel).Export
            return export(request, metadata=self._headers, timeout=self._timeout_s).partial_success
        except self._grpc.RpcError as error:
            # A new channel tries to connect at once; this one would wait longer and longer.
            self.give_up()
            code = error.code().name
            verb = "does not answer" if code in _NO_ANSWER else "answers"
            message = f"{verb}: {code} {_printable(error.details())}".rstrip()
            if code in (_INVALID, _TOO_LARGE):
                raise OtlpRefusalError(message, is_final=code == _INVALID) from None
            raise OtlpError(message) from None

    def give_up(self) -> None:
        """End a request that is under way; may be called on another thread."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _connect(self) -> Any:
        if self._address.scheme == "http":
            return self._grpc.insecure_channel(self._address.netloc)
        certificates = Path(self._certificates).read_bytes() if self._certificates else None
        trusted = self._grpc.ssl_channel_credentials(certificates)
        return self._grpc.secure_channel(self._address.netloc, trusted)


def _printable(text: object) -> str:
    """Return the beginning of what a collector says, without what could steer a terminal."""
    return cut(one_line(str(text)), _LONGEST_REASON)


def _from_environment(name: str, signal: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return OpenTelemetry's variable `name`, of the signal or of all."""
    of_signal = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
    return of_signal or environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _headers(signal: str) -> dict[str, str]:
    """Return the headers from the environment: percent-encoded `name=value` pairs between commas."""
    given = _from_environment("HEADERS", signal)
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    headers = {unquote(name).strip().lower(): unquote(value).strip() for name, _, value in pairs}
    if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(headers[name]) for name in headers):
        # Without the header, which may be a password.
        raise OtlpError("OTEL_EXPORTER_OTLP_HEADERS contains an invalid header")
    return headers
