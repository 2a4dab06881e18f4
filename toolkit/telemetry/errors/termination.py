"""Records a signal that ends the process and has no handler, and then lets it end the process.

Python does not notice: `signal.getsignal` still returns `SIG_DFL`, and a handler that the script sets later replaces
it. The handler is a function of the C library that only stores the signal's number in memory. So it runs immediately,
on any thread, and interrupts nothing. The monitor of the background threads reads this memory. Once a signal is there
a thread ends the runs, and then lets the signal take its default action.

`faulthandler` would not do: on a thread that Python does not know, or does not know yet, its handler has no effect.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from toolkit.core.background import background
from toolkit.core.guard import Guard
from toolkit.core.lifetime import close_all
from toolkit.telemetry.errors.stack import frame_of_main_thread

NAMES: Final = ("SIGTERM", "SIGHUP")
"""Signals that schedulers, containers and closed terminals send."""

OnSignal = Callable[[str, "FrameType | None", bool], object]
"""Called with the signal's name, the frame of the main thread, and True: the signal ends the process."""

_SIZE_OF_ACTION: Final = 512
"""More than the size of C's `struct sigaction` on any system. It begins with the address of the handler."""


class Termination:
    """Hooks the signals that end this process for all its loggers; restored when the last one leaves."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[OnSignal, float]] = {}
        self._handler: CHandler | None = None
        self._hooked: set[int] = set()
        """Signals whose handler is ours, or one in C that was set later and may call ours."""
        self._is_checked = False
        """Whether the monitor looks for signals."""
        self._acting: threading.Thread | None = None
        self._end: _End | None = None
        self._came_before_fork: int | None = None
        self._guard = Guard()
        self._lock = threading.RLock()

    def join(self, owner: object, on_signal: OnSignal, *, timeout_s: float, guard: Guard) -> list[str]:
        """Call `on_signal` before a signal ends the process; it may take `timeout_s`.

        Returns the names of the signals that are not hooked, because something else handles or ignores them.
        """
        with self._lock:
            self._listeners[id(owner)] = (on_signal, timeout_s)
            self._guard = guard
            if not self._hooked:
                self._hook()
            return [name for name in NAMES if getattr(signal, name, None) not in self._hooked]

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`; with the last one, everything is restored."""
        # A signal that has already come waits until the run of `owner` is closed.
        if self._notice() is not None:
            self._act_elsewhere()
        with self._lock:
            if self._listeners.pop(id(owner), None) is None or self._listeners:
                return
            self._restore()
        # One may have come just before.
        if self._has_come():
            self._act_elsewhere()

    def act(self) -> None:
        """If a signal has come, end the process by it once the runs are ended, which another thread does."""
        end = self._notice()
        if end is None or end.thread == threading.get_ident():
            return
        end.wait()
        # The first process of a container survives this, as without us: its default action is to do nothing.
        os.kill(os.getpid(), end.number)
        self._end = None

    def _hook(self) -> None:
        if self._handler is None:
            self._handler = CHandler.find()
            if self._handler is not None:
                os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork_in_child)
        handler = self._handler
        if handler is None:
            return
        numbers = {getattr(signal, name) for name in NAMES}
        numbers = {number for number in numbers if handler.is_default(number)}
        if not numbers:
            return
        if not self._is_checked:
            try:
                background().watch_for(self._has_come, self._act_elsewhere)
            except RuntimeError:
                # No more threads can be started: a signal must keep its effect.
                return
            self._is_checked = True
        self._hooked = numbers
        for number in numbers:
            handler.install(number)

    def _restore(self) -> None:
        handler = self._handler
        if handler is None:
            return
        for number in list(self._hooked):
            if handler.is_installed(number):
                handler.set_default(number)
            elif signal.getsignal(number) == signal.SIG_DFL and not handler.is_default(number):
                # A handler in C was set later. It may call ours as the one before it.
                continue
            self._hooked.discard(number)
        if not self._hooked and self._is_checked:
            self._is_checked = False
            background().watch_no_more(self._act_elsewhere)

    def _notice(self) -> _End | None:
        """If a signal has come, begin to end the runs."""
        with self._lock:
            number = None if self._handler is None else self._handler.take()
            if number is None or self._end is not None:
                return self._end
            # First, so that a second signal takes effect immediately.
            self._restore()
            if number in self._hooked and self._handler is not None:
                # A handler in C has called ours: what it wants to come next is the default action.
                self._handler.set_default(number)
            end = self._end = _End(number, frame_of_main_thread(), list(self._listeners.values()))
        end.begin(self._guard)
        return end

    def _before_fork(self) -> None:
        self._came_before_fork = None if self._handler is None else self._handler.came()

    def _after_fork_in_child(self) -> None:
        """Restore everything: the threads belong to the parent."""
        # Another thread of the parent may have held it at the fork.
        self._lock = threading.RLock()
        self._listeners.clear()
        self._end = self._acting = None
        self._restore()
        for number in list(self._hooked):
            # If it is faulthandler that calls our handler: no thread reads what that stores in this process.
            if "faulthandler" in sys.modules and sys.modules["faulthandler"].unregister(number):
                self._restore()
        self._hooked.clear()
        came = None if self._handler is None else self._handler.take()
        if came is not None and came != self._came_before_fork:
            # It came to the child meanwhile, as from `Process.terminate` right after `start`.
            os.kill(os.getpid(), came)

    def _has_come(self) -> bool:
        """Return whether a signal has come; called often, and waits for nothing."""
        return self._handler is not None and self._handler.came() is not None

    def _act_elsewhere(self) -> None:
        """Call `act` on a thread of its own, which waits until the runs are ended."""
        # Two at the same time do no harm.
        if self._acting is not None and self._acting.is_alive():
            return
        self._acting = threading.Thread(target=self.act, name="telemetry-termination", daemon=True)
        try:
            self._acting.start()
        except RuntimeError:
            # No more threads can be started: use this one.
            self.act()


