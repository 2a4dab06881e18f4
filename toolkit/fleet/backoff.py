"""When to try again after a failure: after one second first, then less and less often, never all at the same time."""

from __future__ import annotations

import random
import time
from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0


class Backoff:
    """The pause after failures."""

    def __init__(self) -> None:
        self._pause_s = FIRST_S
        self._not_before = 0.0
        self.reason: str | None = None
        """The last failure; None after a success."""

    @property
    def is_ready(self) -> bool:
        """Whether it is time to try."""
        return time.monotonic() >= self._not_before

    def failed(self, reason: str) -> None:
        """Wait before the next try: a second, then twice as long each time, up to a minute."""
        self.reason = reason
        self._not_before = time.monotonic() + self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, LONGEST_S)

    def succeeded(self) -> None:
        """Start again with short pauses."""
        self._pause_s = FIRST_S
        self._not_before = 0.0
        self.reason = None
