"""Deliver one message to one receiver: POST requests to the checked address, with retries."""

from __future__ import annotations

import base64
import http.client
import io
import math
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from toolkit.telemetry.core.outbox import backoff_s
from toolkit.telemetry.mirrors.messages.message import Message, cut, one_line
from toolkit.telemetry.mirrors.messages.receiver import Receiver
from toolkit.telemetry.mirrors.messages.services import MOST_ATTEMPTS, SERVICES, HttpRequest, NotDelivered
from toolkit.telemetry.mirrors.messages.web_address import WebAddress

REQUEST_TIMEOUT_S: Final = 10.0
LONGEST_ANSWER: Final = 16 * 1024
_CONNECT_TIMEOUT_S: Final = 5.0
_MOST_ADDRESSES: Final = 4
_LONGEST_WAIT_S: Final = 120.0
"""Even if a service asks for a longer wait."""

DELIVERED: Final = "delivered"
FAILED: Final = "failed"


@dataclass(slots=True)
class Delivery:
    """A message on its way to a receiver."""

    receiver: Receiver
    message: Message
    attempts: int = 0
    began: float = field(default_factory=time.monotonic)

    def to_fields(self, failure: str | None) -> dict[str, Any]:
        """Return the fields of its `message` record; `failure` says why it was not delivered."""
        message = self.message
        return {
            **({} if message.run_state.step is None else {"global_step": message.run_state.step}),
            "receiver": self.receiver.options.name,
            "service": self.receiver.options.to,
            "occasion": message.occasion,
            "status": DELIVERED if failure is None else FAILED,
            "attempts": self.attempts,
            "seconds": round(time.monotonic() - self.began, 3),
            **({} if failure is None else {"reason": f"{self.receiver.address.shown}: {failure}"}),
            **({} if message.message_count == 1 else {"tells_of": message.message_count}),
            "about": list(message.about),
        }


def deliver(
    delivery: Delivery,
    *,
    pause: Callable[[float], bool],
    time_left: Callable[[], float] = lambda: REQUEST_TIMEOUT_S,
    most_attempts: int = MOST_ATTEMPTS,
) -> str | None:
    """Send a message, with a limited number of retries; return why it was not delivered, None if it was.

    `pause(seconds)` waits and says whether to continue.
    """
    receiver = delivery.receiver
    service = SERVICES[receiver.options.to]
    while True:
        delivery.attempts += 1
        try:
            request = service.request(delivery.message, receiver.secret)
            timeout_s = min(REQUEST_TIMEOUT_S, max(0.05, time_left()))
            service.check(post(receiver.address, request, timeout_s=timeout_s))
        except NotDelivered as error:
            is_last = delivery.attempts >= min(error.most_attempts, most_attempts)
            usual_s = backoff_s(
                delivery.attempts, first_s=1.0, longest_s=_LONGEST_WAIT_S, growth=3.0, spread=0.5
            )
            if is_last or not pause(min(_LONGEST_WAIT_S, max(usual_s, error.retry_after_s))):
                return receiver.conceal(str(error))
        else:
            return None


def post(address: WebAddress, request: HttpRequest, *, timeout_s: float) -> bytes:
    """Send `request` to `address` and return the response if its status is 200 to 299; all within `timeout_s`.

    Only the DNS lookup and a proxy's own answer may take longer. Redirects are not followed.

    Raises:
        NotDelivered: it was not sent, refused, or there was no response.
    """
    deadline = time.monotonic() + timeout_s
    headers = {"Host": address.authority, "User-Agent": "ai-toolkit-telemetry", "Connection": "close"}
    was_sent = False
    try:
        with _connected(address, deadline) as stream:
            connection = http.client.HTTPConnection(address.host, address.port)
            connection.sock = _TimedSocket(stream, deadline)
            connection.request("POST", address.target, request.body, {**headers, **request.headers})
            was_sent = True
            response = connection.getresponse()
            body = response.read(LONGEST_ANSWER)
    except ssl.SSLCertVerificationError as error:
        raise NotDelivered(f"its certificate is not trusted: {error.verify_message}") from error
    except TimeoutError:
        why = f"no response within {timeout_s:.3g} s"
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    except ValueError as error:
        # Python's own message would show the header or the proxy, which may have a password.
        raise NotDelivered(
            "the host name, the secret or https_proxy contains characters that it cannot have"
        ) from error
    else:
        if not 200 <= response.status < 300:
            raise refusal(response.status, body, response.getheader("Retry-After"))
        return body
    # A message that was sent but got no response may have arrived: it is sent once more at most.
    raise NotDelivered(cut(one_line(why), 200), most_attempts=2 if was_sent else MOST_ATTEMPTS)


