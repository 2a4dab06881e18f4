"""How many completions a range of steps may bring, and how many it brought beyond that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final

_MOST_RANGES: Final = 64
"""Ranges of steps that are remembered: completions of an earlier step may come late, and count where they belong."""


@dataclass(slots=True, eq=False)
class StepRange:
    """So many steps, and what came in them from one source."""

    source: str
    first_step: int
    last_step: int
    written: int = 0
    dropped: int = 0
    said: int = 0
    """How many of those dropped are in a record."""


class Budget:
    """Divides the steps into ranges of `interval`, apart for each source of completions."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._ranges: dict[tuple[str, int], StepRange] = {}
        self._newest: dict[str, int] = {}

    def range_of(self, source: str, step: Any) -> tuple[StepRange, bool]:
        """Return the range of `step`, and whether it is a new one; an invalid step is in the newest."""
        whole = _whole(step)
        number = self._newest.get(source, 0) if whole is None else whole // self._interval
        found = self._ranges.get((source, number))
        if found is not None:
            return found, False
        first = number * self._interval
        new = self._ranges[source, number] = StepRange(source, first, first + self._interval - 1)
        self._newest[source] = number
        if len(self._ranges) > _MOST_RANGES:
            del self._ranges[next(iter(self._ranges))]
        return new, True

    def unreported(self) -> list[StepRange]:
        """Return the ranges whose latest drops are in no record."""
        return [steps for steps in self._ranges.values() if steps.dropped != steps.said]


def _whole(step: Any) -> int | None:
    """Return `step` as a number of steps; None where it is not one. A tensor is not asked: it may be on a device."""
    kind = type(step)
    if kind is int or issubclass(kind, Integral):
        return int(step)
    return int(step) if issubclass(kind, float) and math.isfinite(step) else None
