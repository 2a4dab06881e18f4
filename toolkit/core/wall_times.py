"""Converts wall times to monotonic times, even if the wall clock was set or the machine slept in between."""

from __future__ import annotations

import math
import time
from typing import Final

from toolkit.core.clock import Clock

SET_S: Final = 0.2
"""A synchronised clock drifts by less than this; a larger jump means that it was set, or that the machine slept."""
_MOST: Final = 64


class WallTimes:
    """Remembers the offset of the wall clock to the monotonic clock, and when it changed."""

    def __init__(self, clock: Clock) -> None:
        self._wall = clock.wall
        self._monotonic = clock.monotonic
        self.ahead = self._wall() - self._monotonic()
        """Add this to a monotonic time to get the wall time, as of the last `look`."""
        self._since: list[tuple[float, float]] = [(-math.inf, self.ahead)]
        self._looked_at = self._monotonic()

    def look(self) -> None:
        """Check whether the wall clock was set since the last call."""
        now = self._monotonic()
        ahead = self._wall() - now
        if abs(ahead - self.ahead) > SET_S:
            self.ahead = ahead
            # At some time since the last call.
            self._since.append((self._looked_at, ahead))
            if len(self._since) > _MOST:
                del self._since[1]
        self._looked_at = now

    def moment_of(self, wall_time: float) -> float:
        """Return the monotonic time at which the wall clock showed `wall_time`; never one in the future."""
        self.look()
        now = until = self._monotonic()
        for since, ahead in reversed(self._since):
            if since <= wall_time - ahead <= until:
                return wall_time - ahead
            # Not with this offset; perhaps with the one before.
            until = min(until, since)
        # It never showed that: a time in the future becomes now, any other the nearest one.
        return now if wall_time - self.ahead > now else until


def wall_time_of(moment: float) -> float:
    """Return the wall time of a monotonic time, by the current offset of the clocks."""
    return time.time() - (time.monotonic() - moment)
