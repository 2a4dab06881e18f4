"""What ends a script with an exit code, with callbacks that run before it: `sys.exit`, `exit` and `quit`."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final


class Hook:
    """One of the interpreter's functions, wrapped for all loggers of the process until the last of them leaves.

    `read` makes of a call what the callbacks get; None where they are not called. Something else may replace the
    function and call this one: then it stays, and only calls the previous one.
    """

    def __init__(self, place: Any, name: str, read: Callable[..., tuple[Any, ...] | None]) -> None:
        self._place = place
        self._name = name
        self._read = read
        self._callbacks: dict[int, Callable[..., object]] = {}
        self._own: Callable[..., Any] | None = None
        self._before: Callable[..., Any] | None = None

    def join(self, owner: object, callback: Callable[..., object]) -> None:
        """Call `callback` from now on."""
        self._callbacks[id(owner)] = callback
        before = getattr(self._place, self._name)
        if self._own is None or before is not self._own:
            self._before, self._own = before, self._wrap(before)
            setattr(self._place, self._name, self._own)

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`; with the last one, restore the function."""
        if self._callbacks.pop(id(owner), None) is None or self._callbacks:
            return
        if getattr(self._place, self._name) is self._own:
            setattr(self._place, self._name, self._before)
        self._own = self._before = None

    def _wrap(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*given: Any, **named: Any) -> Any:
            found = self._read(*given, **named)
            if found is not None:
                for callback in list(self._callbacks.values()):
                    callback(*found)
            return before(*given, **named)

        hook.__doc__ = before.__doc__
        return hook


def _of_exit(*given: Any, **named: Any) -> tuple[Any, FrameType] | None:
    # In a thread it ends only that thread.
    if threading.get_ident() != threading.main_thread().ident:
        return None
    status = given[0] if given else named.get("code")
    return status, sys._getframe(2)  # noqa: SLF001 - a frame has no other way to its caller


def _of_quitter(_: object, *given: Any, **named: Any) -> tuple[Any, FrameType | None] | None:
    found = _of_exit(*given, **named)
    return None if found is None else (found[0], found[1].f_back)


EXITS: Final = [Hook(sys, "exit", _of_exit)]
"""When exit handlers run, the `SystemExit` is gone: their callbacks get the status, and the frame that called it."""
if type(getattr(builtins, "exit", None)).__module__ == "_sitebuiltins":
    # Called by `exit(3)` and `quit(3)`, which raise by themselves.
    EXITS.append(Hook(type(builtins.exit), "__call__", _of_quitter))
