"""The services that take messages: for each a function that returns the request for a message.

To add one, add its function and its line in `SERVICES` here, and its name in `RECEIVERS` of
`toolkit/telemetry/privacy/text_tree.py`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from email.header import Header
from html import escape
from typing import Any, Final, NamedTuple

import orjson

from toolkit.telemetry.core.formatting import cut, one_line
from toolkit.telemetry.core.outbox import MOST_ATTEMPTS, NotSentError
from toolkit.telemetry.mirrors.messages.message import Message

HttpRequest = tuple[bytes, dict[str, str]]
"""The body of a POST and its headers."""


class Service(NamedTuple):
    """How requests to one service are built and its responses are read."""

    request: Callable[[Message, str | None], HttpRequest]
    """Called for each attempt with a message and the secret."""
    check: Callable[[bytes], None] = lambda _: None
    """Called with a response of status 200 to 299; raises `NotSentError` if it is a refusal all the same."""
    takes_secret: bool = True
    """Whether `secret_env` has a meaning: a token, or a key to sign with."""
    has_secret_address: bool = False
    """Whether anyone who knows an address of it can post there."""


def _json(content: Mapping[str, Any], **headers: str) -> HttpRequest:
    return orjson.dumps(content), {"Content-Type": "application/json; charset=utf-8", **headers}


def _content(answer: bytes) -> Mapping[str, Any]:
    try:
        content = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def _short(said: object) -> str:
    return cut(one_line(str(said)), 200)


def _cut_encoded(text: str, encoding: str, most_bytes: int) -> str:
    """Return `text`, truncated to what `encoding` has in `most_bytes`; not in the middle of an escape."""
    data = text.encode(encoding, "replace")
    end = " …"
    if len(data) <= most_bytes:
        return data.decode(encoding)
    return data[: most_bytes - len(end.encode(encoding))].decode(encoding, "ignore").rstrip("\\ ") + end


def lark(message: Message, secret: str | None) -> HttpRequest:
    """Return a text for a group's custom bot, signed if the bot has a signing key."""
    text = "\n".join(filter(None, (message.title, message.body(4000), message.link)))
    # An error message may have `<at user_id="all">` in it.
    text = re.sub(r"<(?=\s*/?\s*at\b)", "‹", text, flags=re.IGNORECASE)  # noqa: RUF001 - a bracket that starts no tag
    content: dict[str, Any] = {"msg_type": "text", "content": {"text": text}}
    if secret:
        timestamp = str(int(time.time()))
        digest = hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
        content |= {"timestamp": timestamp, "sign": base64.b64encode(digest).decode()}
    return _json(content)


_RATE_LIMITED: Final = (9499, 11232)


def _check_lark(answer: bytes) -> None:
    content = _content(answer)
    code = content.get("code", content.get("StatusCode"))
    if code is None:
        # Perhaps a truncated response: the message may have arrived.
        raise NotSentError("the response is not from a bot", most_attempts=2)
    if code != 0:
        why = content.get("msg", content.get("StatusMessage", ""))
        most_attempts = MOST_ATTEMPTS if code in _RATE_LIMITED else 1
        raise NotSentError(f"answered with code {_short(code)}: {_short(why)}", most_attempts=most_attempts)


def slack(message: Message, _secret: str | None) -> HttpRequest:
    """Return a text for an incoming webhook, also of Mattermost and Rocket.Chat."""
    text = escape(f"{message.title}\n{message.body(3000)}", quote=False)
    if message.link:
        text += f"\n<{escape(message.link, quote=False)}>"
    # Asterisks and underscores in a metric's name are not markup.
    return _json({"text": text, "mrkdwn": False, "unfurl_links": False})


def _check_slack(answer: bytes) -> None:
    """Raise if the response is JSON with an error; a webhook usually answers with the word ok."""
    content = _content(answer)
    if content.get("ok") is False:
        raise NotSentError(f"refused: {_short(content.get('error', ''))}", most_attempts=1)


_MOST_UNITS: Final = 2000
"""Of UTF-16, in which Discord counts."""
_NO_PREVIEW: Final = 1 << 2


def discord(message: Message, _secret: str | None) -> HttpRequest:
    """Return a text for a channel's webhook, without markup or mentions."""
    # In angle brackets a link stays a link, whatever characters it has.
    end = f"\n<{message.link}>" if message.link and len(message.link) < _MOST_UNITS // 2 else ""
    text = f"{message.title}\n{message.body(_MOST_UNITS)}"
    text = re.sub(r"([\\*_~`|\[\]<@]|^[#>-])", r"\\\1", text, flags=re.MULTILINE)
    text = _cut_encoded(text, "utf-16-le", 2 * (_MOST_UNITS - len(end))) + end
    return _json({"content": text, "allowed_mentions": {"parse": []}, "flags": _NO_PREVIEW})


_MOST_BYTES: Final = 4000
"""A longer text becomes an attachment that phones do not show."""
_TAGS: Final = {
    "start": "rocket",
    "finish": "white_check_mark",
    "failure": "rotating_light",
    "stall": "hourglass",
    "finding": "warning",
    "milestone": "tada",
}


def ntfy(message: Message, secret: str | None) -> HttpRequest:
    """Return a text for a topic, with title, priority and tags in headers."""
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Title": encoded_words(cut(one_line(message.title), 200)),
        # `Priority` alone is a header of HTTP itself, which some proxies set or remove.
        "X-Priority": str(message.urgency),
        "X-Tags": _TAGS.get(message.occasion, "memo"),
        **({"X-Click": message.link} if message.link else {}),
        **({"Authorization": f"Bearer {secret}"} if secret else {}),
    }
    end = f"\n{message.link}" if message.link else ""
    text = _cut_encoded(message.body(_MOST_BYTES), "utf-8", _MOST_BYTES - len(end))
    return f"{text}{end}".encode(), headers


def encoded_words(text: str) -> str:
    """Return one line of text for a header: as encoded words of RFC 2047 if it is not plain ASCII."""
    if text.isascii() and "=?" not in text:
        return text
    return Header(text, "utf-8", maxlinelen=75).encode(linesep="")


def webhook(message: Message, secret: str | None) -> HttpRequest:
    """Return the message as an object with fixed keys, signed if there is a secret.

    Keys may be added; any other change raises `version`.
    """
    state = message.run_state
    content = {
        "version": 1,
        "id": message.id,
        "occasion": message.occasion,
        "time": message.time,
        "run": {
            "id": state.run_id,
            "name": state.run_name,
            "session": state.session,
            "project": state.project,
            "description": state.description,
        },
        **{
            name: getattr(state, name)
            for name in ("status", "step", "max_steps", "train_loss", "lr", "eta_s")
        },
        "title": message.title,
        "text": message.body(8000),
        "link": message.link,
        "tells_of": message.message_count,
        "details": dict(message.details),
    }
    body, headers = _json(content, **{"X-Telemetry-Id": message.id})
    if secret:
        timestamp = str(int(time.time()))
        signature = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers |= {"X-Telemetry-Timestamp": timestamp, "X-Telemetry-Signature": f"sha256={signature}"}
    return body, headers


SERVICES: Final = {
    "lark": Service(lark, _check_lark, has_secret_address=True),
    "slack": Service(slack, _check_slack, takes_secret=False, has_secret_address=True),
    "discord": Service(discord, takes_secret=False, has_secret_address=True),
    "ntfy": Service(ntfy),
    "webhook": Service(webhook),
}
ALIASES: Final = {"feishu": "lark"}
"""What `to:` may also call a service."""
