"""A listening socket for the dashboard, and the names people reach it by."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from dashboard.network_guard import LOOPBACK_NAMES, Doors, PublicUrl

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 8501

QUEUE_LENGTH = 128
"""How many connections may wait for the server to take them."""

_PORTS_TRIED = 21
_LOOPBACK_ADDRESS = "127.0.0.1"


class ListenError(Exception):
    """Nothing can listen there; the message names the option that chose the place, and a way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A socket that already listens, so the port cannot be lost to someone else while the rest starts."""

    socket: socket.socket
    address: str
    port: int
    doors: Doors
    url: str
    """What to open in a browser on this machine, or, for a `--host` or `--public-url` of its own, anywhere."""

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it, and no proxy makes it known to others."""
        return self.is_local and self.doors.public is None

    @property
    def is_local(self) -> bool:
        """Whether it listens on this machine alone."""
        return _is_loopback(self.address)


def listen(host: str = DEFAULT_HOST, port: int | None = None, *, public: PublicUrl | None = None) -> Listener:
    """Listen on `host` at `port`; None stands for the default port or the next free one after it.

    `public` is where a proxy in front of it makes it known.

    Raises:
        ListenError: the host is unknown here, or the port is taken or not allowed.
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
        f"ports {ports[0]} to {ports[-1]} on {address} are all in use; --port chooses another one"
    )


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    if host.lower() == DEFAULT_HOST:
        # The name may stand for ::1 as well; a browser tries both, and one socket is enough.
        return socket.AF_INET, _LOOPBACK_ADDRESS
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    unknown = ListenError(
        f"--host {host!r} is not known here; localhost, an IP address or a host name of this machine is allowed"
    )
    # An empty name would mean every interface, and what is not ASCII cannot be said in a header.
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
            # Without it a port stays taken for a minute after a server with open connections ended.
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
        return f"port {port} on {host} is in use; --port chooses another one"
    if error.errno == errno.EACCES:
        return f"--port {port} needs rights this user does not have; ports from 1024 up do not"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host!r} is not an address of this machine; localhost always is"
    return f"--host {host!r} --port {port} cannot be listened on: {error.strerror}"


def _listener(bound: socket.socket, host: str, address: str, public: PublicUrl | None) -> Listener:
    port = int(bound.getsockname()[1])
    everywhere = ipaddress.ip_address(address.partition("%")[0]).is_unspecified
    given = _bracketed(host.lower())
    names = {*LOOPBACK_NAMES, given, _bracketed(address)}
    if everywhere:
        # Its own name is what people type for a machine down the hall. Asking for more names would ask the network.
        names.add(socket.gethostname().lower())
    shown = DEFAULT_HOST if everywhere or address == _LOOPBACK_ADDRESS else given
    return Listener(
        socket=bound,
        address=address,
        port=port,
        doors=Doors(port=port, names=frozenset(names), any_address=everywhere, public=public),
        url=f"http://{shown}:{port}" if public is None else str(public),
    )


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
