"""What Python calls when an exception ends the script or a thread: every logger is told, and then whoever was there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

Told = Callable[[BaseException, "str | None"], object]
"""Is given the exception, and the name of the thread that it ended, where it did not end the script."""


class Hook:
    """One of the interpreter's hooks, shared by all loggers of the process. Given back when the last of them leaves.

    Somebody else may put a hook of their own on top of it, and call this one: then it stays where it is, and does
    nothing but call the one before it.
    """

    def __init__(self, module: Any, name: str, read: Callable[..., tuple[Any, str | None]]) -> None:
        self._module = module
        self._name = name
        self._read = read
        self._listeners: dict[int, Told] = {}
        self._own: Callable[..., object] | None = None
        self._before: Callable[..., object] | None = None

    def join(self, who: object, told: Told) -> None:
        """Have `told` called from now on."""
        self._listeners[id(who)] = told
        if self._own is None or getattr(self._module, self._name) is not self._own:
            self._own = self._make(getattr(self._module, self._name))
            setattr(self._module, self._name, self._own)

    def leave(self, who: object) -> None:
        """Have nothing called any more."""
        if self._listeners.pop(id(who), None) is None or self._listeners:
            return
        if getattr(self._module, self._name) is self._own:
            setattr(self._module, self._name, self._before)
        self._own = self._before = None

    def _make(self, before: Callable[..., object]) -> Callable[..., object]:
        self._before = before

        def hook(*given: Any) -> object:
            error, thread = self._read(*given)
            if isinstance(error, BaseException):
                for told in list(self._listeners.values()):
                    told(error, thread)
            return before(*given)

        return hook


def _of_script(*given: Any) -> tuple[Any, str | None]:
    return (given[1] if len(given) > 1 else None), None


def _of_thread(*given: Any) -> tuple[Any, str | None]:
    args = given[0] if given else None
    error = getattr(args, "exc_value", None)
    # The way of a thread to end early.
    if isinstance(error, SystemExit):
        return None, None
    return error, getattr(getattr(args, "thread", None), "name", None)


SCRIPT: Final = Hook(sys, "excepthook", _of_script)
THREADS: Final = Hook(threading, "excepthook", _of_thread)
