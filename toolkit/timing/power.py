"""Energy, from now and then a sample of what the GPUs draw."""

from __future__ import annotations

from typing import Final

from toolkit.runfolder.records import Record

_HOLDS_S: Final = 60.0
"""For how long a sample is believed: after a minute without another one nobody knows."""

_MOST_W: Final = 20_000.0
"""No board draws more; a driver that says so says nonsense."""

JOULES_PER_KWH: Final = 3.6e6


def watts_in(record: Record) -> float | None:
    """Return what all GPUs of a system record draw together; None where it does not say."""
    found = [
        value
        for name, value in record.items()
        if name.startswith("gpu/")
        and name.endswith("/power_w")
        and (type(value) is float or type(value) is int)
        and 0 <= value <= _MOST_W
    ]
    return float(sum(found)) if found else None


class PowerMeter:
    """Adds up energy along one session's clock; between two samples the older one holds."""

    __slots__ = ("_at", "_joules", "_known_s", "_until", "watts")

    def __init__(self) -> None:
        self.watts: float | None = None
        """What was drawn at the newest sample; None before the first."""
        self._until = 0.0
        self._at = 0.0
        self._joules = 0.0
        self._known_s = 0.0

    def sample(self, at: float, watts: float) -> None:
        """Go on with `watts` from the moment `at`."""
        self._joules, self._known_s = self.peek(at)
        self._at = max(self._at, at)
        self.watts = watts
        self._until = at + _HOLDS_S

    def peek(self, at: float) -> tuple[float, float]:
        """Return joules from the last `take` to the moment `at`, and for how many of these seconds they are known."""
        if self.watts is None:
            return self._joules, self._known_s
        known_s = max(0.0, min(at, self._until) - self._at)
        return self._joules + self.watts * known_s, self._known_s + known_s

    def take(self, at: float) -> tuple[float, float]:
        """Return what `peek` does, and begin anew at `at`."""
        joules, known_s = self.peek(at)
        self._joules = self._known_s = 0.0
        self._at = max(self._at, at)
        return joules, known_s
