"""How many samples a step has, beside the fullest step so far: the last batch of an epoch is often a short one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_DEEPEST: Final = 4


class BatchSizes:
    """Adds up the batches of one step at a time. Nothing is asked of a device.

    What is compared are steps of the same training, so that it does not matter whether a batch has its samples one by
    one or joined into a single row.
    """

    def __init__(self) -> None:
        self._size = 0
        self._largest = 0

    def begin(self) -> None:
        """Begin with a step; what was counted of one that did not come to its end is forgotten."""
        self._size = 0

    def add(self, batch: Any) -> None:
        """Count a further batch of the step that goes on."""
        self._size += size_of(batch) or 0

    def share(self) -> float:
        """Return which share of the fullest step so far this one has, and begin the next; 1 where none is known."""
        size, self._size = self._size, 0
        self._largest = max(size, self._largest)
        return size / self._largest if size else 1.0


def size_of(batch: Any) -> int | None:
    """Return how many samples there are in whatever a data loader gave; None where that cannot be seen."""
    for _ in range(_DEEPEST):
        items = getattr(batch, "file_items", None)
        if isinstance(items, (list, tuple)):
            # ai-toolkit's batches.
            return len(items)
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else None
        if isinstance(batch, Mapping):
            batch = next((value for value in batch.values() if getattr(value, "shape", ())), None)
        elif isinstance(batch, (list, tuple)) and batch:
            if isinstance(batch[0], str):
                return len(batch)
            batch = batch[0]
        else:
            return None
    return None
