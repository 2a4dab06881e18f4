"""Records signals that end the process, and then lets them take effect.

The handler itself takes no lock and writes nothing: the interrupted code may hold what it needs. A thread records the
signal while the handler waits for it, for a limited time; if the handler has interrupted this package itself, it
returns and is called again a moment later. Then the signal does what it did before: a script's own handler is called,
and the default action ends the process.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.core.lifetime import close_all
from toolkit.telemetry.errors.signal_wake import SignalWake
from toolkit.telemetry.errors.stack import frame_of_main_thread

NAMES: Final = ("SIGTERM", "SIGHUP", "SIGXCPU")
"""Signals that schedulers, terminals and resource limits send. Not SIGINT, which Python turns into an exception; not
SIGQUIT, which requests a core dump; not SIGUSR1 and SIGUSR2, which frameworks use."""

OnSignal = Callable[[str, "FrameType | None", bool], object]
"""Called with the signal's name, the frame of the main thread, and whether the signal ends the process."""

Handler = Callable[[int, "FrameType | None"], object]
_OWN_CODE: Final = tuple(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep + folder + os.sep
    for folder in ("core", "diagnostics", "mirrors", "privacy", "runfolder", "telemetry", "timing")
)
_STANDARD_LIBRARY: Final = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_CAN_BE_SENT: Final = hasattr(signal, "pthread_kill")
_AGAIN_S: Final = 0.002
_TRIES_S: Final = 0.3
_MAIN_THREAD_HAS_S: Final = 1.0
"""How long the main thread has to reach its handler before the process is ended without it."""
_MAX_DEPTH: Final = 100


class _PendingSignal:
    """A signal that has to be recorded, or only sent again."""

    __slots__ = ("done", "frame", "is_sent_again", "number")

    def __init__(
        self,
        number: int,
        frame: FrameType | None = None,
        done: threading.Event | None = None,
        *,
        is_sent_again: bool = True,
    ) -> None:
        self.number = number
        self.frame = frame
        self.done = done
        """Set once it is recorded; None if it is not to be recorded."""
        self.is_sent_again = is_sent_again


