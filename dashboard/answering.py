"""The threads that compute answers to requests, shared fairly by visitors, until no one waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from toolkit.telemetry.core.deadline import Deadline

_THREADS: Final = 8
_COSTLY: Final = 4
"""Costly answers at once: the other threads are left for the rest."""
_OF_ONE_VISITOR: Final = 2

# Of its own: with the threads of the event loop, slow answers would delay Streamlit.
_threads: Final = ThreadPoolExecutor(_THREADS, "answering")
_places: Final[WeakValueDictionary[object, asyncio.Semaphore]] = WeakValueDictionary()


async def computed(
    request: Request, compute: Callable[[], Response], *, seconds: float, is_costly: bool = False
) -> Response:
    """Return what `compute` returns in a thread, which sees a deadline of `seconds`; it passes when the client leaves.

    One visitor has two answers computed at a time, and two more that are costly; the rest wait for their turn.
    """
    deadline = Deadline(seconds)
    visitor = request.client and request.client.host, request.headers.get("cookie"), is_costly
    watching = asyncio.create_task(_cancel_when_gone(request, deadline))
    try:
        async with (
            _place(visitor, _OF_ONE_VISITOR),
            _place(is_costly, _COSTLY if is_costly else _THREADS),
        ):
            if watching.done():
                return Response(status_code=503)
            return await asyncio.get_running_loop().run_in_executor(_threads, deadline.run, compute)
    finally:
        deadline.cancel()
        watching.cancel()


def _place(name: object, count: int) -> asyncio.Semaphore:
    """Return what lets `count` requests of a kind in at a time; it is forgotten with the last of them."""
    return _places.setdefault(name, asyncio.Semaphore(count))


async def _cancel_when_gone(request: Request, deadline: Deadline) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    deadline.cancel()
