"""Signals that end the process: told of, and then carried out as they would have been.

The handler itself takes no lock and writes nothing: the code that it interrupts may hold what that would need. A
thread does the telling while the handler waits for it, for a limited time; where the handler has interrupted this
package itself, it lets it go on and comes again a moment later. Then the signal does what it did before: a script's
own handler is called, and the default ends the process by that very signal.
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
from toolkit.telemetry.errors.signal_wake import SignalWake
from toolkit.telemetry.errors.stack import frame_of_main_thread

NAMES: Final = ("SIGTERM", "SIGHUP", "SIGXCPU")
"""What schedulers, terminals and limits end a process with. Not SIGINT, which Python makes an exception of; not
SIGQUIT, by which somebody asks for a core dump; not SIGUSR1 and SIGUSR2, which frameworks take where nobody has."""

Told = Callable[[str, "FrameType | None", bool], object]
"""Is given the signal's name, where the main thread was, and whether the process ends by it."""

Handler = Callable[[int, "FrameType | None"], object]
_OWN_CODE: Final = tuple(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep + folder + os.sep
    for folder in ("telemetry", "runfolder", "diagnostics", "timing")
)
_STANDARD_LIBRARY: Final = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_CAN_BE_SENT: Final = hasattr(signal, "pthread_kill")
_AGAIN_S: Final = 0.002
_TRIES_S: Final = 0.3
_MAIN_THREAD_HAS_S: Final = 1.0
"""So long the main thread has to come to its handler before the process is ended without it."""
_MAX_DEPTH: Final = 100


class _Asked:
    """A signal that is to be told of, or only to be sent again."""

    __slots__ = ("frame", "is_sent_again", "number", "told")

    def __init__(
        self,
        number: int,
        frame: FrameType | None = None,
        told: threading.Event | None = None,
        *,
        is_sent_again: bool = True,
    ) -> None:
        self.number = number
        self.frame = frame
        self.told = told
        """Set once it is told; None where it is not to be told."""
        self.is_sent_again = is_sent_again


class Signals:
    """The handlers of this process, shared by all its loggers. Joined and left on the main thread."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[Told, float]] = {}
        self._own: dict[int, tuple[Handler, Any]] = {}
        """Of each signal our handler, and what was there before it."""
        self._to_tell: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None
        self._first_try: dict[int, float] = {}
        self._is_ending = False
        self._wake: SignalWake | None = None
        self._set_default: Callable[[int], object] | None = None
        self._guard = Guard()

    def join(self, who: object, told: Told, *, timeout_s: float, guard: Guard) -> None:
        """Have `told` called when a signal comes; it may take `timeout_s`."""
        if threading.current_thread() is not threading.main_thread():
            guard.report("recording signals", RuntimeError("only a logger of the main thread can do it"))
            return
        self._listeners[id(who)] = (told, timeout_s)
        self._guard = guard
        for name in NAMES:
            self._install(getattr(signal, name, None))
        if self._teller is None or not self._teller.is_alive():
            self._teller = threading.Thread(target=self._tell_all, name="telemetry-signals", daemon=True)
            self._teller.start()
        if self._wake is None:
            with guard.catch("listening for signals"):
                self._set_default = _c_default()
                if self._set_default is not None:
                    self._wake = SignalWake.begin(self._look_after)

    def leave(self, who: object) -> None:
        """Have nothing called any more; with the last one, each handler that is still ours is given back."""
        if self._listeners.pop(id(who), None) is None or self._listeners or self._is_ending:
            return
        if threading.current_thread() is not threading.main_thread():
            # Python lets only the main thread set handlers; ours now does what the one before it did, and no more.
            return
        self._to_tell.put(None)
        self._teller = None
        self._give_back()

    def after_fork_in_child(self) -> None:
        """Give everything back: the threads are the parent's."""
        self._listeners.clear()
        self._to_tell = queue.SimpleQueue()
        self._teller = None
        self._give_back()

    def _install(self, number: int | None) -> None:
        if number is None:
            return
        before = signal.getsignal(number)
        # One that is ignored ends nothing, and one that is handled outside of Python cannot be called from here.
        if before in (signal.SIG_IGN, None) or before is self._own.get(number, (None, None))[0]:
            return

        # Each time another one: somebody may have put theirs on top of the last, and still call it.
        def handle(number: int, frame: FrameType | None) -> None:
            self._handle(number, frame, before)

        self._own[number] = (handle, before)
        signal.signal(number, handle)

    def _give_back(self) -> None:
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
            # It goes on afterwards, so that what is logged here comes behind the call that it may have interrupted.
            self._tell(number, frame, is_end=False)
            before(number, frame)
            return
        if not self._listeners or self._is_ending:
            # Also a second one: whoever sends it does not want to wait.
            _end_by(number)
            return
        now = time.monotonic()
        is_own_code = _CAN_BE_SENT and _is_own_code(frame)
        if is_own_code and now - self._first_try.setdefault(number, now) < _TRIES_S:
            self._to_tell.put(_Asked(number))
            return
        self._is_ending = True
        told = threading.Event()
        self._to_tell.put(_Asked(number, frame, told, is_sent_again=is_own_code))
        if is_own_code:
            # A script that does little else than log: it goes on until the signal comes again, behind the telling.
            return
        told.wait(self._limit())
        _end_by(number)

    def _limit(self) -> float:
        return max((timeout for _, timeout in self._listeners.values()), default=0.0)

    # On threads of its own.

    def _tell_all(self) -> None:
        to_tell = self._to_tell
        while (asked := to_tell.get()) is not None:
            if asked.told is None:
                time.sleep(_AGAIN_S)
            else:
                self._tell(asked.number, asked.frame, is_end=True)
                asked.told.set()
            if asked.is_sent_again:
                signal.pthread_kill(threading.main_thread().ident or 0, asked.number)

    def _tell(self, number: int, frame: FrameType | None, *, is_end: bool) -> None:
        name = signal.Signals(number).name
        for told, _ in list(self._listeners.values()):
            with self._guard.catch("telling of a signal"):
                told(name, frame, is_end)

    def _look_after(self, number: int) -> None:
        """End the process by a signal that the main thread does not come to: it is in a call that does not end."""
        own, before = self._own.get(number, (None, None))
        if before is not signal.SIG_DFL or signal.getsignal(number) is not own:
            return
        deadline = time.monotonic() + _MAIN_THREAD_HAS_S
        while time.monotonic() < deadline:
            if self._is_ending or number in self._first_try or not self._listeners:
                return
            time.sleep(_AGAIN_S)
        self._is_ending = True
        told = threading.Event()
        frame = frame_of_main_thread()
        self._to_tell.put(_Asked(number, frame, told, is_sent_again=False))
        told.wait(self._limit())
        if self._set_default is not None:
            self._set_default(number)
            signal.raise_signal(number)


SIGNALS: Final = Signals()


def _end_by(number: int) -> None:
    """End the process as it would have ended without a handler."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _is_own_code(frame: FrameType | None) -> bool:
    """Say whether the signal came in the middle of this package's work, its calls of the standard library included."""
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
    """Return what gives a signal its default back from any thread; None where there is no such thing.

    Python's own function for it is the main thread's alone. Made beforehand: a signal is no time to import anything.
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