class Signals:
    """The handlers of this process, shared by all its loggers. `join` and `leave` are called on the main thread."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[OnSignal, float]] = {}
        self._own: dict[int, tuple[Handler, Any]] = {}
        """For each signal our handler, and the previous one."""
        self._pending: queue.SimpleQueue[_PendingSignal | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._first_try: dict[int, float] = {}
        self._is_ending = False
        self._wake: SignalWake | None = None
        self._set_default: Callable[[int], object] | None = None
        self._guard = Guard()

    def join(self, owner: object, on_signal: OnSignal, *, timeout_s: float, guard: Guard) -> None:
        """Call `on_signal` when a signal comes; it may take `timeout_s`."""
        if threading.current_thread() is not threading.main_thread():
            guard.report("recording signals", RuntimeError("only a logger of the main thread can do it"))
            return
        self._listeners[id(owner)] = (on_signal, timeout_s)
        self._guard = guard
        for name in NAMES:
            self._install(getattr(signal, name, None))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="telemetry-signals", daemon=True)
            self._thread.start()
        if self._wake is None:
            with guard.catch("listening for signals"):
                self._set_default = _c_default()
                if self._set_default is not None:
                    self._wake = SignalWake.begin(self._end_if_stuck)

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`; with the last one, each handler that is still ours is restored."""
        if self._listeners.pop(id(owner), None) is None or self._listeners or self._is_ending:
            return
        if threading.current_thread() is not threading.main_thread():
            # Only the main thread can set handlers; ours now only does what the previous one did.
            return
        self._pending.put(None)
        self._thread = None
        self._restore()

    def after_fork_in_child(self) -> None:
        """Restore everything: the threads belong to the parent."""
        self._listeners.clear()
        self._pending = queue.SimpleQueue()
        self._thread = None
        self._restore()

    def _install(self, number: int | None) -> None:
        if number is None:
            return
        before = signal.getsignal(number)
        # An ignored signal ends nothing, and a handler that is not written in Python cannot be called from here.
        if before in (signal.SIG_IGN, None) or before is self._own.get(number, (None, None))[0]:
            return

        # A new function each time: another handler may have replaced the last one, and still call it.
        def handle(number: int, frame: FrameType | None) -> None:
            self._handle(number, frame, before)

        self._own[number] = (handle, before)
        signal.signal(number, handle)

    def _restore(self) -> None:
        for number, (own, before) in self._own.items():
            if signal.getsignal(number) is own:
                signal.signal(number, before)
        self._own.clear()
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake.end()

    # On the main thread, in the middle of whatever it was doing.

    def _handle(self, number: int, frame: FrameType | None, before: Any) -> None:
        if callable(before):
            # The process continues, so that what is logged here comes after the call that it may have interrupted.
            self._record(number, frame, is_end=False)
            before(number, frame)
            return
        if not self._listeners or self._is_ending:
            # Also for a second signal: its sender does not want to wait.
            _end_by(number)
            return
        now = time.monotonic()
        is_own_code = _CAN_BE_SENT and _is_own_code(frame)
        if is_own_code and now - self._first_try.setdefault(number, now) < _TRIES_S:
            self._pending.put(_PendingSignal(number))
            return
        self._is_ending = True
        done = threading.Event()
        self._pending.put(_PendingSignal(number, frame, done, is_sent_again=is_own_code))
        if is_own_code:
            # A script that does little but log: it continues until the signal is sent again, once it is recorded.
            return
        done.wait(self._limit())
        _end_by(number)

    def _limit(self) -> float:
        return max((timeout for _, timeout in self._listeners.values()), default=0.0)

    # On threads of its own.

    def _run(self) -> None:
        queued = self._pending
        while (pending := queued.get()) is not None:
            if pending.done is None:
                time.sleep(_AGAIN_S)
            else:
                self._record(pending.number, pending.frame, is_end=True)
                pending.done.set()
            if pending.is_sent_again:
                signal.pthread_kill(threading.main_thread().ident or 0, pending.number)

    def _record(self, number: int, frame: FrameType | None, *, is_end: bool) -> None:
        name = signal.Signals(number).name
        for on_signal, _ in list(self._listeners.values()):
            with self._guard.catch("recording a signal"):
                on_signal(name, frame, is_end)
        if is_end:
            with self._guard.catch("ending by a signal"):
                close_all("signal")

    def _end_if_stuck(self, number: int) -> None:
        """End the process by a signal that the main thread does not handle: it is in a call that does not return."""
        own, before = self._own.get(number, (None, None))
        if before is not signal.SIG_DFL or signal.getsignal(number) is not own:
            return
        deadline = time.monotonic() + _MAIN_THREAD_HAS_S
        while time.monotonic() < deadline:
            if self._is_ending or number in self._first_try or not self._listeners:
                return
            time.sleep(_AGAIN_S)
        self._is_ending = True
        done = threading.Event()
        frame = frame_of_main_thread()
        self._pending.put(_PendingSignal(number, frame, done, is_sent_again=False))
        done.wait(self._limit())
        if self._set_default is not None:
            self._set_default(number)
            signal.raise_signal(number)


SIGNALS: Final = Signals()


def _end_by(number: int) -> None:
    """End the process as it would have ended without a handler."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _is_own_code(frame: FrameType | None) -> bool:
    """Return whether the signal interrupted this package, including its calls of the standard library."""
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return False
        file = frame.f_code.co_filename
        if file.startswith(_OWN_CODE):
            return True
        if not file.startswith(_STANDARD_LIBRARY) or "-packages" in file:
            return False
        frame = frame.f_back
    return False


def _c_default() -> Callable[[int], object] | None:
    """Return a function that restores a signal's default action from any thread; None if there is none.

    Python's own function works only on the main thread. Prepared beforehand: a signal is no time to import anything.
    """
    try:
        import ctypes
    except ImportError:
        return None
    if sys.platform == "win32":
        return None
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_handler.restype = ctypes.c_void_p
    return lambda number: set_handler(number, None)
