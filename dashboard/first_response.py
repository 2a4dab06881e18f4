"""Completes the page that Streamlit answers with: our style, our script by name, and a first screen."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from starlette.responses import JSONResponse

from .access.roles import role_of
from .asgi import AsgiApp, Message, Receive, Send, cookies_of
from .assets import page_script_url, page_style

FirstScreen: TypeAlias = Callable[[str, Mapping[str, str], Mapping[str, str]], str]

_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 0.25
"""How long a page waits for its first screen, which takes a hundredth of a second on an idle machine."""
_AT_ONCE: Final = 2
_ROOT: Final = b'<div id="root">'
_HOST_CONFIG: Final = {"allowedOrigins": [], "blockErrorDialogs": True}
"""As Streamlit's own, but without its dialogs, which say to run `yourscript.py`: page.css says what happened."""
_KNOWN: Final = f"""<script>window.__streamlit = {{
  BACKEND_BASE_URL: location.origin + "/",
  HOST_CONFIG: {{ ...{json.dumps(_HOST_CONFIG)}, allowedOrigins: [location.origin], useExternalAuthToken: false }},
}}</script>"""
"""What Streamlit would ask for in two rounds before it connects."""
_NOT_PASSED_ON: Final = frozenset((b"accept-encoding", b"if-none-match", b"if-modified-since"))
"""Streamlit would answer with compressed bytes, or with none."""
_REPLACED: Final = frozenset((b"content-length", b"etag", b"last-modified", b"cache-control"))

# Of its own: a first screen that waits for a slow disk must not keep other answers waiting.
_threads: Final = ThreadPoolExecutor(_AT_ONCE, "first screen")
_places: Final = threading.Semaphore(_AT_ONCE)


def completed(application: AsgiApp, draw: FirstScreen, *, has_login: bool = False) -> AsgiApp:
    """Return `application` with completed pages; the gates around it say which role a visitor has.

    `draw` is called in a thread, with the path, the query and the cookies of a visitor with access, and returns HTML.
    With `has_login` the browser asks for a cookie before it connects: with it Streamlit knows who has logged in.
    """
    known = "" if has_login else _KNOWN

    async def pages(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/_stcore/host-config":
            await JSONResponse(_HOST_CONFIG)(scope, receive, send)
        elif scope["type"] != "http" or scope["method"] != "GET" or not _may_be_page(scope):
            await application(scope, receive, send)
        else:
            await _complete(application, _begin(draw, scope), known, scope, receive, send)

    return pages


def _may_be_page(scope: Message) -> bool:
    return "." not in scope["path"] and not scope["path"].startswith(("/_stcore/", "/media/"))


async def _complete(
    application: AsgiApp,
    screen: asyncio.Future[str] | None,
    known: str,
    scope: Message,
    receive: Receive,
    send: Send,
) -> None:
    start: Message = {}
    body = b""
    is_page = False

    async def keep(message: Message) -> None:
        nonlocal start, body, is_page
        if message["type"] == "http.response.start":
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            is_page = message["status"] == 200 and any(kind.startswith(b"text/html") for kind in kinds)
            start = message
        if not is_page:
            await send(message)
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")
            if not message.get("more_body"):
                await finish()

    async def finish() -> None:
        if screen is not None:
            await asyncio.wait([screen], timeout=_SECONDS)
        drawn = ""
        if screen is not None and screen.done():
            error = screen.exception()
            drawn = screen.result() if error is None else ""
            if error is not None:
                _log.error("the first screen could not be drawn", exc_info=error)
        # By name, so that the browser loads it together with Streamlit's own.
        script = f'<script type="module" src="{page_script_url()}"></script>'
        added = f"{known}{script}<style>{page_style()}</style>{drawn}".encode("utf-8", "replace")
        page = body.replace(_ROOT, added + _ROOT, 1)
        headers = [
            *(pair for pair in start["headers"] if pair[0] not in _REPLACED),
            (b"content-length", str(len(page)).encode()),
            # What a run shows is for this visitor and for now.
            (b"cache-control", b"no-store"),
        ]
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": page})

    passed_on = [pair for pair in scope["headers"] if pair[0] not in _NOT_PASSED_ON]
    await application({**scope, "headers": passed_on}, receive, keep)


def _begin(draw: FirstScreen, scope: Message) -> asyncio.Future[str] | None:
    """Begin to draw the first screen; None for a visitor without access in this very request, and on a busy server."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"))
    asked = dict(pairs)
    # What has several values is for the page itself.
    if role_of(scope) is None or len(asked) < len(pairs) or not _places.acquire(blocking=False):
        return None
    cookies = dict(cookies_of(scope))

    def drawn() -> str:
        try:
            return draw(scope["path"], asked, cookies)
        finally:
            _places.release()

    return asyncio.get_running_loop().run_in_executor(_threads, drawn)