def refusal(status: int, body: bytes, retry_after: str | None) -> NotDelivered:
    """Return the error for a response of another status than 200 to 299."""
    if 300 <= status < 400:
        return NotDelivered(f"answered {status}, a redirect; redirects are not followed")
    try:
        seconds = float(retry_after or "nan")
    except ValueError:
        seconds = math.nan
    text = cut(one_line(body.decode("utf-8", "replace")), 200)
    return NotDelivered(
        f"answered {status}{f': {text}' if text else ''}",
        most_attempts=MOST_ATTEMPTS if status in (408, 425, 429) or status >= 500 else 1,
        retry_after_s=seconds if math.isfinite(seconds) else 0.0,
    )


def _connected(address: WebAddress, deadline: float) -> socket.socket:
    """Return a connection to `address`, encrypted if it is https, through a proxy if the environment names one."""
    # Before it connects: the certificates may be unreadable.
    tls = ssl.create_default_context() if address.is_encrypted else None
    plain = _through_proxy(address, deadline) or _directly(address, deadline)
    if tls is None:
        return plain
    plain.settimeout(_left(deadline))
    return tls.wrap_socket(plain, server_hostname=address.host)


def _directly(address: WebAddress, deadline: float) -> socket.socket:
    """Connect to an IP address that was checked, so that a second lookup cannot lead elsewhere."""
    found = [
        str(one[4][0]) for one in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    ]
    allowed = [ip for ip in found if address.may_be(ip)]
    if not allowed:
        raise NotDelivered(
            f"its name resolves to {found[0]}, which is not allowed (allow_private: true allows a private network)"
        )
    failure: OSError | None = None
    for ip in allowed[:_MOST_ADDRESSES]:
        try:
            return socket.create_connection((ip, address.port), min(_CONNECT_TIMEOUT_S, _left(deadline)))
        except OSError as error:
            failure = error
    assert failure is not None, "else there is a connection"
    raise failure


def _through_proxy(address: WebAddress, deadline: float) -> socket.socket | None:
    """Return a connection through the proxy of `https_proxy` or `all_proxy`; None without one, or by `no_proxy`.

    Unencrypted requests go directly to their machine: this one, or one in a private network.
    """
    if address.is_loopback or not address.is_encrypted:
        return None
    proxies = urllib.request.getproxies()
    named = proxies.get("https") or proxies.get("all")
    if not named or urllib.request.proxy_bypass(address.host):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise NotDelivered("https_proxy must be an http proxy such as http://proxy:3128")
    login = {}
    if proxy.username:
        words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        login["Proxy-Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
    connection = http.client.HTTPConnection(
        proxy.hostname, proxy.port or http.client.HTTP_PORT, timeout=min(_CONNECT_TIMEOUT_S, _left(deadline))
    )
    connection.set_tunnel(address.host, address.port, login)
    connection.connect()
    return connection.sock


class _TimedSocket(io.RawIOBase):
    """What an HTTP connection uses of a socket, with one deadline for all of it.

    A socket's own timeout begins again with each byte.
    """

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Send `data`."""
        self._stream.settimeout(_left(self._deadline))
        self._stream.sendall(data)

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return the received bytes as a file."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there."""
        self._stream.settimeout(_left(self._deadline))
        return self._stream.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: the connection is closed before its response is read, and the caller closes the socket."""


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0.0:
        raise TimeoutError
    return left
