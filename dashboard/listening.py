"""The listening socket of the dashboard, and the names it is reached by."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from .network_guard import LOOPBACK_NAMES, AllowedHosts, PublicUrl

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 8501

QUEUE_LENGTH = 128
"""How many connections may wait to be accepted."""

_PORTS_TRIED = 21
_LOOPBACK_ADDRESS = "127.0.0.1"


class ListenError(Exception):
    """The address cannot be used; the message names the option and a fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A socket that already listens, so that no other process takes the port during startup."""

    socket: socket.socket
    address: str
    port: int
    allowed_hosts: AllowedHosts
    url: str
    """The URL to open: on this machine, or from anywhere with `--host` or `--public-url`."""

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it, and no proxy is in front."""
        return self.is_local and self.allowed_hosts.public is None

    @property
    def is_local(self) -> bool:
        """Whether it listens on a loopback address."""
        return _is_loopback(self.address)


def listen(host: str = DEFAULT_HOST, port: int | None = None, *, public: PublicUrl | None = None) -> Listener:
    """Listen on `host` and `port`; None: the default port or the next free one.

    `public` is the URL of a proxy in front of it.

    Raises:
        ListenError: the host is unknown, or the port is in use or not permitted.
    """
    family, address = _resolve(host)
    ports = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED) if port is None else (port,)
    for candidate in ports:
        try:
            bound = _bind(family, address, candidate)
        except OSError as error:
            if port is None and error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise ListenError(_explain(error, host, candidate)) from error
        return _listener(bound, host, address, public)
    raise ListenError(
        f"ports {ports[0]} to {ports[-1]} on {address} are all in use; choose another one with --port"
    )


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    if host.lower() == DEFAULT_HOST:
        # The name may also mean ::1; a browser tries both, and one socket is enough.
        return socket.AF_INET, _LOOPBACK_ADDRESS
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    unknown = ListenError(
        f"--host {host!r} is unknown; use localhost, an IP address or a host name of this machine"
    )
    # An empty name would mean every interface, and a header cannot carry non-ASCII names.
    if not bare or not bare.isascii():
        raise unknown
    try:
        found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unknown from error
    for wanted in (socket.AF_INET, socket.AF_INET6):
        for family, _, _, _, place in found:
            if family == wanted:
                return family, str(place[0])
    raise unknown


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # Without it a port stays in use for a minute after a server with open connections ended.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
        bound.listen(QUEUE_LENGTH)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another one with --port"
    if error.errno == errno.EACCES:
        return f"no permission to use --port {port}; choose one from 1024 up"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host!r} is not an address of this machine; use localhost"
    return f"--host {host!r} --port {port} cannot be used: {error.strerror}"


def _listener(bound: socket.socket, host: str, address: str, public: PublicUrl | None) -> Listener:
    port = int(bound.getsockname()[1])
    everywhere = ipaddress.ip_address(address.partition("%")[0]).is_unspecified
    given = _bracketed(host.lower())
    names = {*LOOPBACK_NAMES, given, _bracketed(address)}
    if everywhere:
        # People type the machine's own name. Looking up more names would need the network.
        names.add(socket.gethostname().lower())
    shown = DEFAULT_HOST if everywhere or address == _LOOPBACK_ADDRESS else given
    return Listener(
        socket=bound,
        address=address,
        port=port,
        allowed_hosts=AllowedHosts(port=port, names=frozenset(names), any_address=everywhere, public=public),
        url=f"http://{shown}:{port}" if public is None else str(public),
    )


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
