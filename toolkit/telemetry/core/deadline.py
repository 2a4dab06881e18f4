"""Until when an answer is worth computing: a long computation asks between its parts, and its caller may cancel it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")


class Deadline:
    """The end of one computation: so many seconds after it began, or when it is cancelled."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = math.inf

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._end

    def cancel(self) -> None:
        """End the computation now, also one that has not begun; any thread may call this."""
        self._seconds = self._end = -math.inf

    def run(self, compute: Callable[[], _T]) -> _T:
        """Return what `compute` returns. In this thread `is_over` asks this deadline meanwhile."""
        self._end = time.monotonic() + self._seconds
        before = _CURRENT.set(self)
        try:
            return compute()
        finally:
            _CURRENT.reset(before)


_CURRENT: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def is_over() -> bool:
    """Return whether the deadline of what this thread computes has passed; never without one."""
    current = _CURRENT.get()
    return current is not None and current.is_over
