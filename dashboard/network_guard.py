"""Who may talk to the dashboard over HTTP and WebSocket, and what a browser may do with its pages."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

from dashboard.asgi import AsgiApp, Message, Receive, Send, answer, refuse_socket

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))

_DEFAULT_PORTS = {"http": 80, "https": 443}

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")

_METHODS = frozenset(("GET", "HEAD"))
"""Pages talk over the WebSocket; whatever else could be sent, such as a file, nobody here has a use for."""

_FIXED_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicUrl:
    """The address of a proxy that people use instead of ours."""

    scheme: str
    name: str
    """In lower case; an IPv6 address stands in brackets."""

    port: int

    @classmethod
    def parse(cls, text: str) -> PublicUrl | None:
        """Return the address that `text` spells; None where it has a path, a login, or is none at all."""
        scheme, _, authority = text.partition("://")
        scheme = scheme.lower()
        authority = authority.removesuffix("/")
        if scheme not in _DEFAULT_PORTS or not authority or not _AUTHORITY.fullmatch(authority):
            return None
        name, port = _split_authority(authority, default_port=_DEFAULT_PORTS[scheme])
        if not name or port is None or not 0 < port <= 65535:
            return None
        return cls(scheme=scheme, name=name, port=port)

    def __str__(self) -> str:
        """Return it as a browser says it: without the port that goes without saying."""
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.name}{port}"


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

    public: PublicUrl | None = None
    """Where people open it by way of a proxy in front of it."""

    def admits(self, host: str) -> bool:
        """Say whether `host`, the value of a Host header, is one of ours."""
        if self._is_public(host):
            return True
        name, port = _split_authority(host, default_port=_DEFAULT_PORTS["http"])
        if port != self.port:
            return False
        return name in self.names or (self.any_address and _is_address(name))

    def takes(self, origin: str, host: str) -> bool:
        """Say whether `origin`, the value of an Origin header, is the place that an admitted `host` names."""
        if self.public is not None and self._is_public(host):
            return _is_same_place(origin, host) and origin.partition("://")[0] == self.public.scheme
        return _is_same_place(origin, host)

    def is_encrypted(self, host: str) -> bool:
        """Say whether who calls us `host` came by https."""
        return self.public is not None and self.public.scheme == "https" and self._is_public(host)

    def _is_public(self, host: str) -> bool:
        if self.public is None:
            return False
        place = _split_authority(host, default_port=_DEFAULT_PORTS[self.public.scheme])
        return place == (self.public.name, self.public.port)


class NetworkGuard:
    """ASGI middleware that refuses strangers before the application sees them.

    Every request must name us in `Host`. An `Origin`, where there is one, must be the very place that `Host` names;
    a WebSocket must have one. Browsers always send it there, so nobody with a browser is kept out,
    and whatever else talks to us can just as well say where it comes from. Nothing can be uploaded.
    """

    def __init__(self, app: AsgiApp, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on with our headers on its answer, or answer 403 and say why."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        hosts = _header_values(scope, b"host")
        host = hosts[0] if len(hosts) == 1 and self._doors.admits(hosts[0]) else None
        headers = _headers_for(host)
        is_encrypted = host is not None and self._doors.is_encrypted(host)
        refusal = self._refusal(scope, hosts)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                theirs = message.get("headers", ())
                if is_encrypted:
                    theirs = [_for_https_only(name, value) for name, value in theirs]
                message = {**message, "headers": _merged(theirs, headers)}
            await send(message)

        if refusal is not None:
            await _refuse(scope, receive, send_with_headers, refusal)
        elif scope["type"] == "http" and (scope["method"] not in _METHODS or _has_body(scope)):
            await _refuse(scope, receive, send_with_headers, "This dashboard takes no uploads.", status=405)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: Message, hosts: list[str]) -> str | None:
        if len(hosts) != 1:
            return f"This dashboard needs exactly one Host header, and this request has {len(hosts)}."
        [host] = hosts
        if not self._doors.admits(host):
            return (
                f"This dashboard does not answer to the host {_shown(host)}.\n"
                f"Open it as http://localhost:{self._doors.port}; through ssh -L, use the port "
                f"{self._doors.port} on both sides.\n"
                "To reach it under another name, start it with --host NAME, or with --public-url URL behind a proxy."
            )
        if _is_fetched_by_another_site(scope):
            return "This dashboard gives nothing to pages of other sites."
        origins = _header_values(scope, b"origin")
        if not origins and scope["type"] == "http":
            return None
        if len(origins) != 1:
            return (
                f"This dashboard needs exactly one Origin header here, and this request has {len(origins)}."
            )
        [origin] = origins
        if not self._doors.takes(origin, host):
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


async def _refuse(scope: Message, receive: Receive, send: Send, reason: str, *, status: int = 403) -> None:
    if scope["type"] == "websocket":
        await refuse_socket(receive, send)
    else:
        await answer(send, status, f"{reason}\n", content_type="text/plain")


def _has_body(scope: Message) -> bool:
    lengths = _header_values(scope, b"content-length")
    return bool(_header_values(scope, b"transfer-encoding")) or any(length != "0" for length in lengths)


def _is_fetched_by_another_site(scope: Message) -> bool:
    """Say whether a browser tells us that a page from elsewhere, or of another port here, loads this into itself.

    Following a link is something else. Whoever does not say it, such as an old browser, is judged by the rest.
    """
    said = {name: value for name, value in scope["headers"] if name.startswith(b"sec-fetch-")}
    if said.get(b"sec-fetch-site") not in (b"cross-site", b"same-site"):
        return False
    return said.get(b"sec-fetch-mode") != b"navigate" or said.get(b"sec-fetch-dest") != b"document"


def _for_https_only(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the header with `Secure` in it where it sets a cookie: no browser then sends that in the clear."""
    if name.lower() != b"set-cookie" or b"; secure" in value.lower():
        return name, value
    return name, value + b"; Secure"


def _header_values(scope: Message, wanted: bytes) -> list[str]:
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