TERMINATION: Final = Termination()


@dataclass(slots=True)
class _End:
    """The end of the process by a signal."""

    number: int
    frame: FrameType | None
    listeners: list[tuple[OnSignal, float]]
    thread: int | None = None
    """The thread that ends the runs, while it does."""
    # Held until they are ended. Not an event: a script's signal handler may interrupt the wait for it, and wait too.
    _ending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._ending.acquire()

    def begin(self, guard: Guard) -> None:
        """End the runs, on another thread if possible."""

        def record() -> None:
            self.thread = threading.get_ident()
            try:
                for on_signal, _ in self.listeners:
                    with guard.catch("recording a signal"):
                        on_signal(signal.Signals(self.number).name, self.frame, True)
                with guard.catch("ending by a signal"):
                    close_all("signal")
            finally:
                self.thread = None
                self._ending.release()

        try:
            threading.Thread(target=record, name="telemetry-end", daemon=True).start()
        except RuntimeError:
            # No more threads can be started: use this one.
            record()

    def wait(self) -> None:
        """Wait until the runs are ended, no longer than they may take."""
        if self._ending.acquire(timeout=max((timeout_s for _, timeout_s in self.listeners), default=0.0)):
            self._ending.release()


class CHandler:
    """A signal handler in C that only stores the signal's number in memory.

    It is `l64a`, which writes the digits of its argument to a buffer of its own and is hardly ever used otherwise. It
    needs no lock, no memory and no Python thread state.
    """

    def __init__(self, library: Any) -> None:
        import ctypes

        self._signal = library.signal
        self._signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self._signal.restype = ctypes.c_void_p
        store = library.l64a
        store.argtypes = (ctypes.c_long,)
        store.restype = ctypes.c_void_p
        self._address = ctypes.cast(store, ctypes.c_void_p).value
        self._number_of = {
            ctypes.string_at(store(number)): number for number in (getattr(signal, name) for name in NAMES)
        }
        self._stored = (ctypes.c_char * 2).from_address(store(signal.SIGTERM))
        self._stored.value = b""

    @classmethod
    def find(cls) -> CHandler | None:
        """Return it; None if this system or this Python does not have what it needs."""
        if sys.platform != "linux" or not hasattr(os, "register_at_fork"):
            return None
        try:
            import ctypes

            library = ctypes.CDLL(None)
        except (ImportError, OSError):
            return None
        has_all = all(hasattr(library, name) for name in ("l64a", "sigaction", "signal"))
        return cls(library) if has_all else None

    def came(self) -> int | None:
        """Return the signal that came last; None if none has come."""
        return self._number_of.get(self._stored.value)

    def take(self) -> int | None:
        """Return the signal that came last, only once."""
        number = self.came()
        if number is not None:
            self._stored.value = b""
        return number

    def install(self, number: int) -> None:
        """Make it the handler of a signal; interrupted system calls continue."""
        self._signal(number, self._address)

    def is_installed(self, number: int) -> bool:
        """Return whether it is the handler of a signal."""
        return handler_of(number) == self._address

    def is_default(self, number: int) -> bool:
        """Return whether a signal is neither handled, in Python or in C, nor ignored."""
        return signal.getsignal(number) == signal.SIG_DFL and handler_of(number) == 0

    def set_default(self, number: int) -> None:
        """Give a signal its default action."""
        self._signal(number, None)


def handler_of(number: int) -> int:
    """Return the address of a signal's handler in C; 0 for the default action, 1 if it is ignored."""
    import ctypes

    action = ctypes.create_string_buffer(_SIZE_OF_ACTION)
    ctypes.CDLL(None).sigaction(number, None, action)
    return int.from_bytes(action.raw[: struct.calcsize("P")], sys.byteorder)
