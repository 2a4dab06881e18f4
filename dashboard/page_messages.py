"""Which messages of a page reach Streamlit: those that draw a page, and none that reach beyond it."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from streamlit.proto.BackMsg_pb2 import BackMsg

from dashboard.asgi import AsgiApp, Message, Receive, Send

_PASSED_ON: Final = frozenset(("rerun_script", "stop_script", "app_heartbeat"))
"""Draw the page, stop drawing it, stay connected.

Streamlit knows more of them, and takes them from any viewer: `clear_cache` throws away what every tab of
every viewer has read, `load_git_info` returns names of files, others upload, watch and write files or stop the server.
No page of ours sends one of those.
"""

_OPERATIONS_PASSED_ON: Final = frozenset(("deferred_file", "dataframe_chunk"))
"""A download that is made when it is clicked, and more rows of a long table."""

_WRONG_PROTOCOL = 1002


class PageMessages:
    """ASGI middleware that drops what pages do not send, and hangs up on what is no message at all."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything on but the messages of a WebSocket, which are read first."""
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
                is_known = _is_passed_on(message.get("bytes"))
                if is_known:
                    return message
                is_over = is_known is None
            return {"type": "websocket.disconnect", "code": _WRONG_PROTOCOL, "reason": ""}

        async def send_while_open(message: Message) -> None:
            # The application may be in the middle of a page when it learns that the connection is over.
            if not is_over:
                await send(message)

        await self._app(scope, receive_known, send_while_open)
        if is_over:
            await send({"type": "websocket.close", "code": _WRONG_PROTOCOL, "reason": ""})


def _is_passed_on(content: bytes | None) -> bool | None:
    """Say whether Streamlit gets this message; None where it is not a message."""
    if content is None:
        # A text, where every message is binary.
        return None
    try:
        message = BackMsg.FromString(content)
    except DecodeError:
        return None
    kind = message.WhichOneof("type")
    if kind == "backend_operation_request":
        return message.backend_operation_request.WhichOneof("payload") in _OPERATIONS_PASSED_ON
    return kind in _PASSED_ON
