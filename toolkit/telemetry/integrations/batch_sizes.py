"""Relative size of a step: the last batch of an epoch is often a short one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_MAX_DEPTH: Final = 4


class BatchSizes:
    """Adds up the batches of one step at a time, of samples or packed rows, without waiting for a device."""

    def __init__(self) -> None:
        self._size = 0
        self._largest = 0

    def count(self, batches: Iterable[Any]) -> None:
        """Begin a step that has these batches; an incomplete one is forgotten."""
        self._size = 0
        for batch in batches:
            self._size += size_of(batch) or 0

    def add(self, batch: Any) -> None:
        """Add a batch to the current step."""
        self._size += size_of(batch) or 0

    def share(self) -> float:
        """Return the size of the step relative to the largest so far, and begin the next; 1 if unknown."""
        size, self._size = self._size, 0
        self._largest = max(size, self._largest)
        return size / self._largest if size else 1.0


def size_of(batch: Any) -> int | None:
    """Return how many samples a data loader's batch has; None if unknown."""
    for _ in range(_MAX_DEPTH):
        items = getattr(batch, "file_items", None)
        if isinstance(items, (list, tuple)):
            # ai-toolkit's batches.
            return len(items)
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else None
        if type(batch) is dict or isinstance(batch, Mapping):
            values, batch = batch.values(), None
            for value in values:
                if getattr(value, "shape", ()):
                    batch = value
                    break
        elif isinstance(batch, (list, tuple)) and batch:
            if isinstance(batch[0], str):
                return len(batch)
            batch = batch[0]
        else:
            return None
    return None
