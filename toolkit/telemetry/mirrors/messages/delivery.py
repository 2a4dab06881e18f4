"""Deliver one message to one receiver, with retries."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.core.outbox import backoff_s
from toolkit.telemetry.mirrors.messages.message import Message, cut, one_line
from toolkit.telemetry.mirrors.messages.post import HttpResponse, NotDelivered, post
from toolkit.telemetry.mirrors.messages.receiver import Receiver
from toolkit.telemetry.mirrors.messages.services import SERVICES

MOST_ATTEMPTS: Final = 5
REQUEST_TIMEOUT_S: Final = 10.0
LONGEST_WAIT_S: Final = 120.0
"""Even if a service asks for a longer wait."""
_MOST_UNANSWERED: Final = 2
"""A message that was sent but got no response may have arrived: it is sent once more at most."""
_FIRST_PAUSE_S: Final = 1.0
_GROWTH: Final = 3.0

DELIVERED: Final = "delivered"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The outcome of one message."""

    receiver: str
    service: str
    message: Message
    status: str
    attempts: int
    seconds: float
    reason: str | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a `message` record."""
        message = self.message
        return {
            **({} if message.run_state.step is None else {"global_step": message.run_state.step}),
            "receiver": self.receiver,
            "service": self.service,
            "occasion": message.occasion,
            "status": self.status,
            "attempts": self.attempts,
            "seconds": round(self.seconds, 3),
            **({} if self.reason is None else {"reason": self.reason}),
            **({} if message.message_count == 1 else {"tells_of": message.message_count}),
            "about": list(message.about),
        }


def deliver(
    receiver: Receiver,
    message: Message,
    *,
    pause: Callable[[float], bool],
    time_left: Callable[[], float] = lambda: REQUEST_TIMEOUT_S,
    on_attempt: Callable[[int], None] = lambda _: None,
    most_attempts: int = MOST_ATTEMPTS,
    tls: ssl.SSLContext | None = None,
) -> Delivery:
    """Send `message`, with a limited number of retries; `pause(seconds)` waits and says whether to continue."""
    began = time.monotonic()
    attempts, unanswered = 0, 0
    while True:
        attempts += 1
        on_attempt(attempts)
        try:
            _attempt(receiver, message, min(REQUEST_TIMEOUT_S, max(0.05, time_left())), tls)
            status, reason = DELIVERED, None
            break
        except NotDelivered as error:
            status, reason = FAILED, receiver.conceal(f"{receiver.address.shown}: {error}")
            unanswered += error.was_sent
            if not error.retry or attempts >= most_attempts or unanswered >= _MOST_UNANSWERED:
                break
            if not pause(_pause_s(attempts, error.retry_after_s)):
                break
    return Delivery(
        receiver=receiver.name,
        service=receiver.service,
        message=message,
        status=status,
        attempts=attempts,
        seconds=time.monotonic() - began,
        reason=reason,
    )


def _attempt(receiver: Receiver, message: Message, timeout_s: float, tls: ssl.SSLContext | None) -> None:
    service = SERVICES[receiver.service]
    request = service.request(message, receiver.secret, time.time())
    response = post(receiver.address, request, timeout_s=timeout_s, tls=tls)
    if not 200 <= response.status < 300:
        raise _refusal(response)
    service.check(response)


def _refusal(response: HttpResponse) -> NotDelivered:
    status = response.status
    if 300 <= status < 400:
        return NotDelivered(f"answered {status}, a redirect; redirects are not followed", retry=False)
    body = cut(one_line(response.body.decode("utf-8", "replace")), 200)
    return NotDelivered(
        f"answered {status}{f': {body}' if body else ''}",
        retry=status in (408, 425, 429) or status >= 500,
        retry_after_s=response.retry_after_s,
    )


def _pause_s(attempts: int, asked_for_s: float | None) -> float:
    """Return how long to wait: what the service asks for, else longer after each attempt."""
    if asked_for_s is not None:
        return min(LONGEST_WAIT_S, asked_for_s + backoff_s(1, first_s=0.2, longest_s=1.0, spread=0.5))
    return backoff_s(attempts, first_s=_FIRST_PAUSE_S, longest_s=LONGEST_WAIT_S, growth=_GROWTH, spread=0.5)
