"""What is sent to a service, what it answers, and what is to be said of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolkit.mirrors.messages.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The body of a POST and its headers."""

    body: bytes
    headers: Mapping[str, str]
    secrets: frozenset[str] = field(default=frozenset())
    """Texts in it that are not for showing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, as far as it was read."""

    status: int
    body: bytes = b""
    retry_after_s: float | None = None
    """How long the service asks to be left alone."""


class NotDelivered(Exception):  # noqa: N818 - it says what happened
    """A message did not get there; the text says why, without secrets."""

    def __init__(
        self, reason: str, *, again: bool, was_sent: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.again = again
        """Whether it may help to try again."""
        self.was_sent = was_sent
        """Whether all of it was sent, so that it may have arrived."""
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How one service is spoken to."""

    request: Callable[[Message, str | None, float], Request]
    """Called with a message, the secret and the wall time, for each try anew: some sign the time."""
    check: Callable[[Answer], None]
    """Called with an answer of 200 to 299; raises `NotDelivered` where it says no all the same."""
