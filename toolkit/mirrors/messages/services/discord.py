"""Discord: a text to a channel's webhook, that calls nobody."""

from __future__ import annotations

import re
from typing import Final

import orjson

from toolkit.mirrors.messages.message import Message
from toolkit.mirrors.messages.transport_types import Answer, Request

_LONGEST: Final = 2000
_NO_PREVIEW: Final = 1 << 2


def request(message: Message, secret: str | None, now: float) -> Request:  # noqa: ARG001 - the address is the secret
    """Return the request for `message`."""
    # In pointed brackets a link is a link, whatever letters it has.
    end = f"\n<{message.link}>" if message.link and len(message.link) < _LONGEST // 2 else ""
    text = _cut(_escaped(f"{message.title}\n{message.body(_LONGEST)}"), _LONGEST - len(end)) + end
    content = {"content": text, "allowed_mentions": {"parse": []}, "flags": _NO_PREVIEW}
    return Request(body=orjson.dumps(content), headers={"Content-Type": "application/json"})


def check(answer: Answer) -> None:
    """Accept it: Discord says no by its status."""


def _escaped(text: str) -> str:
    """Return `text` so that nothing in it is markup."""
    return re.sub(r"([\\*_~`|\[\]<@]|^[#>-])", r"\\\1", text, flags=re.MULTILINE)


def _cut(text: str, longest: int) -> str:
    """Return `text` of so many letters as Discord counts them: one beyond the first 65,536 counts as two."""
    units = text.encode("utf-16-le", "replace")
    if len(units) <= 2 * longest:
        return text
    # Not in the middle of an escape, which would bring its letter to life.
    return units[: 2 * (longest - 2)].decode("utf-16-le", "ignore").rstrip("\\ ") + " …"
