"""ntfy: a text to a topic, its title, urgency and signs in headers."""

from __future__ import annotations

import base64
from typing import Final

from toolkit.mirrors.messages.formatting import cut, cut_bytes, one_line
from toolkit.mirrors.messages.message import Message
from toolkit.mirrors.messages.transport_types import Answer, Request

_LONGEST_BYTES: Final = 4000
"""A longer text becomes a file that phones do not show."""
_LONGEST_TITLE: Final = 200
_SIGNS: Final = {
    "start": "rocket",
    "finish": "white_check_mark",
    "failure": "rotating_light",
    "stall": "hourglass",
    "finding": "warning",
    "milestone": "tada",
}


def request(message: Message, secret: str | None, now: float) -> Request:  # noqa: ARG001 - it signs nothing
    """Return the request for `message`."""
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Title": encoded_words(cut(one_line(message.title), _LONGEST_TITLE)),
        # `Priority` alone is a header of HTTP's own, which some proxies set and take away.
        "X-Priority": str(message.urgency),
        "X-Tags": _SIGNS.get(message.occasion, "memo"),
    }
    if message.link and message.link.isascii():
        headers["X-Click"] = message.link
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    text = cut_bytes(message.body(_LONGEST_BYTES), _LONGEST_BYTES - len(message.link or "") - 1)
    if message.link:
        text += f"\n{message.link}"
    return Request(
        body=text.encode("utf-8", "replace"), headers=headers, secrets=frozenset({secret} if secret else ())
    )


def check(answer: Answer) -> None:
    """Accept it: ntfy says no by its status."""


def encoded_words(text: str) -> str:
    """Return `text` as a header may have it: other letters than ASCII's as the encoded words of RFC 2047."""
    if text.isascii() and "=?" not in text:
        return text
    words, word = [], b""
    for letter in text:
        more = letter.encode("utf-8", "replace")
        # A word has 75 letters at most, and none of its own is cut in two.
        if len(word) + len(more) > 45:
            words.append(word)
            word = b""
        word += more
    return " ".join(f"=?UTF-8?B?{base64.b64encode(word).decode()}?=" for word in [*words, word])
