"""Where one run looks for errors: the hooks and signals that were asked for, and the output that is repeated."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.telemetry.errors.exits import EXITS
from toolkit.telemetry.errors.output import SharedTail
from toolkit.telemetry.errors.recorder import ErrorRecorder
from toolkit.telemetry.options.errors import ErrorOptions

_log = logging.getLogger("toolkit.telemetry")
_OUTPUT: Final = SharedTail()

Told = Callable[[BaseException, "str | None"], object]
"""Is given the exception, and the name of the thread that it ended, where it did not end the script."""


class Hook:
    """One of the interpreter's hooks, shared by all loggers of the process. Given back when the last of them leaves.

    Somebody else may put a hook of their own on top of it, and call this one: then it stays where it is, and does
    nothing but call the one before it.
    """

    def __init__(self, module: Any, name: str, read: Callable[..., tuple[Any, str | None]]) -> None:
        self._module = module
        self._name = name
        self._read = read
        self._listeners: dict[int, Told] = {}
        self._own: Callable[..., object] | None = None
        self._before: Callable[..., object] | None = None

    def join(self, who: object, told: Told) -> None:
        """Have `told` called from now on."""
        self._listeners[id(who)] = told
        if self._own is None or getattr(self._module, self._name) is not self._own:
            self._own = self._make(getattr(self._module, self._name))
            setattr(self._module, self._name, self._own)

    def leave(self, who: object) -> None:
        """Have nothing called any more."""
        if self._listeners.pop(id(who), None) is None or self._listeners:
            return
        if getattr(self._module, self._name) is self._own:
            setattr(self._module, self._name, self._before)
        self._own = self._before = None

    def _make(self, before: Callable[..., object]) -> Callable[..., object]:
        self._before = before

        def hook(*given: Any) -> object:
            error, thread = self._read(*given)
            if isinstance(error, BaseException):
                for told in list(self._listeners.values()):
                    told(error, thread)
            return before(*given)

        return hook


def _of_script(*given: Any) -> tuple[Any, str | None]:
    return (given[1] if len(given) > 1 else None), None


def _of_thread(*given: Any) -> tuple[Any, str | None]:
    args = given[0] if given else None
    error = getattr(args, "exc_value", None)
    # The way of a thread to end early.
    if isinstance(error, SystemExit):
        return None, None
    return error, getattr(getattr(args, "thread", None), "name", None)


SCRIPT: Final = Hook(sys, "excepthook", _of_script)
THREADS: Final = Hook(threading, "excepthook", _of_thread)


class ErrorWatch:
    """What is hooked for one run. Nothing is where nothing was asked for; all of it is given back at the end."""

    def __init__(self, options: ErrorOptions, *, close_timeout_s: float, guard: Guard) -> None:
        self._options = options
        self._close_timeout_s = close_timeout_s
        self._guard = guard
        self._recorder: ErrorRecorder | None = None
        self._end_by_signal: Callable[[], object] | None = None

    def begin(self, recorder: ErrorRecorder, end_by_signal: Callable[[], object]) -> None:
        """Hook what was asked for; `end_by_signal` ends the run. Signals can be had on the main thread alone."""
        self._recorder = recorder
        self._end_by_signal = end_by_signal
        options = self._options
        if not options.enabled:
            return
        if options.exit_code:
            EXITS.join(self, self._note_exit)
        if options.excepthook:
            SCRIPT.join(self, lambda error, _: self._take(error, None, "excepthook"))
        if options.threads:
            THREADS.join(self, lambda error, thread: self._take(error, thread, "thread"))
        if options.signals is True:
            # Brought in for those who ask for it: the rest do without its sockets and queues.
            from toolkit.telemetry.errors.signals import SIGNALS

            limit_s = 1.0 + 2.5 * self._close_timeout_s
            SIGNALS.join(self, self._take_signal, timeout_s=limit_s, guard=self._guard)
        elif options.signals:
            self._listen_for_termination()
        if options.excepthook or options.threads or options.signals is True:
            self.listen()

    def _listen_for_termination(self) -> None:
        from toolkit.telemetry.errors.termination import TERMINATION

        limit_s = 1.0 + self._close_timeout_s
        left_out = TERMINATION.join(self, self._take_signal, timeout_s=limit_s, guard=self._guard)
        if "SIGTERM" in left_out:
            _log.info(
                "[telemetry] SIGTERM is handled by the script, or not to be seen here: a run that it ends without an "
                "exception and without sys.exit has no end record. telemetry.errors.signals: true records it first; "
                "or call log.close('signal') in the handler"
            )

    def listen(self) -> None:
        """Keep the last lines of output from now on."""
        if self._options.enabled:
            _OUTPUT.join(self, self._options.output_lines, self._guard)

    def last_lines(self) -> list[str]:
        """Return the last lines of output, where they are kept."""
        return _OUTPUT.last_lines(self)

    def follow(self) -> None:
        """Go with an output that was replaced."""
        _OUTPUT.follow()

    def end(self) -> None:
        """Give everything back, as far as it is still ours."""
        with self._guard.catch("giving back the hooks"):
            EXITS.leave(self)
            SCRIPT.leave(self)
            THREADS.leave(self)
            _OUTPUT.leave(self)
        with self._guard.catch("giving back the signals"):
            if self._options.signals is True:
                from toolkit.telemetry.errors.signals import SIGNALS

                SIGNALS.leave(self)
            elif self._options.signals:
                from toolkit.telemetry.errors.termination import TERMINATION

                TERMINATION.leave(self)

    def after_fork_in_child(self) -> None:
        """Give everything back: whatever fails in a forked child is the child's."""
        EXITS.leave(self)
        SCRIPT.leave(self)
        THREADS.leave(self)
        _OUTPUT.leave(self)
        if self._options.signals is True:
            from toolkit.telemetry.errors.signals import SIGNALS

            SIGNALS.after_fork_in_child()
        elif self._options.signals:
            from toolkit.telemetry.errors.termination import TERMINATION

            TERMINATION.after_fork_in_child()

    def _take(self, error: BaseException, thread: str | None, caught_by: str) -> None:
        with self._guard.catch("recording an error"):
            if self._recorder is not None:
                self._recorder.take(error, caught_by=caught_by, thread=thread)

    def _note_exit(self, status: Any, frame: FrameType | None) -> None:
        with self._guard.catch("noting an exit"):
            if self._recorder is not None:
                self._recorder.note_exit(status, frame)

    def _take_signal(self, name: str, frame: FrameType | None, is_end: bool) -> None:
        if self._recorder is not None:
            with self._guard.catch("recording a signal"):
                self._recorder.take_signal(name, frame, is_end=is_end)
        if is_end and self._end_by_signal is not None:
            self._end_by_signal()
