"""The exit code of the script.

When exit handlers run, the `SystemExit` is gone. So calls of `sys.exit` and `exit` are recorded while a run is open.
Whether the script ended by that exception or caught it can be seen from the outermost frame at the end: it still has
its last instruction.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from toolkit.telemetry.logger.errors.hook import Hook
from toolkit.telemetry.logger.errors.stack import frame_of_main_thread

OnExit = Callable[[Any, "FrameType | None"], object]
"""Called with the argument of `sys.exit`, and the frame that called it."""


def _of_exit(*given: Any, **named: Any) -> tuple[Any, FrameType] | None:
    # In a thread it ends only that thread.
    if threading.get_ident() != threading.main_thread().ident:
        return None
    status = given[0] if given else named.get("code")
    return status, sys._getframe(2)  # noqa: SLF001 - a frame has no other way to its caller


def _of_quitter(_: object, *given: Any, **named: Any) -> tuple[Any, FrameType | None] | None:
    found = _of_exit(*given, **named)
    return None if found is None else (found[0], found[1].f_back)


class Exits:
    """Hooks `sys.exit` and `exit` for all loggers of the process; restored when the last one leaves."""

    def __init__(self) -> None:
        self._hooks = [Hook(sys, "exit", _of_exit)]
        quitter = type(getattr(builtins, "exit", None))
        if quitter.__module__ == "_sitebuiltins":
            # Called by `exit(3)` and `quit(3)`, which raise by themselves.
            self._hooks.append(Hook(quitter, "__call__", _of_quitter))
        self._outermost: FrameType | None = None

    def join(self, owner: object, on_exit: OnExit) -> None:
        """Call `on_exit` for each call of `sys.exit` on the main thread."""
        if self._outermost is None:
            self._outermost = _outermost_frame()
        for hook in self._hooks:
            hook.join(owner, on_exit)

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`."""
        for hook in self._hooks:
            if hook.leave(owner):
                self._outermost = None

    def is_left(self) -> bool | None:
        """Return whether an exception ended the script, rather than its last line; None if unknown."""
        frame = self._outermost
        if frame is None or frame.f_lasti < 0:
            return None
        import opcode  # only needed at the end

        return not opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _outermost_frame() -> FrameType | None:
    """Return the main thread's first frame: that of the script, or of what runs it."""
    frame = frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


EXITS: Final = Exits()
