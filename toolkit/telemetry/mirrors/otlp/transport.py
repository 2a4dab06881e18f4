"""How spans and metrics get to a collector: as protobuf over HTTP, and again where it did not take them."""

from __future__ import annotations

import base64
import importlib
import logging
import os
import re
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.formatting import cut, one_line
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.core.post import post
from toolkit.telemetry.mirrors.shared.scalars import Plain, plain_attributes

_log = logging.getLogger("toolkit.telemetry")

TRACES: Final = "traces"
METRICS: Final = "metrics"
_SERVICES: Final = {TRACES: "Trace", METRICS: "Metrics"}

_TEMPORARY: Final = frozenset({401, 403, 404, 405, 407, 408, 429})
"""Refusals that are not caused by the content: a login, a path or a limit."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_LONGEST_REASON: Final = 300
_FIELDS: Final = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}


class OtlpError(OSError):
    """The collector did not accept the content; the message says why."""


class OtlpRefusalError(OtlpError):
    """The collector refuses this request because of its content."""


class CollectorSink:
    """The base of a sink that sends items of records to a collector; what it did not take is sent first the next time.

    A subclass queues items by `_put`, and says in `_content` what a request with some of them has.
    """

    name: str
    what: str
    """What is left out where the collector refuses it."""

    def __init__(self, endpoint: str, signal: str, *, timeout_s: float, most_items: int) -> None:
        """Raise OptionsError if `endpoint` is no http or https address; nothing is sent yet."""
        self._signal = signal
        self._url = signal_url(endpoint, option=self.name, signal=signal)
        self._timeout_s = timeout_s
        self._most_items = self._piece = most_items
        self._unsent: deque[tuple[int | None, Any]] = deque()
        """Items that wait to be sent, each with the number of its record; None if it does not count."""
        self._delivered = -1
        self._has_given_up = self._has_said_what_is_refused = False
        self._trusted: ssl.SSLContext | None = None
        self.refused = 0
        """Records that the collector has refused."""
        self.leaves_out = ""
        """Why it has."""

    def give_up(self) -> None:
        """Send nothing more; may be called on another thread. A request under way ends by its timeout."""
        self._has_given_up = True

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
        messages = importlib.import_module(
            f"opentelemetry.proto.collector.{service.lower()}.v1.{service.lower()}_service_pb2"
        )
        request: Any = getattr(messages, f"Export{service}ServiceRequest")(**self._content(items))
        headers |= _headers(self._signal) | {"content-type": "application/x-protobuf"}
        try:
            answer = post(
                url,
                request.SerializeToString(),
                headers,
                timeout_s=self._timeout_s,
                certificates=self._certificates(),
            )
        except NotSentError as error:
            if not error.status:
                raise OtlpError(f"{shown} does not answer: {error}") from None
            is_refusal = error.status in range(400, 500) and error.status not in _TEMPORARY
            raise (OtlpRefusalError if is_refusal else OtlpError)(f"{shown} {error}") from None
        self._say_what_is_refused(getattr(messages, f"Export{service}ServiceResponse"), answer, shown)

    def _certificates(self) -> ssl.SSLContext | None:
        if self._trusted is None and (file := _from_environment("CERTIFICATE", self._signal)):
            self._trusted = ssl.create_default_context(cafile=file)
        return self._trusted

    def _say_what_is_refused(self, kind: Any, answer: bytes, shown: str) -> None:
        from google.protobuf.message import DecodeError

        try:
            partial = kind.FromString(answer).partial_success
        except DecodeError:
            return
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


def signal_url(endpoint: str, *, option: str = "otlp", signal: str = TRACES) -> str:
    """Return the address of traces or metrics: `endpoint`, with a collector's default path if it has no path.

    Raises:
        OptionsError: it is not an http or https address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionsError(
            f"{option} is {endpoint!r}; it must be an http or https address such as http://localhost:4318"
        )
    return urlunsplit(parts._replace(path=f"/v1/{signal}")) if parts.path in ("", "/") else endpoint


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without its login, and the header that replaces it."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    if not login:
        return url, {}
    given = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"authorization": f"Basic {given}"}


def _printable(text: object) -> str:
    """Return the beginning of what a collector says, without what could steer a terminal."""
    return cut(one_line(str(text)), _LONGEST_REASON)


def _from_environment(name: str, signal: str) -> str:
    """Return OpenTelemetry's variable `name`, of the signal or of all."""
    of_signal = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
    return of_signal or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _headers(signal: str) -> dict[str, str]:
    """Return the headers from the environment: percent-encoded `name=value` pairs between commas."""
    given = _from_environment("HEADERS", signal)
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    headers = {unquote(name).strip().lower(): unquote(value).strip() for name, _, value in pairs}
    if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(headers[name]) for name in headers):
        # Without the header, which may be a password.
        raise OtlpError("OTEL_EXPORTER_OTLP_HEADERS contains an invalid header")
    return headers
