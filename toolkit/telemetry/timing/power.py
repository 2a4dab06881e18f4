"""Energy from occasional samples of GPU power."""

from __future__ import annotations

from typing import Final

from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.untrusted import is_number

_HOLDS_S: Final = 60.0
"""How long a sample is valid: after a minute without another one the power is unknown."""

_MOST_W: Final = 20_000.0
"""No board draws more; larger readings are driver errors."""

JOULES_PER_KWH: Final = 3.6e6


def watts_in(record: Record) -> float | None:
    """Return the power of all GPUs in a system record; None if it has none."""
    found = [
        value
        for name, value in record.items()
        if name.startswith("gpu/")
        and name.endswith("/power_w")
        and is_number(value)
        and 0 <= value <= _MOST_W
    ]
    return float(sum(found)) if found else None


class PowerMeter:
    """Integrates power over one session's clock; each sample is valid until the next."""

    def __init__(self) -> None:
        self.watts: float | None = None
        """Power at the newest sample; None before the first."""
        self._until = 0.0
        self._at = 0.0
        self._joules = 0.0
        self._known_s = 0.0

    def sample(self, at: float, watts: float) -> None:
        """Use `watts` from `at` on."""
        self._joules, self._known_s = self.peek(at)
        self._at = max(self._at, at)
        self.watts = watts
        self._until = at + _HOLDS_S

    def peek(self, at: float) -> tuple[float, float]:
        """Return the joules from the last `take` to `at`, and the seconds for which power is known."""
        if self.watts is None:
            return self._joules, self._known_s
        known_s = max(0.0, min(at, self._until) - self._at)
        return self._joules + self.watts * known_s, self._known_s + known_s

    def take(self, at: float) -> tuple[float, float]:
        """Return the same as `peek`, and start over at `at`."""
        joules, known_s = self.peek(at)
        self._joules = self._known_s = 0.0
        self._at = max(self._at, at)
        return joules, known_s
