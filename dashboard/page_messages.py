"""Lets only those WebSocket messages through to Streamlit that draw a page."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from streamlit.proto.BackMsg_pb2 import BackMsg

from .asgi import AsgiApp, Message, Receive, Send

_ALLOWED: Final = frozenset(("rerun_script", "stop_script", "app_heartbeat"))
"""Draw the page, stop drawing it, stay connected.

Streamlit accepts more from any visitor: `clear_cache` discards what every tab has read, `load_git_info` returns
file names, others upload, watch and write files or stop the server. Our pages send none of those.
"""

_ALLOWED_OPERATIONS: Final = frozenset(("deferred_file", "dataframe_chunk"))
"""A download made on click, and more rows of a long table."""

_PROTOCOL_ERROR = 1002


class PageMessages:
    """ASGI middleware that drops messages our pages do not send, and disconnects on invalid ones."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything on, but check the messages of a WebSocket first."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        is_over = False

        async def receive_known() -> Message:
            nonlocal is_over
            while not is_over:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                is_known = _is_allowed(message.get("bytes"))
                if is_known:
                    return message
                is_over = is_known is None
            return {"type": "websocket.disconnect", "code": _PROTOCOL_ERROR, "reason": ""}

        async def send_while_open(message: Message) -> None:
            # The application may still be drawing a page when the connection ends.
            if not is_over:
                await send(message)

        await self._app(scope, receive_known, send_while_open)
        if is_over:
            await send({"type": "websocket.close", "code": _PROTOCOL_ERROR, "reason": ""})


def _is_allowed(content: bytes | None) -> bool | None:
    """Return whether Streamlit gets this message; None if it is not a valid message."""
    if content is None:
        # Text, but every message is binary.
        return None
    try:
        message = BackMsg.FromString(content)
    except DecodeError:
        return None
    kind = message.WhichOneof("type")
    if kind == "backend_operation_request":
        return message.backend_operation_request.WhichOneof("payload") in _ALLOWED_OPERATIONS
    return kind in _ALLOWED
