"""Phases of a training begun and ended by hooks, where a `with` block does not fit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any


class OpenPhases:
    """Begins and ends phases by name, nested in the order they began; one of each name is open at a time."""

    def __init__(self) -> None:
        self._open: dict[str, AbstractContextManager[Any]] = {}

    def has(self, name: str) -> bool:
        """Return whether such a phase is open."""
        return name in self._open

    def begin(self, name: str, phase: AbstractContextManager[Any]) -> None:
        """Begin a phase; an open one of the same name ends."""
        self.end(name)
        self._open[name] = phase
        phase.__enter__()

    def end(self, *names: str) -> None:
        """End those of the named phases that are open."""
        for name in names:
            found = self._open.pop(name, None)
            if found is not None:
                found.__exit__(None, None, None)

    def end_with_inner(self, name: str, error: BaseException | None = None) -> None:
        """End the named phase and all phases inside it; do nothing if it is not open."""
        if name in self._open:
            self.end_all(error, within=name)
            self._end_one(name, error)

    def end_all(self, error: BaseException | None, *, within: str | None = None) -> None:
        """End all phases, or those inside `within`, because the training is over or `error` was raised."""
        for name in reversed([*self._open]):
            if name == within:
                return
            self._end_one(name, error)

    def _end_one(self, name: str, error: BaseException | None) -> None:
        self._open.pop(name).__exit__(*exit_arguments(error))


ExitArguments = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


def exit_arguments(error: BaseException | None) -> ExitArguments:
    """Return the arguments of `__exit__` for a block that ended normally or with `error`."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)
