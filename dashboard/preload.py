"""Makes the browser fetch scripts as soon as it opens a page, before the first element needs them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dashboard.asgi import AsgiApp, Message, Receive, Send

# The first message over the WebSocket asks for the page; then `send` is restored.
_RUN_AFTER_REQUEST = """
(() => {
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (...message) {
    WebSocket.prototype.send = send;
    send.apply(this, message);
    for (const url of __URLS__) {
      const script = document.createElement("script");
      script.src = url;
      script.onload = () => { script.dataset.loaded = "yes"; };
      script.onerror = () => script.remove();
      document.head.appendChild(script);
    }
  };
})();
"""

_MAX_BYTES = 200_000
"""The page itself is a few kilobytes; anything larger is something else."""


def with_preloads(application: AsgiApp, scripts: Sequence[str], modules: Sequence[str]) -> AsgiApp:
    """Return `application` with preload hints in the head of each HTML page.

    Scripts are fetched at once but run only after the page has requested its contents: earlier they would delay
    Streamlit's start, and then the browser is idle until the response arrives.
    """
    hints = [f'<link rel="preload" as="script" href="{url}">' for url in scripts]
    hints += [f'<link rel="modulepreload" href="{url}">' for url in modules]
    if scripts:
        hints.append(f"<script>{_RUN_AFTER_REQUEST.replace('__URLS__', json.dumps(list(scripts)))}</script>")
    tag = ("".join(hints) + "</head>").encode()

    async def serve(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        # A compressed page could not be edited.
        scope = {
            **scope,
            "headers": [item for item in scope["headers"] if not _asks_for_html_compressed(scope, item)],
        }
        page = _Page(send, tag)
        await application(scope, receive, page.send)

    return serve


def _asks_for_html_compressed(scope: Message, header: tuple[bytes, bytes]) -> bool:
    if header[0].lower() != b"accept-encoding":
        return False
    accepted = next((value for name, value in scope["headers"] if name.lower() == b"accept"), b"")
    return b"text/html" in accepted


class _Page:
    """Buffers an HTML response until it is complete, and passes on everything else."""

    def __init__(self, send: Send, tag: bytes) -> None:
        self._send = send
        self._tag = tag
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_page(message):
            self._start = message
            return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body") and len(self._body) <= _MAX_BYTES:
            return
        start, self._start = self._start, None
        body = self._body.replace(b"</head>", self._tag, 1)
        headers = [item for item in start["headers"] if item[0].lower() != b"content-length"]
        if not message.get("more_body"):
            headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})


def _is_page(message: Message) -> bool:
    headers = {name.lower(): value for name, value in message["headers"]}
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
