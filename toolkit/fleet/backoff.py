"""Failures: when to try again, and what is said about them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from toolkit.core.outbox import backoff_s

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
_RECENT_S: Final = 300.0
_MOST_SAID: Final = 10_000


class Backoff:
    """The pause after failures: a second, then twice as long each time, up to a minute."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0
        self.reason: str | None = None
        """The last failure; None after a success."""

    @property
    def is_ready(self) -> bool:
        """Whether it is time to try."""
        return time.monotonic() >= self._not_before

    def failed(self, reason: str) -> None:
        """Wait before the next try."""
        self.reason = reason
        self._failures += 1
        pause_s = backoff_s(self._failures, first_s=FIRST_S, longest_s=LONGEST_S, spread=0.5)
        self._not_before = time.monotonic() + pause_s

    def succeeded(self) -> None:
        """Start again with short pauses."""
        self._failures, self._not_before, self.reason = 0, 0.0, None


@dataclass(slots=True)
class Failures:
    """What failed since the start."""

    errors: int = 0
    last_error: str = ""
    failed_at: float = -math.inf
    """When that was, by the monotonic clock."""
    _said: set[str] = field(default_factory=set, repr=False)

    @property
    def recent_error(self) -> str:
        """The last failure if it is not over: what goes on failing is tried again within minutes."""
        return self.last_error if time.monotonic() - self.failed_at < _RECENT_S else ""

    def add(self, reason: str, say: Callable[[str], None] | None) -> None:
        """Count a failure; the first of its kind is said."""
        self.errors += 1
        self.last_error, self.failed_at = reason, time.monotonic()
        if len(self._said) >= _MOST_SAID:
            self._said.clear()
        if reason not in self._said and say is not None:
            self._said.add(reason)
            say(reason)
