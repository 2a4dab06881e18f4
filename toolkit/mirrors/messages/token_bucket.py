"""How many messages a receiver may be sent now."""

from __future__ import annotations


class TokenBucket:
    """So many messages a minute: that many at once after a calm, and then one as each becomes allowed."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._most = float(per_minute)
        self._per_second = per_minute / 60.0
        self._left = self._most
        self._at = now

    def left(self, now: float) -> int:
        """Return how many may be sent at `now`, by a monotonic clock."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        return int(self._left + 1e-9)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next one may be sent."""
        return 0.0 if self.left(now) >= 1 else (1.0 - self._left) / self._per_second

    def use(self, now: float) -> None:
        """Note that one is sent at `now`; where none was allowed, the next waits the longer."""
        self.left(now)
        self._left = max(-self._most, self._left - 1.0)
