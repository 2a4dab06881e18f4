"""What reading a file of another program may take: something for any file, and more the larger it is."""

from __future__ import annotations

import time
from typing import Final

_VALUES: Final = 200_000
_BYTES_PER_VALUE: Final = 4
_TEXT: Final = 8 * 1024**2
_SECONDS: Final = 1.0
_BYTES_PER_SECOND: Final = 4 * 1024**2
_LOOK_EVERY: Final = 1024


class BudgetError(OSError):
    """A file that would take far more than its size explains; the message says of what."""


class Budget:
    """Counts while a file is read. The seconds are those of the processor in this thread, however busy the machine."""

    def __init__(self, size: int, *, values: int | None = None) -> None:
        self.values = _VALUES + size // _BYTES_PER_VALUE if values is None else values
        self.text = _TEXT + 4 * size
        self.seconds = _SECONDS + size / _BYTES_PER_SECOND
        self._began = time.thread_time()
        self._look_at = self.values - _LOOK_EVERY

    def spend(self, values: int = 1, text: int = 0) -> None:
        """Count values and characters that were read.

        Raises:
            BudgetError: they are too many, or it takes too long.
        """
        self.values -= values
        self.text -= text
        if self.values < 0 or self.text < 0:
            raise BudgetError("it holds far more than its size explains")
        if self.values <= self._look_at:
            self._look_at = self.values - _LOOK_EVERY
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Raise BudgetError if it took too long."""
        if time.thread_time() - self._began > self.seconds:
            raise BudgetError("it takes far longer than its size explains")
