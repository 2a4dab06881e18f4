"""One POST, to the machine that was looked at and to no other, within a time that is known before."""

from __future__ import annotations

import base64
import email.utils
import http.client
import io
import math
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from urllib.request import (  # type: ignore[attr-defined]  # the stubs leave out the second
    getproxies_environment,
    proxy_bypass_environment,
)

from toolkit.mirrors.messages.formatting import cut, one_line
from toolkit.mirrors.messages.transport_types import Answer, NotDelivered, Request
from toolkit.mirrors.messages.web_address import WebAddress

CONNECT_TIMEOUT_S: Final = 5.0
LONGEST_ANSWER: Final = 16 * 1024
_MOST_ADDRESSES: Final = 4


def post(
    address: WebAddress, request: Request, *, timeout_s: float, tls: ssl.SSLContext | None = None
) -> Answer:
    """Send `request` to `address` and return the answer, whatever its status; all within `timeout_s`.

    Only the system's own look-up of the name may take longer. The name is looked up once, and the connection goes to
    what was found, so that no other answer can lead elsewhere. A redirect is an answer like any other.

    Raises:
        NotDelivered: it was not sent, or not answered.
    """
    deadline = time.monotonic() + timeout_s
    was_sent = False
    try:
        proxy = proxy_to(address)
        with _connected(address, proxy, deadline) as plain:
            if proxy is not None:
                _ask_for_passage(plain, proxy, address, deadline)
            with _spoken_to(plain, address, tls, deadline) as spoken:
                connection = http.client.HTTPConnection(address.host, address.port)
                timed = connection.sock = _Timed(spoken, deadline)
                headers = {
                    "Host": address.authority,
                    "User-Agent": "ai-toolkit-telemetry",
                    "Connection": "close",
                }
                connection.request("POST", address.target, request.body, {**headers, **request.headers})
                was_sent = True
                response = connection.getresponse()
                if timed.has_ended:
                    raise NotDelivered("its answer breaks off", again=True, was_sent=True)
                return Answer(
                    status=response.status,
                    body=response.read(LONGEST_ANSWER),
                    retry_after_s=_seconds_to_wait(response.getheader("Retry-After")),
                )
    except ssl.SSLCertVerificationError as error:
        raise NotDelivered(f"its certificate is not trusted: {error.verify_message}", again=False) from error
    except TimeoutError as error:
        raise NotDelivered(f"no answer within {timeout_s:.3g} s", again=True, was_sent=was_sent) from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise NotDelivered(cut(one_line(why), 200), again=True, was_sent=was_sent) from error
    except http.client.HTTPException as error:
        raise NotDelivered(
            f"answers something that is no HTTP ({type(error).__name__})", again=True, was_sent=was_sent
        ) from error
    except ValueError as error:
        # Python's own message would show the header, and that may be a password.
        raise NotDelivered("the secret has letters that no header may have", again=False) from error


def _connected(address: WebAddress, proxy: Proxy | None, deadline: float) -> socket.socket:
    host, port = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        what = "its name" if proxy is None else "the proxy's name"
        raise NotDelivered(f"{what} is not found: {error.strerror}", again=True) from error
    except UnicodeError as error:
        # A part of it is longer than 63 letters, or empty: Python says so before anybody is asked.
        what = "its name" if proxy is None else "the proxy's name"
        raise NotDelivered(f"{what} is none that a machine can have", again=False) from error
    if proxy is None:
        allowed = [one for one in found if address.may_be(str(one[4][0]))]
        if found and not allowed:
            leads_to = str(found[0][4][0])
            hint = "; allow_private: true allows a private one" if address.would_be_allowed(leads_to) else ""
            raise NotDelivered(
                f"its name leads to {leads_to}, which is not {address.kind}{hint}", again=False
            )
        found = allowed
    trouble: OSError = OSError("its name leads nowhere")
    for family, of_stream, protocol, _, where in found[:_MOST_ADDRESSES]:
        connection = socket.socket(family, of_stream, protocol)
        try:
            connection.settimeout(min(CONNECT_TIMEOUT_S, _left(deadline)))
            connection.connect(where)
        except OSError as error:
            connection.close()
            trouble = error
        else:
            return connection
    raise trouble


def _ask_for_passage(plain: socket.socket, proxy: Proxy, address: WebAddress, deadline: float) -> None:
    where = f"{f'[{address.host}]' if ':' in address.host else address.host}:{address.port}"
    login = f"Proxy-Authorization: {proxy.login}\r\n" if proxy.login else ""
    timed = _Timed(plain, deadline)
    timed.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{login}\r\n".encode("latin-1"))
    response = http.client.HTTPResponse(timed, method="CONNECT")  # type: ignore[arg-type]  # as above
    response.begin()
    if response.status != 200:
        raise NotDelivered(f"the proxy answers {response.status}", again=response.status >= 500)


def _spoken_to(
    plain: socket.socket, address: WebAddress, tls: ssl.SSLContext | None, deadline: float
) -> socket.socket:
    if not address.is_encrypted:
        return plain
    plain.settimeout(_left(deadline))
    return (tls or ssl.create_default_context()).wrap_socket(plain, server_hostname=address.host)


class _Timed:
    """As much of a socket as an HTTP connection uses; all that is done with it ends by one deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.has_ended = False
        """Whether more was wanted of the other side than it had to say."""
        self._connection = connection
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Send `data`."""
        self._connection.settimeout(_left(self._deadline))
        self._connection.sendall(data)

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return what comes back, as a file."""
        return io.BufferedReader(_TimedReader(self))

    def receive(self, buffer: Any) -> int:
        """Take what is there, however little: a byte now and then does not move the deadline."""
        self._connection.settimeout(_left(self._deadline))
        count = self._connection.recv_into(buffer)
        self.has_ended = self.has_ended or count == 0
        return count

    def close(self) -> None:
        """Leave it to whoever opened it."""


class _TimedReader(io.RawIOBase):
    """What comes back, as a file that can be read."""

    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        """Say yes."""
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
    """A proxy that lets a connection through by CONNECT, and sees nothing of what is said in it."""

    host: str
    port: int
    login: str | None
    """What its `Proxy-Authorization` header says."""

    def __repr__(self) -> str:
        return f"<{self.host}:{self.port}>"


def proxy_to(address: WebAddress) -> Proxy | None:
    """Return the proxy that `https_proxy`, or `all_proxy`, names for `address`; None where `no_proxy` excepts it.

    What is not encrypted goes straight to the machine that was looked at: this one, or one in the own network.

    Raises:
        NotDelivered: the variable names something else than a proxy of the usual kind.
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
        raise NotDelivered("https_proxy names no proxy such as http://proxy:3128", again=False)
    login = None
    if parts.username:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Basic {base64.b64encode(words.encode()).decode()}"
    return Proxy(host=host, port=port or 80, login=login)
