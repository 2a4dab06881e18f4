"""The code that the script leaves with.

The interpreter says nothing of it: when the script's exit handlers run, the `SystemExit` is gone. So calls of
`sys.exit` and `exit` are noted while a run is open. Whether the script was left by that exception or has caught it, the
outermost frame says at the end: it is still at the instruction that it was left at.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from toolkit.telemetry.errors.stack import frame_of_main_thread

Noted = Callable[[Any, "FrameType | None"], object]
"""Is given what `sys.exit` was called with, and the frame that called it."""


class Exits:
    """What is called to leave a script, watched for all loggers of the process. Given back when the last one leaves."""

    def __init__(self) -> None:
        self._listeners: dict[int, Noted] = {}
        self._hooks: list[tuple[Any, str, Any, Any]] = []
        """Of each function where it is, its name, ours, and what was there before."""
        self._outermost: FrameType | None = None

    def join(self, who: object, noted: Noted) -> None:
        """Have `noted` called with each call of `sys.exit` on the main thread."""
        self._listeners[id(who)] = noted
        if self._outermost is None:
            self._outermost = _outermost_frame()
        places: list[tuple[Any, str]] = [(sys, "exit")]
        quitter = type(getattr(sys.modules.get("builtins"), "exit", None))
        if quitter.__module__ == "_sitebuiltins":
            # What `exit(3)` and `quit(3)` call; they raise by themselves.
            places.append((quitter, "__call__"))
        self._hooks = [hook for hook in self._hooks if getattr(hook[0], hook[1]) is hook[2]]
        for place, name in places:
            if (place, name) not in [hook[:2] for hook in self._hooks]:
                before = getattr(place, name)
                own = self._watched(before, is_method=place is not sys)
                setattr(place, name, own)
                self._hooks.append((place, name, own, before))

    def leave(self, who: object) -> None:
        """Have nothing called any more."""
        if self._listeners.pop(id(who), None) is None or self._listeners:
            return
        for place, name, own, before in self._hooks:
            if getattr(place, name) is own:
                setattr(place, name, before)
        self._hooks = []
        self._outermost = None

    def is_left(self) -> bool | None:
        """Say whether the script was left by an exception and not by its last line; None where that is not known."""
        frame = self._outermost
        if frame is None or frame.f_lasti < 0:
            return None
        import opcode  # needed at the end alone

        return not opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")

    def _watched(self, before: Any, *, is_method: bool) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            self._note(given[1:] if is_method else given, named)
            return before(*given, **named)

        watched.__doc__ = before.__doc__
        return watched

    def _note(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        # In a thread it ends that thread alone.
        if threading.get_ident() != threading.main_thread().ident:
            return
        status = given[0] if given else named.get("code")
        for noted in list(self._listeners.values()):
            noted(status, sys._getframe(2))  # noqa: SLF001 - a frame has no other way to its caller


def _outermost_frame() -> FrameType | None:
    """Return the main thread's first frame: that of the script, or of what runs it."""
    frame = frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


EXITS: Final = Exits()
