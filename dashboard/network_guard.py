"""Who may talk to the dashboard over HTTP and WebSocket, and what a browser may do with its pages."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_AsgiApp: TypeAlias = Callable[[_Message, _Receive, _Send], Awaitable[None]]

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))

_DEFAULT_PORTS = {"http": 80, "https": 443}

_FIXED_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """The names under which one server answers.

    A page of another site can make a browser reach this server by pointing its own name at our address.
    The browser then says that name in `Host`, which is how the two are told apart.
    """

    port: int
    names: Collection[str] = LOOPBACK_NAMES
    """Host names in lower case; an IPv6 address stands in brackets."""

    any_address: bool = False
    """Whether a bare IP address is also an accepted name, for a server that listens on all of them.

    Any address will do: to lead a browser astray a site needs a name, and inside a container
    the address people type is one this machine does not have.
    """

    def admits(self, host: str) -> bool:
        """Say whether `host`, the value of a Host header, is one of ours."""
        name, port = _split_authority(host, default_port=_DEFAULT_PORTS["http"])
        if port != self.port:
            return False
        return name in self.names or (self.any_address and _is_address(name))


class NetworkGuard:
    """ASGI middleware that refuses strangers before the application sees them.

    Every request must name us in `Host`. An `Origin`, where there is one, must be the very place that `Host` names;
    a WebSocket must have one. Browsers always send it there, so nobody with a browser is kept out,
    and whatever else talks to us can just as well say where it comes from.
    """

    def __init__(self, app: _AsgiApp, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass the request on with our headers on its answer, or answer 403 and say why."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        hosts = _header_values(scope, b"host")
        host = hosts[0] if len(hosts) == 1 and self._doors.admits(hosts[0]) else None
        headers = _headers_for(host)
        refusal = self._refusal(scope, hosts)

        async def send_with_headers(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _merged(message.get("headers", ()), headers)}
            await send(message)

        if refusal is not None:
            await _refuse(scope, receive, send_with_headers, refusal)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: _Message, hosts: list[str]) -> str | None:
        if len(hosts) != 1:
            return f"This dashboard needs exactly one Host header, and this request has {len(hosts)}."
        [host] = hosts
        if not self._doors.admits(host):
            return (
                f"This dashboard does not answer to the host {_shown(host)}.\n"
                f"Open it as http://localhost:{self._doors.port}; through ssh -L, use the port "
                f"{self._doors.port} on both sides.\n"
                "To reach it under another name, start it with --host NAME."
            )
        origins = _header_values(scope, b"origin")
        if not origins and scope["type"] == "http":
            return None
        if len(origins) != 1:
            return (
                f"This dashboard needs exactly one Origin header here, and this request has {len(origins)}."
            )
        [origin] = origins
        if not _is_same_place(origin, host):
            return f"This dashboard does not take requests from pages of {_shown(origin)}."
        return None


def _headers_for(host: str | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of every answer; `host` is a Host header that was admitted, or None."""
    # Not every browser counts ws: as 'self', so the address is spelled out; only one that was admitted gets in here.
    sockets = "" if host is None else f" ws://{host.lower()} wss://{host.lower()}"
    policy = (
        "default-src 'self'",
        # Streamlit starts from an inline script and loads the code of a component as a blob;
        # Vega, behind its small charts, compiles expressions.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        # A run's text may hold a Markdown image; nothing here may fetch it from elsewhere.
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        f"connect-src 'self'{sockets}",
        "worker-src 'self' blob:",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "object-src 'none'",
    )
    return ((b"content-security-policy", "; ".join(policy).encode("ascii")), *_FIXED_HEADERS)


def _merged(
    theirs: Collection[tuple[bytes, bytes]], ours: Collection[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    names = {name for name, _ in ours}
    return [(name, value) for name, value in theirs if name.lower() not in names] + list(ours)


async def _refuse(scope: _Message, receive: _Receive, send: _Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        # The server turns this into a bare 403; no browser shows a page the words of a refused socket.
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    body = reason.encode("utf-8") + b"\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _header_values(scope: _Message, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _is_same_place(origin: str, host: str) -> bool:
    scheme, separator, authority = origin.partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        return False
    default_port = _DEFAULT_PORTS[scheme]
    return _split_authority(authority, default_port=default_port) == _split_authority(
        host, default_port=default_port
    )


def _split_authority(authority: str, *, default_port: int) -> tuple[str, int | None]:
    """Return the name in lower case and the port; the port is None where it is not a plain number."""
    name, separator, port = authority.rpartition(":")
    if not separator or port.endswith("]"):
        return authority.lower(), default_port
    # int() would also take '+8501', ' 8501' and digits of other scripts.
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        return name.lower(), None
    return name.lower(), int(port)


def _is_address(name: str) -> bool:
    if "%" in name:
        # A zone ('fe80::1%eth0') is text of the sender's choice.
        return False
    try:
        if name.startswith("[") and name.endswith("]"):
            ipaddress.IPv6Address(name[1:-1])
        else:
            ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    """Return what a stranger sent as one short line of plain ASCII."""
    return ascii(text[:100])
