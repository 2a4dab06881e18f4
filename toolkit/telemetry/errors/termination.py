"""Records a signal that ends the process and has no handler, and then lets it end the process.

Python does not notice: `signal.getsignal` still returns `SIG_DFL`, and a handler that the script sets later replaces
it. The handler is that of the standard library's `faulthandler`, which is written in C and only writes to a socket. So
it runs immediately, even while the main thread is in a call that does not return, and interrupts nothing. A thread
that reads the socket ends the runs, and then lets the signal take its default action.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.telemetry.errors.stack import frame_of_main_thread

NAMES: Final = ("SIGTERM", "SIGHUP")
"""Signals that schedulers, containers and closed terminals send."""

OnSignal = Callable[[str, "FrameType | None", bool], object]
"""Called with the signal's name, the frame of the main thread, and True: the signal ends the process."""

_CREDENTIALS: Final = struct.Struct("iII")
_SIZE_OF_ACTION: Final = 512
"""More than the size of C's `struct sigaction` on any system. It begins with the address of the handler."""


@dataclass(frozen=True, slots=True)
class _Hooked:
    """One hooked signal."""

    number: int
    reader: socket.socket
    writer: socket.socket
    handler: int
    """The address of faulthandler's handler."""


class Termination:
    """Hooks the signals that end this process for all its loggers; restored when the last one leaves."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[OnSignal, float]] = {}
        self._hooked: list[_Hooked] = []
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
            hooked = {hooked.number for hooked in self._hooked}
        return [name for name in NAMES if getattr(signal, name, None) not in hooked]

    def leave(self, owner: object) -> None:
        """Remove the callback of `owner`; with the last one, everything is restored."""
        with self._lock:
            if self._listeners.pop(id(owner), None) is None or self._listeners:
                return
            self._restore()

    def after_fork_in_child(self) -> None:
        """Restore everything: the thread belongs to the parent."""
        # Another thread of the parent may have held it at the fork.
        self._lock = threading.RLock()
        self._listeners.clear()
        hooked = self._hooked
        self._restore()
        for each in hooked:
            each.reader.close()

    def _hook(self) -> None:
        if not _is_possible():
            return
        numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
        hooked = self._hooked = [_hook(number) for number in numbers if _is_default(number)]
        if hooked:
            threading.Thread(
                target=self._wait, args=(hooked,), name="telemetry-termination", daemon=True
            ).start()

    def _restore(self) -> None:
        hooked, self._hooked = self._hooked, []
        for each in hooked:
            _unhook(each)

    # On its own thread.

    def _wait(self, hooked: list[_Hooked]) -> None:
        me = os.getpid()
        poll = select.poll()
        by_descriptor = {each.reader.fileno(): each for each in hooked}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        try:
            while by_descriptor:
                for descriptor, _ in poll.poll():
                    each = by_descriptor[descriptor]
                    sender = _sender(each.reader)
                    if sender is None:
                        # It was restored. A signal that came just before is still in its socket, or in the other one.
                        poll.unregister(descriptor)
                        del by_descriptor[descriptor]
                    elif sender == me:
                        self._end_by(each.number)
                        return
                    # Else it was a child between fork and exec, which has the same socket: not our signal.
        finally:
            for each in hooked:
                each.reader.close()

    def _end_by(self, number: int) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
            # First, so that a second signal takes effect immediately.
            self._restore()
        frame = frame_of_main_thread()

        def record() -> None:
            for on_signal, _ in listeners:
                with self._guard.catch("recording a signal"):
                    on_signal(signal.Signals(number).name, frame, True)

        recording = threading.Thread(target=record, name="telemetry-end", daemon=True)
        try:
            recording.start()
        except RuntimeError:
            # No more threads can be started: use this one.
            record()
        else:
            recording.join(sum(timeout_s for _, timeout_s in listeners))
        # The first process of a container survives this, as without us: its default action is to do nothing.
        os.kill(os.getpid(), number)


TERMINATION: Final = Termination()


def _is_possible() -> bool:
    """Return whether this system can identify the sender, and this Python has the modules needed."""
    if sys.platform != "linux" or not hasattr(socket, "SO_PASSCRED"):
        return False
    try:
        import ctypes
        import faulthandler
    except ImportError:
        return False
    return hasattr(faulthandler, "register") and hasattr(ctypes.CDLL(None), "sigaction")


def _is_default(number: int) -> bool:
    """Return whether a signal is neither handled, in Python or in C, nor ignored."""
    return signal.getsignal(number) == signal.SIG_DFL and _handler_of(_action(number)) == 0


def _hook(number: int) -> _Hooked:
    import faulthandler

    reader, writer = socket.socketpair()
    try:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # A handler must never wait.
        writer.setblocking(False)
        # Twice: a later registration with `chain` needs what is set up the first time only.
        faulthandler.register(number, file=writer.fileno(), all_threads=False, chain=True)
        faulthandler.register(number, file=writer.fileno(), all_threads=False, chain=False)
    except BaseException:
        reader.close()
        writer.close()
        raise
    return _Hooked(number, reader, writer, _handler_of(_action(number)))


def _unhook(hooked: _Hooked) -> None:
    import faulthandler

    # A handler that replaced ours must stay: faulthandler restores the old one, whatever is there now.
    action = _action(hooked.number)
    faulthandler.unregister(hooked.number)
    if _handler_of(action) != hooked.handler:
        _set_action(hooked.number, action)
    # The thread that reads it finds the end of the stream.
    hooked.writer.close()


def _action(number: int) -> Any:
    """Return the `struct sigaction` of a signal."""
    import ctypes

    action = ctypes.create_string_buffer(_SIZE_OF_ACTION)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action


def _set_action(number: int, action: Any) -> None:
    import ctypes

    ctypes.CDLL(None).sigaction(number, action, None)


def _handler_of(action: Any) -> int:
    return int.from_bytes(action.raw[: struct.calcsize("P")], sys.byteorder)


def _sender(reader: socket.socket) -> int | None:
    """Return the process that wrote to a socket; None if it is closed."""
    with suppress(OSError):
        data, about, _, _ = reader.recvmsg(65_536, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, credentials in about if data else ():
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                return int(_CREDENTIALS.unpack(credentials[: _CREDENTIALS.size])[0])
    return None
