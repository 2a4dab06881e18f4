"""Lark, which is Feishu in China: a text to a group's custom bot, signed where the bot asks for it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Any, Final

import orjson

from toolkit.mirrors.messages.formatting import cut, one_line
from toolkit.mirrors.messages.message import Message
from toolkit.mirrors.messages.transport_types import Answer, NotDelivered, Request

_LONGEST: Final = 4000
_TOO_MANY: Final = frozenset({9499, 11232})
"""What it answers to a bot that speaks too often."""


def request(message: Message, secret: str | None, now: float) -> Request:
    """Return the request for `message`."""
    lines = [message.title, message.body(_LONGEST), *([message.link] if message.link else [])]
    content: dict[str, Any] = {
        "msg_type": "text",
        "content": {"text": _without_mentions("\n".join(lines))},
    }
    secrets: frozenset[str] = frozenset()
    if secret:
        timestamp = str(int(now))
        signature = sign(timestamp, secret)
        content |= {"timestamp": timestamp, "sign": signature}
        secrets = frozenset({signature})
    headers = {"Content-Type": "application/json; charset=utf-8"}
    return Request(body=orjson.dumps(content), headers=headers, secrets=secrets)


def check(answer: Answer) -> None:
    """Raise where the bot refused: it answers 200 to that as well, and says in a number what was wrong."""
    try:
        said = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        # An answer that was cut off is none: the message may have arrived.
        raise NotDelivered("answers something that is no JSON", again=True, was_sent=True) from error
    if not isinstance(said, dict):
        raise NotDelivered("answers something that is no bot's answer", again=False)
    code = said.get("code", said.get("StatusCode", 0))
    if code != 0:
        why = one_line(str(said.get("msg", said.get("StatusMessage", ""))))
        raise NotDelivered(f"answers code {code}: {cut(why, 200)}", again=code in _TOO_MANY)


def sign(timestamp: str, secret: str) -> str:
    """Return the signature: the time and the secret are the key, and what is signed is empty."""
    key = f"{timestamp}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


def _without_mentions(text: str) -> str:
    """Return `text` so that `<at user_id="all">` in an error message calls nobody."""
    return re.sub(r"<(?=\s*/?\s*at\b)", "‹", text, flags=re.IGNORECASE)  # noqa: RUF001 - a bracket that is no tag
