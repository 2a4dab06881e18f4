"""Closes live loggers when their process forks or ends, and knows its exit code."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol


class Closable(Protocol):
    """Something that is closed when its process ends."""

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """Close it."""


# Strong references: a logger whose variable has gone out of scope still has a run to end.
_living: dict[int, tuple[Closable, Callable[[], None]]] = {}
_is_watching = False
_FIRST: Final = "first"
_EARLIER: Final = "_telemetry_was_before"
"""Attribute of an exception that was printed at a prompt before a run began: it did not end that run."""


class CloseOnce:
    """Lets a run end once, even if several threads, signal handlers and exit handlers end it at the same time."""

    def __init__(self, *, is_over: bool = False) -> None:
        self._ender: dict[str, tuple[int, ...]] = {}
        """The thread that came first."""
        # Held until it has ended. Not an event: a signal handler that waits for one may have interrupted its own thread
        # in the middle of such a wait, and would find the event's inner lock held forever.
        self._under_way = threading.Lock()
        self._is_over = is_over
        if is_over:
            self._ender[_FIRST] = ()
        else:
            self._under_way.acquire()

    def begin(self) -> bool:
        """Return whether the caller is the first, who ends it."""
        me = (threading.get_ident(),)
        # One atomic operation: a signal handler on this very thread may come next.
        return self._ender.setdefault(_FIRST, me) is me

    def done(self) -> None:
        """Release all waiting threads."""
        self._is_over = True
        try:
            self._under_way.release()
        except RuntimeError:
            # In a forked child no thread waits.
            pass

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, unless the caller's own thread is ending it."""
        is_mine = self._ender.get(_FIRST) == (threading.get_ident(),)
        if not is_mine and not self._is_over and self._under_way.acquire(timeout=timeout_s):
            self._under_way.release()


def close_at_exit(logger: Closable, *, in_forked_child: Callable[[], None]) -> None:
    """Close `logger` at exit; call `in_forked_child` in forked children, whose parent owns its threads and files."""
    global _is_watching
    _living[id(logger)] = logger, in_forked_child
    earlier = _last_printed()
    if earlier is not None:
        vars(earlier).setdefault(_EARLIER, []).append(id(logger))
    _close_with_multiprocessing()
    if not _is_watching:
        _is_watching = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_silence_all)


def do_not_close_at_exit(logger: Closable) -> None:
    """Undo `close_at_exit`: it was closed already."""
    _living.pop(id(logger), None)


def _close_with_multiprocessing() -> None:
    """Close the loggers of a process forked by multiprocessing too: it ends without calling `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _close_all, exitpriority=-100)


def _close_all() -> None:
    # The interpreter keeps the exception that ended the script once it has printed it; multiprocessing calls this while
    # the exception that ended its process is still being handled.
    error = sys.exc_info()[1] or _last_printed()
    if code_of(error) == 0:
        error = None
    for logger, _ in list(_living.values()):
        if error is None or id(logger) in vars(error).get(_EARLIER, ()):
            logger.close("exit")
        elif isinstance(error, KeyboardInterrupt):
            logger.close("interrupted")
        else:
            logger.close("failed", error=error)


def _last_printed() -> BaseException | None:
    """Return the exception that the interpreter printed last: that ended the script, or the last one at a prompt."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _silence_all() -> None:
    for _, in_forked_child in list(_living.values()):
        in_forked_child()
    _living.clear()


def exit_code(status: Any) -> int:
    """Return the exit code for `SystemExit(status)`: 1 for a text, which is printed."""
    if status is None:
        return 0
    return int(status) if isinstance(status, int) else 1


def code_of(error: BaseException | None) -> int | None:
    """Return the exit code of a `SystemExit`; None for anything else."""
    return exit_code(error.code) if isinstance(error, SystemExit) else None
