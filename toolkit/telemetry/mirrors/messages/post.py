"""One POST to an address that was checked, within a time limit and without redirects; and what a service is."""

from __future__ import annotations

import base64
import email.utils
import http.client
import io
import math
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from urllib.request import (  # type: ignore[attr-defined]  # the stubs leave out the second
    getproxies_environment,
    proxy_bypass_environment,
)

from toolkit.telemetry.mirrors.messages.message import Message, cut, one_line
from toolkit.telemetry.mirrors.messages.web_address import WebAddress

CONNECT_TIMEOUT_S: Final = 5.0
LONGEST_ANSWER: Final = 16 * 1024
_MOST_ADDRESSES: Final = 4


def post(
    address: WebAddress, request: HttpRequest, *, timeout_s: float, tls: ssl.SSLContext | None = None
) -> HttpResponse:
    """Send `request` to `address` and return the response, whatever its status; all within `timeout_s`.

    Only the DNS lookup may take longer. The name is resolved once, checked, and the connection goes to that IP address,
    so that a second lookup cannot redirect it. Redirects are not followed.

    Raises:
        NotDelivered: it was not sent, or there was no response.
    """
    deadline = time.monotonic() + timeout_s
    was_sent = False
    try:
        proxy = proxy_to(address)
        with _connected(address, proxy, deadline) as plain:
            if proxy is not None:
                _connect_through(plain, proxy, address, deadline)
            with _encrypted(plain, address, tls, deadline) as stream:
                connection = http.client.HTTPConnection(address.host, address.port)
                timed = connection.sock = _DeadlineSocket(stream, deadline)
                headers = {
                    "Host": address.authority,
                    "User-Agent": "ai-toolkit-telemetry",
                    "Connection": "close",
                }
                connection.request("POST", address.target, request.body, {**headers, **request.headers})
                was_sent = True
                response = connection.getresponse()
                if timed.is_at_end:
                    raise NotDelivered("the response is incomplete", retry=True, was_sent=True)
                return HttpResponse(
                    status=response.status,
                    body=response.read(LONGEST_ANSWER),
                    retry_after_s=_seconds_to_wait(response.getheader("Retry-After")),
                )
    except ssl.SSLCertVerificationError as error:
        raise NotDelivered(f"its certificate is not trusted: {error.verify_message}", retry=False) from error
    except TimeoutError as error:
        raise NotDelivered(f"no response within {timeout_s:.3g} s", retry=True, was_sent=was_sent) from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise NotDelivered(cut(one_line(why), 200), retry=True, was_sent=was_sent) from error
    except http.client.HTTPException as error:
        raise NotDelivered(
            f"the response is not HTTP ({type(error).__name__})", retry=True, was_sent=was_sent
        ) from error
    except ValueError as error:
        # Python's own message would show the header, which may be a password.
        raise NotDelivered("the secret contains characters that a header cannot have", retry=False) from error


def _connected(address: WebAddress, proxy: Proxy | None, deadline: float) -> socket.socket:
    host, port = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        what = "its name" if proxy is None else "the proxy's name"
        raise NotDelivered(f"{what} cannot be resolved: {error.strerror}", retry=True) from error
    except UnicodeError as error:
        # A label is empty or longer than 63 characters; Python checks this before it asks DNS.
        what = "its name" if proxy is None else "the proxy's name"
        raise NotDelivered(f"{what} is not a valid host name", retry=False) from error
    if proxy is None:
        allowed = [one for one in found if address.may_be(str(one[4][0]))]
        if found and not allowed:
            ip = str(found[0][4][0])
            hint = "; allow_private: true allows a private one" if address.would_be_allowed(ip) else ""
            raise NotDelivered(f"its name resolves to {ip}, which is not {address.kind}{hint}", retry=False)
        found = allowed
    failure: OSError = OSError("its name resolves to no address")
    for family, kind, protocol, _, where in found[:_MOST_ADDRESSES]:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(CONNECT_TIMEOUT_S, _left(deadline)))
            connection.connect(where)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _connect_through(plain: socket.socket, proxy: Proxy, address: WebAddress, deadline: float) -> None:
    where = f"{f'[{address.host}]' if ':' in address.host else address.host}:{address.port}"
    login = f"Proxy-Authorization: {proxy.login}\r\n" if proxy.login else ""
    timed = _DeadlineSocket(plain, deadline)
    timed.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{login}\r\n".encode("latin-1"))
    response = http.client.HTTPResponse(timed, method="CONNECT")  # type: ignore[arg-type]  # as above
    response.begin()
    if response.status != 200:
        raise NotDelivered(f"the proxy answered {response.status}", retry=response.status >= 500)


