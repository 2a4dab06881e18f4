"""Wall times as moments of the monotonic clock, also where the wall clock was set, or the machine slept, in between."""

from __future__ import annotations

import math
import time
from typing import Final

from toolkit.core.clock import Clock

SET_S: Final = 0.2
"""A wall clock that is kept in time wanders by less than this; one that goes further was set, or the machine slept."""
_MOST: Final = 64


class WallTimes:
    """Remembers by how much the wall clock was ahead of the monotonic one, and since when."""

    def __init__(self, clock: Clock) -> None:
        self._wall = clock.wall
        self._monotonic = clock.monotonic
        self.ahead = self._wall() - self._monotonic()
        """What turns a moment of the monotonic clock into wall time, as it was when it was last looked at."""
        self._since: list[tuple[float, float]] = [(-math.inf, self.ahead)]
        self._looked_at = self._monotonic()

    def look(self) -> None:
        """See whether the wall clock was set since the last look."""
        now = self._monotonic()
        ahead = self._wall() - now
        if abs(ahead - self.ahead) > SET_S:
            self.ahead = ahead
            # At some moment since the last look.
            self._since.append((self._looked_at, ahead))
            if len(self._since) > _MOST:
                del self._since[1]
        self._looked_at = now

    def moment_of(self, wall_time: float) -> float:
        """Return the moment that the wall clock showed as `wall_time`, by how it was set then; never one to come."""
        self.look()
        now = until = self._monotonic()
        for since, ahead in reversed(self._since):
            if since <= wall_time - ahead <= until:
                return wall_time - ahead
            # Not while the clock was set so; perhaps as it was set before.
            until = min(until, since)
        # It never showed that. What is to come by how it is set now is now; else it is where it comes nearest.
        return now if wall_time - self.ahead > now else until


def wall_time_of(moment: float) -> float:
    """Return the wall time, by how the machine's clock is set now, of a moment of its monotonic clock."""
    return time.time() - (time.monotonic() - moment)
