"""A numpy array that can be appended to without copying each time."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Scalar = TypeVar("Scalar", bound=np.generic)

_FIRST_CAPACITY = 256


class GrowableArray(Generic[Scalar]):
    """Values of one type, appended in batches and read as one array.

    The initial array is not copied until something is appended, so that a memory-mapped file stays mapped.
    """

    __slots__ = ("_array", "_length", "_owned")

    def __init__(self, start: npt.NDArray[Scalar]) -> None:
        self._array = start
        self._length = len(start)
        self._owned = False

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> npt.NDArray[Scalar]:
        """Everything appended so far, as a view that later appends do not change."""
        return self._array[: self._length]

    @property
    def nbytes(self) -> int:
        """Memory used."""
        return int(self._array.nbytes)

    def append(self, more: npt.NDArray[Scalar]) -> None:
        """Append `more`."""
        needed = self._length + len(more)
        if not self._owned or needed > len(self._array):
            # 25 % extra: appending stays cheap, and a million points waste little.
            grown = np.empty(max(_FIRST_CAPACITY, needed + needed // 4), dtype=self._array.dtype)
            grown[: self._length] = self._array[: self._length]
            self._array = grown
            self._owned = True
        self._array[self._length : needed] = more
        self._length = needed

    def overwrite(self, start: int, stop: int, value: Scalar | float) -> None:
        """Set the values from `start` to `stop`."""
        if not self._owned:
            self.append(np.empty(0, dtype=self._array.dtype))
        self._array[start:stop] = value
