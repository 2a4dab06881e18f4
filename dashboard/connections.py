"""Limits on open connections, and on how long one may stay idle."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

REQUEST_S: Final = 10.0
"""How long a connection may take to send the request line and headers. Browsers send them at once."""

UNREAD_S: Final = 60.0
"""How long a client may leave data unread."""

_MAX: Final = 1000
_MIN: Final = 8
_MAX_BATCH: Final = 128

# Open files. Streamlit gives each tab an event loop, and keeps those of 128 closed tabs.
_FILES_WANTED: Final = 1024
_FILES_PER_TAB: Final = 4
_FILES_OF_CLOSED_TABS: Final = 128 * 3
_OWN_FILES: Final = 128


class ConnectionLimits:
    """Closes idle connections, connections that do not read, and connections above the limit.

    A connection is opened before a token is checked, so anyone who reaches the port could open any number of them.
    """

    def __init__(
        self,
        connections: Collection[Any],
        *,
        limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch `connections`, the protocols of a uvicorn server; at most `limit` of them may be open."""
        self._connections = connections
        self._limit = max_connections() if limit is None else limit
        self._clock = clock
        self._arrived: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._unchanged: weakref.WeakKeyDictionary[Any, tuple[object, float]] = weakref.WeakKeyDictionary()

    def watched(self, protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
        """Return uvicorn's HTTP `protocol`, counting each new connection."""
        limits = self

        class Watched(protocol):  # type: ignore[valid-type, misc]  # the base class depends on what is installed
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                limits.make_room_for(self)

        return Watched

    def make_room_for(self, newest: Any) -> None:
        """Above the limit, close the oldest idle connection, else `newest`: half-open ones never lock anyone out."""
        self._arrived[newest] = self._clock()
        if len(self._connections) <= self._limit:
            return
        # A closing connection leaves the set a little later, and many can arrive until then.
        opened = [one for one in self._connections if not one.transport.is_closing()]
        if len(opened) <= self._limit:
            return
        idle = [one for one in opened if one is not newest and _is_idle(one)]
        closed = min(idle, key=lambda one: self._arrived.get(one, 0.0), default=newest)
        closed.transport.abort()

    def close_idle(self) -> None:
        """Close connections idle or unread for too long; called about once a second."""
        now = self._clock()
        for one in list(self._connections):
            unread = one.transport.get_write_buffer_size()
            state = (_newest_request(one), unread)
            before, since = self._unchanged.get(one, (None, now))
            if state != before:
                self._unchanged[one] = (state, now)
            elif (unread and now - since >= UNREAD_S) or (
                not unread and _is_idle(one) and now - since >= REQUEST_S
            ):
                one.transport.abort()


def max_connections() -> int:
    """Return how many connections may be open so that this process never runs out of open files."""
    allowed = _files_allowed()
    left = allowed - _FILES_OF_CLOSED_TABS - _OWN_FILES
    return max(_MIN, min(_MAX, left // _FILES_PER_TAB))


def accept_batch_size() -> int:
    """Return how many connections are accepted in one go, before those above the limit are closed."""
    return max(1, min(_MAX_BATCH, max_connections() // 4))


def _files_allowed() -> int:
    """Return the limit on open files, raised to the usual Linux value if the system permits."""
    try:
        # Not available on every system.
        import resource
    except ImportError:
        return _MAX * _FILES_PER_TAB
    allowed, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MAX * _FILES_PER_TAB
    if allowed >= _FILES_WANTED:
        return allowed
    wanted = _FILES_WANTED if hard_limit == resource.RLIM_INFINITY else min(_FILES_WANTED, hard_limit)
    try:
        # macOS allows 256, which tabs closed within the last two minutes can use up.
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard_limit))
    except (OSError, ValueError):
        return allowed
    return wanted


_NOT_HTTP = object()


def _is_idle(connection: Any) -> bool:
    """Return whether no request is in progress; an open WebSocket counts as one."""
    request = getattr(connection, "cycle", _NOT_HTTP)
    return request is None or bool(getattr(request, "response_complete", False))


def _newest_request(connection: Any) -> object:
    request = getattr(connection, "cycle", None)
    # A weak reference: the request holds its connection, which would otherwise never be freed.
    return None if request is None else weakref.ref(request)
