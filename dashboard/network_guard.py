"""Which hosts and origins may talk to the dashboard, and the security headers of its responses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

from .asgi import AsgiApp, Message, Receive, Send, refuse

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))

_DEFAULT_PORTS = {"http": 80, "https": 443}

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")

_METHODS = frozenset(("GET", "HEAD"))
"""Pages use the WebSocket; nothing is ever uploaded over HTTP."""

_AGENTS_PATH = "/_stcore/agent"
"""Streamlit's own API for agents, which also describes itself while it is switched off."""

_FIXED_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicUrl:
    """The URL of a proxy in front of the dashboard."""

    scheme: str
    name: str
    """In lower case; an IPv6 address is in brackets."""

    port: int

    @classmethod
    def parse(cls, text: str) -> PublicUrl | None:
        """Parse `text`; None if it has a path or a login, or is not a URL."""
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
        """Return the URL as a browser spells it, without a default port."""
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.name}{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedHosts:
    """The host names that one server answers to.

    Another site can point its own name at our address (DNS rebinding) and make a browser reach this server.
    The browser then sends that name in `Host`, so requests for unknown names are refused.
    """

    port: int
    names: Collection[str] = LOOPBACK_NAMES
    """Host names in lower case; an IPv6 address is in brackets."""

    any_address: bool = False
    """Whether any IP address is accepted, for a server that listens on all interfaces.

    DNS rebinding needs a name, and inside a container the address people type is not one of this machine.
    """

    public: PublicUrl | None = None
    """The URL of a proxy in front of it."""

    def allows_host(self, host: str) -> bool:
        """Return whether `host`, a Host header, is one of our names."""
        if self._is_public(host):
            return True
        name, port = _split_authority(host, default_port=_DEFAULT_PORTS["http"])
        if port != self.port:
            return False
        return name in self.names or (self.any_address and _is_address(name))

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether `origin`, an Origin header, matches an allowed `host`."""
        if self.public is not None and self._is_public(host):
            return _is_same_origin(origin, host) and origin.partition("://")[0] == self.public.scheme
        return _is_same_origin(origin, host)

    def is_encrypted(self, host: str) -> bool:
        """Return whether requests with this Host header arrive over https."""
        return self.public is not None and self.public.scheme == "https" and self._is_public(host)

    def _is_public(self, host: str) -> bool:
        if self.public is None:
            return False
        place = _split_authority(host, default_port=_DEFAULT_PORTS[self.public.scheme])
        return place == (self.public.name, self.public.port)


class NetworkGuard:
    """ASGI middleware that refuses requests of other sites before the application sees them.

    `Host` must be one of our names. An `Origin`, if present, must match `Host`; a WebSocket must have one,
    which every browser sends. Uploads are refused.
    """

    def __init__(self, app: AsgiApp, allowed_hosts: AllowedHosts) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on and add our headers to the response, or answer 403 with the reason."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        hosts = _header_values(scope, b"host")
        host = hosts[0] if len(hosts) == 1 and self._allowed_hosts.allows_host(hosts[0]) else None
        headers = _headers_for(host)
        is_encrypted = host is not None and self._allowed_hosts.is_encrypted(host)
        refusal = self._refusal(scope, hosts)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                theirs = message.get("headers", ())
                if is_encrypted:
                    theirs = [_for_https_only(name, value) for name, value in theirs]
                message = {**message, "headers": _merged(theirs, headers)}
            await send(message)

        if refusal is not None:
            await refuse(scope, receive, send_with_headers, refusal)
        elif scope["type"] == "http" and (scope["method"] not in _METHODS or _has_body(scope)):
            await refuse(
                scope, receive, send_with_headers, "This dashboard does not accept uploads.", status=405
            )
        elif f"{_AGENTS_PATH}/" in f"{scope['path']}/":
            await refuse(scope, receive, send_with_headers, "Not served here.", status=404)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: Message, hosts: list[str]) -> str | None:
        if len(hosts) != 1:
            return f"Expected exactly one Host header, got {len(hosts)}."
        [host] = hosts
        if not self._allowed_hosts.allows_host(host):
            return (
                f"Unknown host {_shown(host)}.\n"
                f"Open the dashboard as http://localhost:{self._allowed_hosts.port}; with ssh -L, use port "
                f"{self._allowed_hosts.port} on both sides.\n"
                "For another name, start it with --host NAME, or with --public-url URL behind a proxy."
            )
        if _is_fetched_by_another_site(scope):
            return "Requests from other sites are refused."
        origins = _header_values(scope, b"origin")
        if not origins and scope["type"] == "http":
            return None
        if len(origins) != 1:
            return f"Expected exactly one Origin header, got {len(origins)}."
        [origin] = origins
        if not self._allowed_hosts.allows_origin(origin, host):
            return f"Requests from {_shown(origin)} are refused."
        return None


def _headers_for(host: str | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of every response; `host` is an allowed Host header, or None."""
    # Not every browser counts ws: as 'self', so the allowed host is spelled out.
    sockets = "" if host is None else f" ws://{host.lower()} wss://{host.lower()}"
    policy = (
        "default-src 'self'",
        # Streamlit starts from an inline script and loads the code of a component as a blob;
        # Vega, which draws its small charts, compiles expressions.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        # A run's text may contain a Markdown image, which must not be fetched from elsewhere.
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


def _has_body(scope: Message) -> bool:
    lengths = _header_values(scope, b"content-length")
    return bool(_header_values(scope, b"transfer-encoding")) or any(length != "0" for length in lengths)


def _is_fetched_by_another_site(scope: Message) -> bool:
    """Return whether a page of another site, or of another port here, embeds or fetches this.

    Following a link is allowed. Old browsers do not send these headers and are checked by the other rules.
    """
    sent = {name: value for name, value in scope["headers"] if name.startswith(b"sec-fetch-")}
    if sent.get(b"sec-fetch-site") not in (b"cross-site", b"same-site"):
        return False
    return sent.get(b"sec-fetch-mode") != b"navigate" or sent.get(b"sec-fetch-dest") != b"document"


def _for_https_only(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Add `Secure` to a Set-Cookie header, so that browsers never send the cookie unencrypted."""
    if name.lower() != b"set-cookie" or b"; secure" in value.lower():
        return name, value
    return name, value + b"; Secure"


def _header_values(scope: Message, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _is_same_origin(origin: str, host: str) -> bool:
    scheme, separator, authority = origin.partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        return False
    default_port = _DEFAULT_PORTS[scheme]
    return _split_authority(authority, default_port=default_port) == _split_authority(
        host, default_port=default_port
    )


def _split_authority(authority: str, *, default_port: int) -> tuple[str, int | None]:
    """Return the name in lower case and the port; the port is None if it is not a plain number."""
    name, separator, port = authority.rpartition(":")
    if not separator or port.endswith("]"):
        return authority.lower(), default_port
    # int() would also accept '+8501', ' 8501' and digits of other scripts.
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        return name.lower(), None
    return name.lower(), int(port)


def _is_address(name: str) -> bool:
    if "%" in name:
        # A zone ('fe80::1%eth0') is arbitrary text of the sender.
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
    """Return untrusted text as one short line of ASCII."""
    return ascii(text[:100])
