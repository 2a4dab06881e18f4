"""Any address that takes JSON: the message as an object with fixed keys, signed if there is a secret."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import orjson

from toolkit.telemetry.mirrors.messages.message import Message
from toolkit.telemetry.mirrors.messages.post import HttpRequest

VERSION: Final = 1
"""Version of the object: keys may be added, any other change raises the number."""
_LONGEST: Final = 8000


def request(message: Message, secret: str | None, now: float) -> HttpRequest:
    """Return the request for `message`."""
    run_state = message.run_state
    content = {
        "version": VERSION,
        "id": message.id,
        "occasion": message.occasion,
        "time": message.time,
        "run": {
            "id": run_state.run_id,
            "name": run_state.run_name,
            "session": run_state.session,
            "project": run_state.project,
            "description": run_state.description,
        },
        "status": run_state.status,
        "step": run_state.step,
        "max_steps": run_state.max_steps,
        "train_loss": run_state.train_loss,
        "lr": run_state.lr,
        "eta_s": run_state.eta_s,
        "title": message.title,
        "text": message.body(_LONGEST),
        "link": message.link,
        "tells_of": message.message_count,
        "details": dict(message.details),
    }
    body = orjson.dumps(content)
    headers = {"Content-Type": "application/json", "X-Telemetry-Id": message.id}
    secrets: frozenset[str] = frozenset()
    if secret:
        timestamp = str(int(now))
        signature = sign(timestamp, body, secret)
        headers |= {"X-Telemetry-Timestamp": timestamp, "X-Telemetry-Signature": f"sha256={signature}"}
        secrets = frozenset({signature})
    return HttpRequest(body=body, headers=headers, secrets=secrets)


def sign(timestamp: str, body: bytes, secret: str) -> str:
    """Return the HMAC-SHA256 of the time, a dot and the body as a hexadecimal string, with the secret as its key."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
