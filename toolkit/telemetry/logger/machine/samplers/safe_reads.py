"""Readings that fail one by one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.sampler import Value

REST_ROUNDS: Final = 60
"""How many rounds a reading that failed is left alone: a broken one costs nothing and is found again when it heals."""


def plausible(value: object, highest: float) -> float | int | None:
    """Return a measurement that can be one; None if it is negative, above `highest`, NaN or not a number.

    Some drivers answer -1, 255 % or 2**64 - 1 for "I do not know": better no value than one that is drawn as true.
    """
    if type(value) is not int and type(value) is not float:
        return None
    return value if 0 <= value <= highest else None


class SafeReads:
    """Takes readings one by one, and keeps a failing one from taking the others along.

    A failure is given to the guard once, then the reading rests; one that the hardware does not offer
    (`unsupported`) is never asked for again and is not a failure.
    """

    def __init__(self, guard: Guard, *, unsupported: tuple[type[Exception], ...] = ()) -> None:
        self._guard = guard
        self._unsupported = unsupported
        self._resting: dict[str, int] = {}

    def take(
        self,
        into: dict[str, Value],
        name: str,
        read: Callable[[], Value | None],
        *,
        source: str | None = None,
    ) -> None:
        """Put the value of `read` into `into` under `name`, unless it fails, is None, or is no finite number.

        Failures are counted under `source`, so that one lost device is one kind of trouble, not eight.
        """
        rounds_left = self._resting.get(name, 0)
        if rounds_left:
            self._resting[name] = rounds_left - 1
            return
        self._resting[name] = REST_ROUNDS
        with self._guard.catch(f"reading {source or name}"):
            try:
                value = read()
            except self._unsupported:
                self._resting[name] = sys.maxsize
                return
            self._resting[name] = 0
            if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
                into[name] = value
