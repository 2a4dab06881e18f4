"""The exit code of the script.

When exit handlers run, the `SystemExit` is gone. So calls of `sys.exit` and `exit` are recorded while a run is open.
Whether the script ended by that exception or caught it can be seen from the outermost frame at the end: it still has
its last instruction.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from toolkit.telemetry.logger.errors.stack import frame_of_main_thread

OnExit = Callable[[Any, "FrameType | None"], object]
"""Called with the argument of `sys.exit`, and the frame that called it."""


class Exits:
    """Hooks `sys.exit` and `exit` for all loggers of the process; restored when the last one leaves."""

    def __init__(self) -> None:
        self._listeners: dict[int, OnExit] = {}
        self._hooks: list[tuple[Any, str, Any, Any]] = []
        """For each hooked function: its owner, its name, our function, and the original."""
        self._outermost: FrameType | None = None

    def join(self, owner: object, on_exit: OnExit) -> None:
        """Call `on_exit` for each call of `sys.exit` on the main thread."""
        self._listeners[id(owner)] = on_exit
        if self._outermost is None:
            self._outermost = _outermost_frame()
        places: list[tuple[Any, str]] = [(sys, "exit")]
        quitter = type(getattr(sys.modules.get("builtins"), "exit", None))
        if quitter.__module__ == "_sitebuiltins":
            # Called by `exit(3)` and `quit(3)`, which raise by themselves.
            places.append((quitter, "__call__"))
        self._hooks = [hook for hook in self._hooks if getattr(hook[0], hook[1]) is hook[2]]
        for place, name in places:
            if (place, name) not in [hook[:2] for hook in self._hooks]:
                before = getattr(place, name)
                own = self._watched(before, is_method=place is not sys)
                setattr(place, name, own)
                self._hooks.append((place, name, own, before))

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`."""
        if self._listeners.pop(id(owner), None) is None or self._listeners:
            return
        for place, name, own, before in self._hooks:
            if getattr(place, name) is own:
                setattr(place, name, before)
        self._hooks = []
        self._outermost = None

    def is_left(self) -> bool | None:
        """Return whether an exception ended the script, rather than its last line; None if unknown."""
        frame = self._outermost
        if frame is None or frame.f_lasti < 0:
            return None
        import opcode  # only needed at the end

        return not opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")

    def _watched(self, before: Any, *, is_method: bool) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            self._note(given[1:] if is_method else given, named)
            return before(*given, **named)

        watched.__doc__ = before.__doc__
        return watched

    def _note(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        # In a thread it ends only that thread.
        if threading.get_ident() != threading.main_thread().ident:
            return
        status = given[0] if given else named.get("code")
        for on_exit in list(self._listeners.values()):
            on_exit(status, sys._getframe(2))  # noqa: SLF001 - a frame has no other way to its caller


def _outermost_frame() -> FrameType | None:
    """Return the main thread's first frame: that of the script, or of what runs it."""
    frame = frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


EXITS: Final = Exits()
