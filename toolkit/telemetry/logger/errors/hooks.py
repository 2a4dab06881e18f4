"""What ends a script with an exit code, with callbacks that run before it: `sys.exit`, `exit` and `quit`."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from typing import Any, Final


class ExitHook:
    """One of these functions, wrapped for all loggers of the process until the last of them leaves.

    Callbacks get the status and the frame that called. Something else may replace the function and call this one: then
    it stays, and only calls the previous one.
    """

    def __init__(self, place: Any, name: str) -> None:
        self._place = place
        self._name = name
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
            # In a thread it ends only that thread.
            if threading.get_ident() == threading.main_thread().ident:
                arguments = given[isinstance(self._place, type) :]
                status = arguments[0] if arguments else named.get("code")
                for callback in list(self._callbacks.values()):
                    callback(status, sys._getframe(1))  # noqa: SLF001 - a frame has no other way to its caller
            return before(*given, **named)

        hook.__doc__ = before.__doc__
        return hook


EXITS: Final = [ExitHook(sys, "exit")]
"""When exit handlers run, the `SystemExit` is gone."""
if type(getattr(builtins, "exit", None)).__module__ == "_sitebuiltins":
    # Called by `exit(3)` and `quit(3)`, which raise by themselves.
    EXITS.append(ExitHook(type(builtins.exit), "__call__"))
