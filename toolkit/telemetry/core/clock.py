"""The clocks of the system, one that tests can set, and wall times as monotonic ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol


class Clock(Protocol):
    """The two clocks a record is stamped with."""

    @property
    def wall(self) -> Callable[[], float]:
        """Seconds since the epoch; may jump when the machine's clock is set."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds since an arbitrary time; never goes back, and is what durations are measured with."""


class SystemClock:
    """The machine's own clocks."""

    # The built-in functions themselves, so that reading the time costs no Python call.
    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that only `advance` and `set_wall` move, for tests."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._monotonic = 1000.0

    def wall(self) -> float:
        """Return the wall time that was set."""
        return self._wall

    def monotonic(self) -> float:
        """Return the monotonic time that was reached."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self._wall += seconds
        self._monotonic += seconds

    def set_wall(self, wall: float) -> None:
        """Set the wall clock, as an administrator or NTP would; the monotonic clock does not notice."""
        self._wall = wall


class Countdown:
    """The seconds that something may take, from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float:
        """Return a share of what is left; 0 once it is over."""
        return max(0.0, share * (self._end - time.monotonic()))

    def shorten(self, seconds: float) -> None:
        """Have it end in `seconds` at the latest."""
        self._end = min(self._end, time.monotonic() + seconds)


_ASK_EVERY_S: Final = 0.002


def wait_until(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Wait, at most `timeout_s`, until `is_so` returns true; return whether it does.

    It takes no lock: a signal handler may interrupt it, and wait for the same.
    """
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if (left_s := deadline - time.monotonic()) <= 0.0:
            return False
        time.sleep(min(left_s, _ASK_EVERY_S))
    return True


SET_S: Final = 0.2
"""A synchronised clock drifts by less than this; a larger jump means that it was set, or that the machine slept."""


class WallTimes:
    """Remembers the offset of the wall clock to the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._wall = clock.wall
        self._monotonic = clock.monotonic
        self.ahead = self._wall() - self._monotonic()
        """Add this to a monotonic time to get the wall time, as of the last `look`."""

    def look(self) -> None:
        """Check whether the wall clock was set since the last call."""
        ahead = self._wall() - self._monotonic()
        if abs(ahead - self.ahead) > SET_S:
            self.ahead = ahead

    def monotonic_of(self, wall_time: float) -> float:
        """Return the monotonic time at which the wall clock showed `wall_time`; never one in the future."""
        self.look()
        return min(wall_time - self.ahead, self._monotonic())


def wall_time_of(monotonic: float) -> float:
    """Return the wall time of a monotonic time, by the current offset of the clocks."""
    return time.time() - (time.monotonic() - monotonic)
