"""What reading a file of another program may take: something for any file, and more the larger it is."""

from __future__ import annotations

import threading
import time
from typing import Final

_TEXT: Final = 8 * 1024**2
_SECONDS: Final = 1.2
_BYTES_PER_SECOND: Final = 2 * 1024**2
_BYTES_PER_SECOND_AGAIN: Final = 50 * 1024**2
_SECONDS_AGAIN: Final = 0.005
_SHARE: Final = 0.1
"""Of the time that passes: a file that a page looks at again and again is never used up for good."""
_CHECK_EVERY: Final = 1024


class BudgetError(OSError):
    """A file that would take far more than its size explains; the message says of what."""


class Budget:
    """Counts while a file is read. Seconds are those of the processor in this thread, however busy the machine."""

    def __init__(self, size: int, *, values: int = 0) -> None:
        self._values = values
        self._text = _TEXT + 4 * size
        self._seconds = self._most_seconds = _SECONDS + size / _BYTES_PER_SECOND
        self._at = time.monotonic()
        self._check_at = values - _CHECK_EVERY
        self._local = threading.local()
        self.begin()

    def begin(self, size: int = 0) -> None:
        """Begin to count the time, again if `size` says what has to be looked through.

        Raises:
            BudgetError: nothing is left.
        """
        before, self._at = self._at, time.monotonic()
        if self._seconds < self._most_seconds:
            self._seconds = min(self._most_seconds, self._seconds + _SHARE * (self._at - before))
        self._seconds += _SECONDS_AGAIN + size / _BYTES_PER_SECOND_AGAIN
        self._text += 4 * size
        self._local.began = time.thread_time()
        self.check_clock()

    def end(self) -> None:
        """Take off the time since it began."""
        self._seconds -= time.thread_time() - self._local.began
        self._local.began = time.thread_time()

    def is_over(self) -> bool:
        """Return whether the time is over."""
        began: float = self._local.began
        return time.thread_time() - began > self._seconds

    def spend(self, values: int, text: int) -> None:
        """Count values and characters.

        Raises:
            BudgetError: they are too many, or it takes too long.
        """
        self._values -= values
        self._text -= text
        if self._values < 0 or self._text < 0:
            raise BudgetError("it holds far more than its size explains")
        if self._values <= self._check_at:
            self._check_at = self._values - _CHECK_EVERY
            self.check_clock()

    def check_clock(self) -> None:
        """Raise BudgetError if it took too long."""
        if self.is_over():
            raise BudgetError("it takes far longer than its size explains")
