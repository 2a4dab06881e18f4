"""The request that a service is sent, its response, and the error where a message was not delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolkit.mirrors.messages.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """The body of a POST and its headers."""

    body: bytes
    headers: Mapping[str, str]
    secrets: frozenset[str] = field(default=frozenset())
    """Texts in it that must not be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The response, as far as it was read."""

    status: int
    body: bytes = b""
    retry_after_s: float | None = None
    """How long the service asks us to wait."""


class NotDelivered(Exception):  # noqa: N818 - it says what happened
    """A message was not delivered; the text says why, without secrets."""

    def __init__(
        self, reason: str, *, retry: bool, was_sent: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.retry = retry
        """Whether a retry may help."""
        self.was_sent = was_sent
        """Whether all of it was sent, so that it may have arrived."""
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How requests to one service are built and its responses are read."""

    request: Callable[[Message, str | None, float], HttpRequest]
    """Called for each attempt with a message, the secret and the wall time, which some services sign."""
    check: Callable[[HttpResponse], None]
    """Called with a response of status 200 to 299; raises `NotDelivered` if it is a refusal all the same."""
