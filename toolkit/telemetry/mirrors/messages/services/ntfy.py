"""ntfy: a text to a topic, with title, priority and tags in headers."""

from __future__ import annotations

from email.header import Header
from typing import Final

from toolkit.telemetry.mirrors.messages.message import Message, cut, cut_bytes, one_line
from toolkit.telemetry.mirrors.messages.post import HttpRequest

_LONGEST_BYTES: Final = 4000
"""A longer text becomes an attachment that phones do not show."""
_LONGEST_TITLE: Final = 200
_TAGS: Final = {
    "start": "rocket",
    "finish": "white_check_mark",
    "failure": "rotating_light",
    "stall": "hourglass",
    "finding": "warning",
    "milestone": "tada",
}


def request(message: Message, secret: str | None, now: float) -> HttpRequest:  # noqa: ARG001 - nothing is signed
    """Return the request for `message`."""
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Title": encoded_words(cut(one_line(message.title), _LONGEST_TITLE)),
        # `Priority` alone is a header of HTTP itself, which some proxies set or remove.
        "X-Priority": str(message.urgency),
        "X-Tags": _TAGS.get(message.occasion, "memo"),
    }
    if message.link and message.link.isascii():
        headers["X-Click"] = message.link
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    text = cut_bytes(message.body(_LONGEST_BYTES), _LONGEST_BYTES - len(message.link or "") - 1)
    if message.link:
        text += f"\n{message.link}"
    return HttpRequest(
        body=text.encode("utf-8", "replace"), headers=headers, secrets=frozenset({secret} if secret else ())
    )


def encoded_words(text: str) -> str:
    """Return one line of text for a header: as encoded words of RFC 2047 if it is not plain ASCII."""
    if text.isascii() and "=?" not in text:
        return text
    return Header(text.encode("utf-8", "replace").decode(), "utf-8", maxlinelen=75).encode(linesep="")
