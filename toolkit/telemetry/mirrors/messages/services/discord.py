"""Discord: a text to a channel's webhook, without markup or mentions."""

from __future__ import annotations

import re
from typing import Final

import orjson

from toolkit.telemetry.mirrors.messages.message import Message
from toolkit.telemetry.mirrors.messages.post import HttpRequest

_LONGEST: Final = 2000
_NO_PREVIEW: Final = 1 << 2


def request(message: Message, secret: str | None, now: float) -> HttpRequest:  # noqa: ARG001 - the address is the secret
    """Return the request for `message`."""
    # In angle brackets a link stays a link, whatever characters it has.
    end = f"\n<{message.link}>" if message.link and len(message.link) < _LONGEST // 2 else ""
    text = _cut(_escaped(f"{message.title}\n{message.body(_LONGEST)}"), _LONGEST - len(end)) + end
    content = {"content": text, "allowed_mentions": {"parse": []}, "flags": _NO_PREVIEW}
    return HttpRequest(body=orjson.dumps(content), headers={"Content-Type": "application/json"})


def _escaped(text: str) -> str:
    """Return `text` with all markup escaped."""
    return re.sub(r"([\\*_~`|\[\]<@]|^[#>-])", r"\\\1", text, flags=re.MULTILINE)


def _cut(text: str, longest: int) -> str:
    """Return `text` truncated to `longest` characters as Discord counts them: in units of UTF-16."""
    units = text.encode("utf-16-le", "replace")
    if len(units) <= 2 * longest:
        return text
    # Not in the middle of an escape, which would turn the next character into markup.
    return units[: 2 * (longest - 2)].decode("utf-16-le", "ignore").rstrip("\\ ") + " …"
