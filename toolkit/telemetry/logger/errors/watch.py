"""Installs the hooks for one run: exceptions, exits, signals, and the captured output."""

from __future__ import annotations

import logging
import sys
import threading
from types import FrameType
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.errors.error_recorder import ErrorRecorder
from toolkit.telemetry.logger.errors.exits import EXITS
from toolkit.telemetry.logger.errors.hook import Hook
from toolkit.telemetry.logger.errors.output import OutputTail
from toolkit.telemetry.logger.errors.signals import SIGNALS
from toolkit.telemetry.logger.options.blocks import ErrorOptions
from toolkit.telemetry.logger.printed.taps import TAPS

_log = logging.getLogger("toolkit.telemetry")


def _of_script(*given: Any) -> tuple[BaseException, None] | None:
    error = given[1] if len(given) > 1 else None
    return (error, None) if isinstance(error, BaseException) else None


def _of_thread(*given: Any) -> tuple[BaseException, str | None] | None:
    args = given[0] if given else None
    error = getattr(args, "exc_value", None)
    # A thread ends early by SystemExit.
    if not isinstance(error, BaseException) or isinstance(error, SystemExit):
        return None
    return error, getattr(getattr(args, "thread", None), "name", None)


SCRIPT: Final = Hook(sys, "excepthook", _of_script)
THREADS: Final = Hook(threading, "excepthook", _of_thread)
"""Their callbacks get the exception, and the name of the thread that it ended, if it did not end the script."""


class ErrorWatch:
    """The hooks of one run: only those that the options enable; all are restored at the end."""

    def __init__(self, options: ErrorOptions, *, close_timeout_s: float, guard: Guard) -> None:
        self._options = options
        self._close_timeout_s = close_timeout_s
        self._guard = guard
        self._recorder: ErrorRecorder | None = None
        self._tail: OutputTail | None = None

    def begin(self, recorder: ErrorRecorder) -> None:
        """Install the enabled hooks."""
        self._recorder = recorder
        options = self._options
        if not options.enabled:
            return
        if options.exit_code:
            EXITS.join(self, self._note_exit)
        if options.excepthook:
            SCRIPT.join(self, lambda error, _: self._record(error, None, "excepthook"))
        if options.threads:
            THREADS.join(self, lambda error, thread: self._record(error, thread, "thread"))
        if options.signals:
            limit_s = 1.0 + self._close_timeout_s
            if not SIGNALS.join(self, self._record_signal, timeout_s=limit_s, guard=self._guard):
                _log.info(
                    "[telemetry] SIGTERM is handled by the script, or the logger was not made on the main thread: a "
                    "run that it ends without an exception or sys.exit has no end record. Call log.close('signal') in "
                    "the handler"
                )
        if options.excepthook or options.threads:
            self.listen()

    def wait_for_signal(self) -> None:
        """Wait for the end of the process if a signal is ending it: a run that closes now would hide it."""
        SIGNALS.wait()

    def listen(self) -> None:
        """Capture the last lines of output from now on."""
        lines = self._options.output_lines
        if self._options.enabled and lines and self._tail is None:
            with self._guard.catch("capturing the output"):
                self._tail = OutputTail(lines, TAPS)
                self._tail.follow()

    def last_lines(self) -> list[str]:
        """Return the last lines of output, if they are captured."""
        return [] if self._tail is None else self._tail.last_lines()

    def end(self) -> None:
        """Restore everything that is still ours."""
        with self._guard.catch("restoring the hooks"):
            EXITS.leave(self)
            SCRIPT.leave(self)
            THREADS.leave(self)
            self._release_output()
            SIGNALS.leave(self)

    def after_fork_in_child(self) -> None:
        """Restore everything: failures in a forked child are its own."""
        EXITS.leave(self)
        SCRIPT.leave(self)
        THREADS.leave(self)
        self._release_output()

    def _release_output(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.release()

    def _record(self, error: BaseException, thread: str | None, caught_by: str) -> None:
        with self._guard.catch("recording an error"):
            if self._recorder is not None:
                self._recorder.take(error, caught_by=caught_by, thread=thread)

    def _note_exit(self, status: Any, frame: FrameType | None) -> None:
        with self._guard.catch("recording an exit"):
            if self._recorder is not None:
                self._recorder.note_exit(status, frame)

    def _record_signal(self, name: str, frame: FrameType | None) -> None:
        if self._recorder is not None:
            self._recorder.record_signal(name, frame)
