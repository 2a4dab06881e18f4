"""Makes the browser fetch scripts as soon as it opens a page, before the first element needs them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from dashboard.asgi import AsgiApp, Message, Receive, Send
from dashboard.bundle import Bundle

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

# Space for what a page shows a moment later, so that nothing moves: the sidebar, which has a fixed width, its links,
# the cards and the time ledger. The login page has no sidebar.
_STYLE = """
[data-testid="stMainBlockContainer"] { max-width: initial !important; }
@media (min-width: 768px) {
  [data-testid="stMainBlockContainer"] { padding-left: 5rem !important; padding-right: 5rem !important; }
  [data-testid="stAppViewContainer"]:not(:has([data-testid="stSidebar"], .st-key-login))
  > div:has([data-testid="stMain"]) { margin-left: 281.25px; }
  [data-testid="stSidebar"]:not(:has([data-testid="stSidebarNav"])) [data-testid="stSidebarUserContent"] {
    display: none;
  }
}
[class*="st-key-_attention-"], [class*="st-key--attention-"] {
  position: absolute !important; width: 1px !important; height: 1px; overflow: hidden;
}
.st-key-progress:has([data-testid="stSkeleton"]) { max-height: 32px; overflow: hidden; }
:is([class*="st-key-_cards-"], [class*="st-key--cards-"]):not(:has(.telemetry-card)) { height: 68px; overflow: hidden; }
:is([class*="st-key-_ledger-"], [class*="st-key--ledger-"]):not(:has(.telemetry-ledger > *)) {
  height: 64px; overflow: hidden;
}
@media (max-width: 640px) {
  :is([class*="st-key-_cards-"], [class*="st-key--cards-"]):not(:has(.telemetry-card)) { height: 222px; }
  .st-key-switches:has([data-testid="stSkeleton"]) { min-height: 188px; align-content: flex-start; }
}
"""

_MAX_BYTES = 200_000
"""The page itself is a few kilobytes; anything larger is something else."""


def with_preloads(
    application: AsgiApp, scripts: Sequence[str], bundle: Bundle | None = None, style: str = ""
) -> AsgiApp:
    """Return `application` with preload hints in the head of each HTML page, which starts from `bundle` if given.

    Scripts are fetched at once but run only after the page has requested its contents: earlier they would delay
    Streamlit's start, and then the browser is idle until the response arrives.
    """
    styles = style + (_STYLE if scripts else "")
    hints = [f"<style>{styles}</style>"] if styles else []
    hints += [f'<link rel="preload" as="script" href="{url}">' for url in scripts]
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
        page = _Page(send, tag, bundle)
        await application(scope, receive, page.send)

    return serve


def _asks_for_html_compressed(scope: Message, header: tuple[bytes, bytes]) -> bool:
    if header[0].lower() != b"accept-encoding":
        return False
    accepted = next((value for name, value in scope["headers"] if name.lower() == b"accept"), b"")
    return b"text/html" in accepted


class _Page:
    """Buffers an HTML response until it is complete, and passes on everything else."""

    def __init__(self, send: Send, tag: bytes, bundle: Bundle | None) -> None:
        self._send = send
        self._tag = tag
        self._bundle = bundle
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
        body = self._body if self._bundle is None else _started_from(self._bundle, self._body)
        body = body.replace(b"</head>", self._tag, 1)
        headers = [item for item in start["headers"] if item[0].lower() != b"content-length"]
        if not message.get("more_body"):
            headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})


_MODULE_TAG = re.compile(
    rb"""<script type="module"[^>]* src="\./static/js/([^"]+)"></script>|<link rel="modulepreload"[^>]*>\s*"""
)


def _started_from(bundle: Bundle, page: bytes) -> bytes:
    """Return the page with the start of the bundle in place of Streamlit's modules."""
    entries = [tag[1] for tag in _MODULE_TAG.finditer(page) if tag[1]]
    if entries != [bundle.entry.encode()]:
        return page
    # First of all: the bundle is what everything else waits for.
    starter = f"<head><script>{bundle.starter}</script>".encode()
    return _MODULE_TAG.sub(b"", page).replace(b"<head>", starter, 1)


def _is_page(message: Message) -> bool:
    headers = {name.lower(): value for name, value in message["headers"]}
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
