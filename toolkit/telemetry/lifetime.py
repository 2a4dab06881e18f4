"""What happens to live loggers when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol


class Mortal(Protocol):
    """Something that ends with its process."""

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """End it."""
        ...

    def after_fork_in_child(self) -> None:
        """Become one that does nothing: its threads and its files are the parent's."""
        ...


_living: weakref.WeakSet[Mortal] = weakref.WeakSet()
_is_watching = False


def remember_until_exit(logger: Mortal) -> None:
    """Have `logger` closed when the interpreter ends, and silenced in forked children."""
    global _is_watching
    _living.add(logger)
    if not _is_watching:
        _is_watching = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_silence_all)


def forget_at_exit(logger: Mortal) -> None:
    """Undo `remember_until_exit`: it was closed already."""
    _living.discard(logger)


def _close_all() -> None:
    # The interpreter keeps the exception that ended the script, if one did, once it has printed it.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    for logger in list(_living):
        if error is None:
            logger.close("exit")
        elif isinstance(error, KeyboardInterrupt):
            logger.close("interrupted")
        else:
            logger.close("failed", error=error)


def _silence_all() -> None:
    for logger in list(_living):
        logger.after_fork_in_child()
    _living.clear()