def _encrypted(
    plain: socket.socket, address: WebAddress, tls: ssl.SSLContext | None, deadline: float
) -> socket.socket:
    if not address.is_encrypted:
        return plain
    plain.settimeout(_left(deadline))
    return (tls or ssl.create_default_context()).wrap_socket(plain, server_hostname=address.host)


class _DeadlineSocket:
    """What an HTTP connection uses of a socket, with one deadline for all of it: a timeout restarts with each call."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.is_at_end = False
        """Whether the end of the stream was read."""
        self._connection = connection
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Send `data`."""
        self._connection.settimeout(_left(self._deadline))
        self._connection.sendall(data)

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return the received bytes as a file."""
        return io.BufferedReader(_DeadlineReader(self))

    def receive(self, buffer: Any) -> int:
        """Read what is there, however little: a byte now and then does not extend the deadline."""
        self._connection.settimeout(_left(self._deadline))
        count = self._connection.recv_into(buffer)
        self.is_at_end = self.is_at_end or count == 0
        return count

    def close(self) -> None:
        """Do nothing: the caller closes the socket."""


class _DeadlineReader(io.RawIOBase):
    """The received bytes as a file."""

    def __init__(self, timed: _DeadlineSocket) -> None:
        self._timed = timed

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there."""
        return self._timed.receive(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0.0:
        raise TimeoutError
    return left


def _seconds_to_wait(header: str | None) -> float | None:
    """Return what a `Retry-After` header asks for: seconds, or a date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy that forwards connections by CONNECT, and cannot read them."""

    host: str
    port: int
    login: str | None
    """The `Proxy-Authorization` header."""

    def __repr__(self) -> str:
        return f"<{self.host}:{self.port}>"


def proxy_to(address: WebAddress) -> Proxy | None:
    """Return the proxy that `https_proxy` or `all_proxy` names for `address`; None if `no_proxy` excludes it.

    Unencrypted requests go directly to their machine: this one, or one in a private network.

    Raises:
        NotDelivered: the variable does not hold an http proxy.
    """
    if address.is_loopback or not address.is_encrypted:
        return None
    proxies = getproxies_environment()
    named = proxies.get("https") or proxies.get("all")
    if not named or proxy_bypass_environment(address.host, proxies):
        return None
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme != "http" or not host:
        raise NotDelivered("https_proxy must be an http proxy such as http://proxy:3128", retry=False)
    login = None
    if parts.username:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Basic {base64.b64encode(words.encode()).decode()}"
    return Proxy(host=host, port=port or 80, login=login)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """The body of a POST and its headers."""

    body: bytes
    headers: Mapping[str, str]
    secrets: frozenset[str] = field(default=frozenset())
    """Texts in it that must not be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The response, as far as it was read."""

    status: int
    body: bytes = b""
    retry_after_s: float | None = None
    """How long the service asks us to wait."""


class NotDelivered(Exception):  # noqa: N818 - it says what happened
    """A message was not delivered; the text says why, without secrets."""

    def __init__(
        self, reason: str, *, retry: bool, was_sent: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.retry = retry
        """Whether a retry may help."""
        self.was_sent = was_sent
        """Whether all of it was sent, so that it may have arrived."""
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How requests to one service are built and its responses are read."""

    request: Callable[[Message, str | None, float], HttpRequest]
    """Called for each attempt with a message, the secret and the wall time, which some services sign."""
    check: Callable[[HttpResponse], None]
    """Called with a response of status 200 to 299; raises `NotDelivered` if it is a refusal all the same."""
