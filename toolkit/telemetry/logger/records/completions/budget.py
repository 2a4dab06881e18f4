"""How many completions a stretch of steps may bring, and how many it brought beyond that."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, Final

_MOST_STRETCHES: Final = 64
"""Stretches that are remembered: completions of an earlier step may come late, and count where they belong."""


class Stretch:
    """So many steps, and what came in them from one source."""

    __slots__ = ("dropped", "first_step", "last_step", "said", "source", "written")

    def __init__(self, source: str, first_step: int, last_step: int) -> None:
        self.source = source
        self.first_step = first_step
        self.last_step = last_step
        self.written = 0
        self.dropped = 0
        self.said = 0
        """How many of those dropped are in a record."""


class Budget:
    """Divides the steps into stretches of `interval`, apart for each source of completions."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._stretches: dict[tuple[str, int], Stretch] = {}
        self._newest: dict[str, int] = {}

    def stretch_of(self, source: str, step: Any) -> tuple[Stretch, bool]:
        """Return the stretch of `step`, and whether it is a new one; an invalid step is in the newest."""
        whole = _whole(step)
        number = self._newest.get(source, 0) if whole is None else whole // self._interval
        found = self._stretches.get((source, number))
        if found is not None:
            return found, False
        first = number * self._interval
        new = self._stretches[source, number] = Stretch(source, first, first + self._interval - 1)
        self._newest[source] = number
        if len(self._stretches) > _MOST_STRETCHES:
            del self._stretches[next(iter(self._stretches))]
        return new, True

    def untold(self) -> list[Stretch]:
        """Return the stretches whose latest drops are in no record."""
        return [stretch for stretch in self._stretches.values() if stretch.dropped != stretch.said]


def _whole(step: Any) -> int | None:
    """Return `step` as a number of steps; None where it is not one. A tensor is not asked: it may be on a device."""
    kind = type(step)
    if kind is int or issubclass(kind, Integral):
        return int(step)
    return int(step) if issubclass(kind, float) and math.isfinite(step) else None
