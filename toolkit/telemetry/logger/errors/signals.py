"""Ends the runs when SIGTERM or SIGHUP ends the process, and then lets the signal take its default action.

A Python handler, only where the script has none. It starts a thread that closes the runs, and returns: the interrupted
code may hold a lock that closing needs. `signal.getsignal` shows it; a handler that is set later replaces it.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from toolkit.telemetry.core.clock import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.lifetime import close_all

NUMBERS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that schedulers, containers and closed terminals send."""

OnSignal = Callable[[str, "FrameType | None"], object]
"""Called with the signal's name and the frame of the main thread, before the runs are closed."""


class Signals:
    """The signal handler of this process, shared by all its loggers and removed when the last one leaves."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[OnSignal, float]] = {}
        self._handler = self._handle
        self._is_prepared = False
        self._masks: dict[int, set[int]] = {}
        """The signals that were blocked in each thread that is forking."""
        self._closing_thread: int | None = None
        self._timeout_s = 0.0
        self._is_ending = False
        """Whether a signal ends the process."""
        self._guard = Guard()

    def join(self, owner: object, on_signal: OnSignal, *, timeout_s: float, guard: Guard) -> bool:
        """Call `on_signal` before a signal ends the process; it may take `timeout_s`.

        Returns whether SIGTERM is handled here: only on the main thread, and if nothing else handles or ignores it.
        """
        if threading.current_thread() is threading.main_thread():
            self._install()
        if not self._installed():
            return False
        self._listeners[id(owner)] = (on_signal, timeout_s)
        self._guard = guard
        return signal.SIGTERM in self._installed()

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`; with the last one, the default action is restored."""
        if self._listeners.pop(id(owner), None) is None or self._listeners:
            return
        # On another thread it cannot be removed: without callbacks the handler takes the default action.
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def wait(self) -> None:
        """If a signal is ending the process, wait for that: a script that ends first would hide it."""
        if self._closing_thread != threading.get_ident():
            wait_until(lambda: not self._is_ending, self._timeout_s + 1.0)

    def _install(self) -> None:
        if not self._is_prepared:
            self._is_prepared = True
            atexit.register(self.wait)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(
                    before=self._before_fork,
                    after_in_parent=self._after_fork_in_parent,
                    after_in_child=self._after_fork_in_child,
                )
        for number in NUMBERS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._handler)

    def _installed(self) -> list[int]:
        return [number for number in NUMBERS if signal.getsignal(number) is self._handler]

    def _restore(self) -> None:
        for number in self._installed():
            signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal on the main thread, in the middle of whatever it was doing."""
        if signal.getsignal(number) is not self._handler:
            # A handler that was set later calls this one, and decides itself what comes next.
            return
        # First, so that a second signal takes effect immediately.
        self._restore()
        listeners = list(self._listeners.values())
        self._timeout_s = max((timeout_s for _, timeout_s in listeners), default=0.0)
        if listeners and not self._is_ending:
            self._is_ending = True
            try:
                # Not `threading.Thread`: the interrupted code may hold the lock of the list of threads.
                _thread.start_new_thread(self._end, (number, frame, listeners))
                return
            except RuntimeError:
                # No more threads can be started: what is in the files has to do.
                self._is_ending = False
        signal.raise_signal(number)

    def _end(self, number: int, frame: FrameType | None, listeners: list[tuple[OnSignal, float]]) -> None:
        """End the process, once the runs are closed or have had their time for it."""

        def close() -> None:
            self._closing_thread = threading.get_ident()
            for on_signal, _ in listeners:
                with self._guard.catch("recording a signal"):
                    on_signal(signal.Signals(number).name, frame)
            with self._guard.catch("ending by a signal"):
                close_all("signal")

        closing = threading.Thread(target=close, name="telemetry-end", daemon=True)
        try:
            closing.start()
            closing.join(self._timeout_s)
        except RuntimeError:
            close()
        # To the process: the first one of a container survives it, as without us.
        os.kill(os.getpid(), number)
        self._closing_thread = None
        self._is_ending = False

    # A signal that comes to a child before Python has set it up would be lost: it waits until the default is restored.

    def _before_fork(self) -> None:
        if self._listeners:
            self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)

    def _after_fork_in_parent(self) -> None:
        blocked = self._masks.pop(threading.get_ident(), None)
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _after_fork_in_child(self) -> None:
        # The threads belong to the parent.
        self._listeners.clear()
        self._is_ending = False
        self._restore()
        self._after_fork_in_parent()


SIGNALS: Final = Signals()
