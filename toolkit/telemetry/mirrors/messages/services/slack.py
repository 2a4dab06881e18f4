"""Slack and compatible services (Mattermost, Rocket.Chat): a text to an incoming webhook."""

from __future__ import annotations

from typing import Final

import orjson

from toolkit.telemetry.mirrors.messages.message import Message, cut, one_line
from toolkit.telemetry.mirrors.messages.post import HttpRequest, HttpResponse, NotDelivered

_LONGEST: Final = 3000


def request(message: Message, secret: str | None, now: float) -> HttpRequest:  # noqa: ARG001 - the address is the secret
    """Return the request for `message`."""
    text = _escaped(f"{message.title}\n{message.body(_LONGEST)}")
    if message.link:
        text += f"\n<{_escaped(message.link)}>"
    # Asterisks and underscores in a metric's name are not markup.
    content = {"text": text, "mrkdwn": False, "unfurl_links": False}
    return HttpRequest(
        body=orjson.dumps(content), headers={"Content-Type": "application/json; charset=utf-8"}
    )


def check(response: HttpResponse) -> None:
    """Raise if the response is JSON with an error; a webhook usually answers with the word ok."""
    try:
        content = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return
    if isinstance(content, dict) and content.get("ok") is False:
        raise NotDelivered(f"refused: {cut(one_line(str(content.get('error', ''))), 200)}", retry=False)


def _escaped(text: str) -> str:
    """Return `text` with the characters escaped that mention a channel or make a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
