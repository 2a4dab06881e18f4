"""Sends Streamlit's own scripts and styles compressed: 1 MB instead of 3.5, which matters over `ssh -L`."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.asgi import AsgiApp, Message, Receive, Send

_FOLDER = "/static/"
_COMPRESSED = (".js", ".css")
_CHANGED = frozenset((b"content-length", b"accept-ranges", b"etag"))
"""Headers of the file itself, which are not those of its compressed form."""
_MAX_KEPT = 32_000_000
"""Bytes. Streamlit's files need a third of it, even if every one is asked for."""


@dataclass(frozen=True, slots=True)
class _File:
    headers: list[tuple[bytes, bytes]]
    body: bytes


class CompressedFiles:
    """ASGI middleware that compresses each of these files once per process."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._files: dict[str, _File] = {}
        self._kept = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer with a compressed file where the browser takes one; pass everything else on."""
        if not _may_be_compressed(scope):
            await self._app(scope, receive, send)
            return
        file = self._files.get(scope["path"])
        if file is None:
            # A part or "not modified" of the plain file would be kept as if it were all of it.
            asked = [item for item in scope["headers"] if item[0] not in _CONDITIONS]
            answer = _Answer()
            await self._app({**scope, "headers": asked}, receive, answer.take)
            if answer.status != 200 or not answer.is_whole or b"content-encoding" in dict(answer.headers):
                for message in answer.messages():
                    await send(message)
                return
            body = await asyncio.to_thread(gzip.compress, answer.body, 6, mtime=0)
            file = _File([*(h for h in answer.headers if h[0] not in _CHANGED), *_added(body)], body)
            if self._kept + len(body) <= _MAX_KEPT:
                self._kept += len(body)
                self._files[scope["path"]] = file
        await send({"type": "http.response.start", "status": 200, "headers": file.headers})
        await send({"type": "http.response.body", "body": file.body})


_CONDITIONS = frozenset((b"range", b"if-range", b"if-none-match", b"if-modified-since"))


class _Answer:
    """A response that is collected instead of sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    @property
    def is_whole(self) -> bool:
        """Whether it has all of the file: for a browser that went away meanwhile the file is not read to its end."""
        return dict(self.headers).get(b"content-length", b"") == str(len(self.body)).encode()

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.lower(), value) for name, value in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def messages(self) -> tuple[Message, Message]:
        return (
            {"type": "http.response.start", "status": self.status, "headers": self.headers},
            {"type": "http.response.body", "body": self.body},
        )


def _may_be_compressed(scope: Message) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    path: str = scope["path"]
    if not (path.startswith(_FOLDER) and path.endswith(_COMPRESSED)):
        return False
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    return b"gzip" in headers.get(b"accept-encoding", b"")


def _added(body: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-encoding", b"gzip"),
        (b"content-length", str(len(body)).encode()),
        (b"vary", b"Accept-Encoding"),
    ]
