"""A part of the vocabulary around a framework's own work, which it neither stops nor changes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from toolkit.core.guard import Guard
from toolkit.telemetry.training.part import Part


class SafeBlock:
    """A part of the vocabulary that cannot fail; what is inside of it can, and is not stopped from doing so."""

    def __init__(self, guard: Guard, make: Callable[[], Part]) -> None:
        self._guard = guard
        self._make = make
        self._part: Part | None = None

    def __enter__(self) -> None:
        with self._guard.catch("beginning a part of the training"):
            part = self._make()
            part.__enter__()
            self._part = part

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._part is not None:
            with self._guard.catch("ending a part of the training"):
                self._part.__exit__(kind, error, trace)
