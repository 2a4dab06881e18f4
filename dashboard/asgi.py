"""What stands in front of the application shares: the words of ASGI, cookies, and answers in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


def cookies_of(scope: Message) -> list[tuple[str, str]]:
    """Return the cookies as they came; one name may come more than once."""
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
    """Send `text` as the whole answer, which nobody keeps."""
    body = text.encode("utf-8")
    about = [
        (b"content-type", f"{content_type}; charset=utf-8".encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        # What was sent along is not read, and must not be taken for another request.
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*about, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse_socket(receive: Receive, send: Send) -> None:
    """Close a WebSocket before it is open; the server makes a bare 403 of it, whose words no browser shows."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": ""})
