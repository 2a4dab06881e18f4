"""What happens to live loggers when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Final, Protocol


class Mortal(Protocol):
    """Something that ends with its process."""

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """End it."""
        ...

    def after_fork_in_child(self) -> None:
        """Become one that does nothing: its threads and its files are the parent's."""
        ...


# Held fast: a logger whose variable has gone out of scope still has a run to end.
_living: dict[int, Mortal] = {}
_is_watching = False
_EARLIER: Final = "_telemetry_was_before"
"""On an exception that was printed at a prompt before a run began: it is none of that run's."""


def remember_until_exit(logger: Mortal) -> None:
    """Have `logger` closed when the interpreter ends, and silenced in forked children."""
    global _is_watching
    _living[id(logger)] = logger
    earlier = _last_printed()
    if earlier is not None:
        vars(earlier).setdefault(_EARLIER, []).append(id(logger))
    _close_with_multiprocessing()
    if not _is_watching:
        _is_watching = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_silence_all)


def forget_at_exit(logger: Mortal) -> None:
    """Undo `remember_until_exit`: it was closed already."""
    _living.pop(id(logger), None)


def _close_with_multiprocessing() -> None:
    """Have the loggers of a process that multiprocessing forked closed too: it ends without calling `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _close_all, exitpriority=-100)


def _close_all() -> None:
    # The interpreter keeps the exception that ended the script, if one did, once it has printed it; multiprocessing
    # calls this while the exception that ended its process is still on its way.
    error = sys.exc_info()[1] or _last_printed()
    if isinstance(error, SystemExit):
        error = None if error.code in (None, 0) else error
    for logger in list(_living.values()):
        if error is None or id(logger) in vars(error).get(_EARLIER, ()):
            logger.close("exit")
        elif isinstance(error, KeyboardInterrupt):
            logger.close("interrupted")
        else:
            logger.close("failed", error=error)


def _last_printed() -> BaseException | None:
    """Return the exception that the interpreter printed last: what ended the script, or the last one at a prompt."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _silence_all() -> None:
    for logger in list(_living.values()):
        logger.after_fork_in_child()
    _living.clear()
