"""Slack, and what speaks like it (Mattermost, Rocket.Chat): a text to an incoming webhook."""

from __future__ import annotations

from typing import Final

import orjson

from toolkit.mirrors.messages.formatting import cut, one_line
from toolkit.mirrors.messages.message import Message
from toolkit.mirrors.messages.transport_types import Answer, NotDelivered, Request

_LONGEST: Final = 3000


def request(message: Message, secret: str | None, now: float) -> Request:  # noqa: ARG001 - the address is the secret
    """Return the request for `message`."""
    text = _escaped(f"{message.title}\n{message.body(_LONGEST)}")
    if message.link:
        text += f"\n<{_escaped(message.link)}>"
    # Stars and underscores in a metric's name are no markup.
    content = {"text": text, "mrkdwn": False, "unfurl_links": False}
    return Request(body=orjson.dumps(content), headers={"Content-Type": "application/json; charset=utf-8"})


def check(answer: Answer) -> None:
    """Raise where the answer is JSON that says no; a webhook's usual answer is the word ok."""
    try:
        said = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return
    if isinstance(said, dict) and said.get("ok") is False:
        raise NotDelivered(f"refuses: {cut(one_line(str(said.get('error', ''))), 200)}", again=False)


def _escaped(text: str) -> str:
    """Return `text` without the brackets that call a channel or make a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
