"""Closes live loggers when their process forks or ends, and knows its exit code."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from toolkit.telemetry.core.background import held_up_disks
from toolkit.telemetry.core.clock import wait_until


class Closable(Protocol):
    """Something that is closed when its process ends."""

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """Close it."""


class _Living(NamedTuple):
    logger: Closable
    in_forked_child: Callable[[], None]
    timeout_s: float
    disk: Path | None


# Strong references: a logger whose variable has gone out of scope still has a run to end.
_living: dict[int, _Living] = {}
_followers: list[Callable[[Closable], object]] = []
_is_watching = False
_ends_by: float | None = None
"""When all loggers are to be closed (monotonic), once the process ends."""
_FIRST: Final = "first"
_OUTERMOST: Final = ("__main__", "runpy")
"""Modules whose frame an exception leaves last when it ends the process."""
_PRUNED: Final = "TrialPruned"
"""What Optuna's trials raise when they are given up: by its name, since Optuna is not imported for it."""


class CloseOnce:
    """Lets a run end once, even if several threads, signal handlers and exit handlers end it at the same time."""

    def __init__(self, *, is_over: bool = False) -> None:
        self._ender: dict[str, tuple[int, ...]] = {_FIRST: ()} if is_over else {}
        """The thread that came first."""
        self._is_over = is_over

    def begin(self) -> bool:
        """Return whether the caller is the first, who ends it."""
        me = (threading.get_ident(),)
        # One atomic operation: a signal handler on this very thread may come next.
        return self._ender.setdefault(_FIRST, me) is me

    def done(self) -> None:
        """Release all waiting threads."""
        self._is_over = True

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, unless the caller's own thread is ending it."""
        if self._ender.get(_FIRST) != (threading.get_ident(),):
            wait_until(lambda: self._is_over, timeout_s)


def close_at_exit(
    logger: Closable,
    *,
    in_forked_child: Callable[[], None],
    timeout_s: float = 0.0,
    disk: Path | None = None,
) -> None:
    """Close `logger`, which may take `timeout_s` and writes to a folder on `disk`, at exit.

    In forked children `in_forked_child` is called instead: their parent owns its threads and files.
    """
    global _is_watching, _ends_by
    if not _living:
        # A process that was to end by a signal may survive it.
        _ends_by = None
    _living[id(logger)] = _Living(logger, in_forked_child, timeout_s, disk)
    for take in _followers:
        take(logger)
    _close_with_multiprocessing()
    if not _is_watching:
        _is_watching = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_silence_all)


def follow_loggers(take: Callable[[Closable], object]) -> Callable[[], None]:
    """Call `take`, which must not raise, with each logger that is open, or opened until what this returns is called."""
    for one in list(_living.values()):
        take(one.logger)
    _followers.append(take)
    return lambda: _followers.remove(take)


def do_not_close_at_exit(logger: Closable) -> None:
    """Undo `close_at_exit`: it was closed already."""
    _living.pop(id(logger), None)


def _close_with_multiprocessing() -> None:
    """Close the loggers of a process forked by multiprocessing too: it ends without calling `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _close_all, exitpriority=-100)


def close_all(reason: str, error: BaseException | None = None) -> None:
    """Close all living loggers within the time of the most patient one: the process ends.

    Those on a disk that does not answer come last.
    """
    global _ends_by
    if _ends_by is None:
        _ends_by = time.monotonic() + max((one.timeout_s for one in _living.values()), default=0.0)
    tried: set[int] = set()
    while left := {key: one for key, one in list(_living.items()) if key not in tried}:
        dead = held_up_disks()
        first = next((key for key, one in left.items() if one.disk not in dead), next(iter(left)))
        tried.add(first)
        left[first].logger.close(reason, error=error)


def process_ends() -> bool:
    """Say whether the process is about to end."""
    return _ends_by is not None


def seconds_to_close(timeout_s: float) -> float:
    """Return how long a logger that has `timeout_s` may take to close now: its share of what is left to all."""
    if _ends_by is None:
        return timeout_s
    return min(timeout_s, max(0.0, _ends_by - time.monotonic()) / min(4, max(1, len(_living))))


def _close_all() -> None:
    # Multiprocessing calls this while the exception that ended its process is still being handled.
    error = sys.exc_info()[1] or _printed_at_the_end()
    reason = reason_of(error)
    close_all(reason or "exit", error if reason == "failed" else None)
    if type(error) is KeyboardInterrupt:
        # An import at the exit makes the interpreter forget that Ctrl-C ended the script, and so its exit code. This
        # reminds it.
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - a constant


def _printed_at_the_end() -> BaseException | None:
    """Return the exception that ended the script, which the interpreter has printed.

    An exception that was printed at a prompt or in a cell of a notebook ended neither the process nor a run.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = error.__traceback__ if isinstance(error, BaseException) else None
    if trace is None or trace.tb_frame.f_globals.get("__name__") not in _OUTERMOST:
        # What called the code has caught it: a notebook's kernel, a console, a test runner.
        return None
    is_at_prompt = hasattr(sys, "ps1") and trace.tb_frame.f_code.co_filename.startswith("<")
    return None if is_at_prompt else error


def is_interactive() -> bool:
    """Say whether this is a notebook or a prompt, where a script has no end."""
    return hasattr(sys, "ps1") or hasattr(builtins, "get_ipython")


def _silence_all() -> None:
    global _ends_by
    for one in list(_living.values()):
        one.in_forked_child()
    _living.clear()
    _ends_by = None


def reason_of(error: BaseException | None) -> str | None:
    """Return why a run ends whose block or process is ended by `error`; None for an end without a fault."""
    if error is None or code_of(error) == 0:
        return None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "pruned" if any(kind.__name__ == _PRUNED for kind in type(error).__mro__) else "failed"


def exit_code(status: Any) -> int:
    """Return the exit code for `SystemExit(status)`: 1 for a text, which is printed."""
    if status is None:
        return 0
    return int(status) if isinstance(status, int) else 1


def code_of(error: BaseException | None) -> int | None:
    """Return the exit code of a `SystemExit`; None for anything else."""
    return exit_code(error.code) if isinstance(error, SystemExit) else None
