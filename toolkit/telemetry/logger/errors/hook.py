"""A function of the interpreter with callbacks that run before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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

    def leave(self, owner: object) -> bool:
        """Remove the callback of `owner`; return whether it was the last one."""
        if self._callbacks.pop(id(owner), None) is None or self._callbacks:
            return False
        if getattr(self._place, self._name) is self._own:
            setattr(self._place, self._name, self._before)
        self._own = self._before = None
        return True

    def _wrap(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*given: Any, **named: Any) -> Any:
            found = self._read(*given, **named)
            if found is not None:
                for callback in list(self._callbacks.values()):
                    callback(*found)
            return before(*given, **named)

        hook.__doc__ = before.__doc__
        return hook
