"""What our ASGI middlewares share: types, cookies and plain responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

HEALTH_PATH: Final = "/_stcore/health"
"""A health check needs no right: it learns that pages are served, and no more."""


def cookies_of(scope: Message) -> list[tuple[str, str]]:
    """Return the cookies in the order received; a name may occur more than once."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
    pairs = (part.partition("=") for value in values for part in value.split(";"))
    return [(name.strip(), value.strip()) for name, _, value in pairs]


async def answer(
    send: Send,
    status: int,
    text: str,
    headers: Sequence[tuple[bytes, bytes]] = (),
    *,
    content_type: str = "text/html",
) -> None:
    """Send `text` as the whole response, marked not to be cached."""
    body = text.encode("utf-8")
    about = [
        (b"content-type", f"{content_type}; charset=utf-8".encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        # The request body is not read, and must not be parsed as the next request.
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*about, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(scope: Message, receive: Receive, send: Send, why: str, *, status: int = 403) -> None:
    """Answer with the reason; reject a WebSocket before it opens, with a bare 403, whose body no browser shows."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
    else:
        await answer(send, status, f"{why}\n", content_type="text/plain")
