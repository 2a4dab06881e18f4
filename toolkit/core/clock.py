"""The clocks of the system, and one that tests can set."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The two clocks a record is stamped with."""

    @property
    def wall(self) -> Callable[[], float]:
        """Seconds since the epoch; may jump when the machine's clock is set."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds from an arbitrary moment; never goes back, and is what durations are measured with."""


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
