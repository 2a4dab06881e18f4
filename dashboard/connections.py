"""How many connections the server keeps, and how long one may stay open without asking for anything."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

REQUEST_S: Final = 10.0
"""How long a connection may take for the first line and the headers of a request. Browsers send them at once."""

STALLED_S: Final = 60.0
"""How long a client may leave what was sent to it unread."""

_MOST: Final = 1000
_FEWEST: Final = 8
_MOST_AT_ONCE: Final = 128

# Counted in open files. Streamlit gives each tab an event loop, and keeps that of 128 closed tabs.
_FILES_WANTED: Final = 1024
_FILES_OF_A_TAB: Final = 4
_FILES_OF_CLOSED_TABS: Final = 128 * 3
_FILES_OF_OUR_OWN: Final = 128


class ConnectionLimits:
    """Closes connections that ask for nothing, that read nothing, and that are too many.

    A connection is opened before any token is shown, so whoever reaches the port can open any number of them.
    """

    def __init__(
        self,
        connections: Collection[Any],
        *,
        most: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch `connections`, the protocols of a uvicorn server; `most` of them may be open."""
        self._connections = connections
        self._most = most_connections() if most is None else most
        self._clock = clock
        self._arrived: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._unchanged: weakref.WeakKeyDictionary[Any, tuple[object, float]] = weakref.WeakKeyDictionary()

    def watched(self, protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
        """Return uvicorn's HTTP `protocol` with each new connection counted."""
        limits = self

        class Watched(protocol):  # type: ignore[valid-type, misc]  # which one depends on what is installed
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                limits.make_room_for(self)

        return Watched

    def make_room_for(self, newest: Any) -> None:
        """Close the oldest connection that asks for nothing where there are too many; `newest` where none is idle.

        So half-open connections keep no one out, however many there are: a browser sends its request at once.
        """
        self._arrived[newest] = self._clock()
        if len(self._connections) <= self._most:
            return
        # One that is closing leaves the set a moment later, and many can arrive in that moment.
        opened = [one for one in self._connections if not one.transport.is_closing()]
        if len(opened) <= self._most:
            return
        idle = [one for one in opened if one is not newest and _asks_for_nothing(one)]
        given_up = min(idle, key=lambda one: self._arrived.get(one, 0.0), default=newest)
        given_up.transport.abort()

    def close_stalled(self) -> None:
        """Close what has waited too long for a request, or for its client to read; called about once a second."""
        now = self._clock()
        for one in list(self._connections):
            unread = one.transport.get_write_buffer_size()
            state = (_newest_request(one), unread)
            before, since = self._unchanged.get(one, (None, now))
            if state != before:
                self._unchanged[one] = (state, now)
            elif (unread and now - since >= STALLED_S) or (
                not unread and _asks_for_nothing(one) and now - since >= REQUEST_S
            ):
                one.transport.abort()


def most_connections() -> int:
    """Return how many connections leave this process enough open files, whatever each of them is used for."""
    allowed = _files_allowed()
    left = allowed - _FILES_OF_CLOSED_TABS - _FILES_OF_OUR_OWN
    return max(_FEWEST, min(_MOST, left // _FILES_OF_A_TAB))


def taken_at_once() -> int:
    """Return how many connections are taken before those that are too many have been closed."""
    return max(1, min(_MOST_AT_ONCE, most_connections() // 4))


def _files_allowed() -> int:
    """Return how many files may be open at a time, and allow what is usual on Linux where the system lets us."""
    try:
        # Not on every system.
        import resource
    except ImportError:
        return _MOST * _FILES_OF_A_TAB
    allowed, at_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST * _FILES_OF_A_TAB
    if allowed >= _FILES_WANTED:
        return allowed
    wanted = _FILES_WANTED if at_most == resource.RLIM_INFINITY else min(_FILES_WANTED, at_most)
    try:
        # macOS allows 256, which the tabs that were closed within two minutes can use up.
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, at_most))
    except (OSError, ValueError):
        return allowed
    return wanted


_NOT_HTTP = object()


def _asks_for_nothing(connection: Any) -> bool:
    """Say whether no request is being answered; a WebSocket has been asked for, and counts as one that is."""
    request = getattr(connection, "cycle", _NOT_HTTP)
    return request is None or bool(getattr(request, "response_complete", False))


def _newest_request(connection: Any) -> object:
    request = getattr(connection, "cycle", None)
    # Not the request itself: it holds its connection, which would then never be let go.
    return None if request is None else weakref.ref(request)
