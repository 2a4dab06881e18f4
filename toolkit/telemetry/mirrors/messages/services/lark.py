"""Lark (Feishu in China): a text to a group's custom bot, signed if the bot has a signing key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Any, Final

import orjson

from toolkit.telemetry.mirrors.messages.message import Message, cut, one_line
from toolkit.telemetry.mirrors.messages.post import HttpRequest, HttpResponse, NotDelivered

_LONGEST: Final = 4000
_RATE_LIMITED: Final = frozenset({9499, 11232})


def request(message: Message, secret: str | None, now: float) -> HttpRequest:
    """Return the request for `message`."""
    lines = [message.title, message.body(_LONGEST), *([message.link] if message.link else [])]
    content: dict[str, Any] = {"msg_type": "text", "content": {"text": _without_mentions("\n".join(lines))}}
    secrets: frozenset[str] = frozenset()
    if secret:
        timestamp = str(int(now))
        signature = sign(timestamp, secret)
        content |= {"timestamp": timestamp, "sign": signature}
        secrets = frozenset({signature})
    headers = {"Content-Type": "application/json; charset=utf-8"}
    return HttpRequest(body=orjson.dumps(content), headers=headers, secrets=secrets)


def check(response: HttpResponse) -> None:
    """Raise if the bot refused: its status is 200 then too, and `code` gives the reason."""
    try:
        content = orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        # Perhaps a truncated response: the message may have arrived.
        raise NotDelivered("the response is not JSON", retry=True, was_sent=True) from error
    if not isinstance(content, dict):
        raise NotDelivered("the response is not from a bot", retry=False)
    code = content.get("code", content.get("StatusCode", 0))
    if code != 0:
        why = one_line(str(content.get("msg", content.get("StatusMessage", ""))))
        raise NotDelivered(f"answered with code {code}: {cut(why, 200)}", retry=code in _RATE_LIMITED)


def sign(timestamp: str, secret: str) -> str:
    """Return the signature: an HMAC of the empty string, with the time and the secret as its key."""
    key = f"{timestamp}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


def _without_mentions(text: str) -> str:
    """Return `text` so that `<at user_id="all">` in an error message mentions no one."""
    return re.sub(r"<(?=\s*/?\s*at\b)", "‹", text, flags=re.IGNORECASE)  # noqa: RUF001 - a bracket that starts no tag
