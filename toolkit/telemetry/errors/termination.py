"""A signal that ends the process, of which the script has no handler: recorded first, and then it ends the process.

Python does not see it: `signal.getsignal` still says `SIG_DFL`, and a handler that the script sets later takes its
place. The handler is that of the standard library's `faulthandler`, which is written in C and only writes to a socket.
So it answers at once, also while the main thread is in a call that does not come back, and interrupts nothing. A thread
that reads the socket ends the runs, and then has the signal do what it does by default.
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
"""What schedulers, containers and terminals that are closed end a process with."""

Told = Callable[[str, "FrameType | None", bool], object]
"""Is given the signal's name, where the main thread is, and True: the process ends by it."""

_CREDENTIALS: Final = struct.Struct("iII")
_SIZE_OF_ACTION: Final = 512
"""More than C's `struct sigaction` takes anywhere. It begins with the address of the handler."""


@dataclass(frozen=True, slots=True)
class _Hooked:
    """One signal that is listened for."""

    number: int
    reader: socket.socket
    writer: socket.socket
    handler: int
    """The address of faulthandler's handler."""


class Termination:
    """What ends this process, listened for on behalf of all its loggers; given back when the last one leaves."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[Told, float]] = {}
        self._hooked: list[_Hooked] = []
        self._guard = Guard()
        self._lock = threading.RLock()

    def join(self, who: object, told: Told, *, timeout_s: float, guard: Guard) -> list[str]:
        """Have `told` called before a signal ends the process; it may take `timeout_s`.

        Returns the names of the signals that are not listened for: something else handles or ignores them.
        """
        with self._lock:
            self._listeners[id(who)] = (told, timeout_s)
            self._guard = guard
            if not self._hooked:
                self._hook()
            hooked = {hooked.number for hooked in self._hooked}
        return [name for name in NAMES if getattr(signal, name, None) not in hooked]

    def leave(self, who: object) -> None:
        """Have nothing called any more; with the last one, everything is as it was before the first."""
        with self._lock:
            if self._listeners.pop(id(who), None) is None or self._listeners:
                return
            self._give_back()

    def after_fork_in_child(self) -> None:
        """Give everything back: the thread is the parent's."""
        # Another thread of the parent's may have held it at that moment.
        self._lock = threading.RLock()
        self._listeners.clear()
        hooked = self._hooked
        self._give_back()
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

    def _give_back(self) -> None:
        hooked, self._hooked = self._hooked, []
        for each in hooked:
            _unhook(each)

    # On a thread of its own.

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
                        # It was given back. A signal that came just before is still in its socket, or the other's.
                        poll.unregister(descriptor)
                        del by_descriptor[descriptor]
                    elif sender == me:
                        self._end_by(each.number)
                        return
                    # Else it was a child between fork and exec, which has the same socket: its signals are its own.
        finally:
            for each in hooked:
                each.reader.close()

    def _end_by(self, number: int) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
            # First: a second signal does not wait for what the first one begins.
            self._give_back()
        frame = frame_of_main_thread()

        def tell_all() -> None:
            for told, _ in listeners:
                with self._guard.catch("telling of a signal"):
                    told(signal.Signals(number).name, frame, True)

        teller = threading.Thread(target=tell_all, name="telemetry-end", daemon=True)
        try:
            teller.start()
        except RuntimeError:
            # No more threads: this one has nothing else to do.
            tell_all()
        else:
            teller.join(sum(timeout_s for _, timeout_s in listeners))
        # The first process of a container survives it, as it would without us: there the default is to do nothing.
        os.kill(os.getpid(), number)


TERMINATION: Final = Termination()


def _is_possible() -> bool:
    """Say whether this system can say whose signal it was, and this Python has what is needed."""
    if sys.platform != "linux" or not hasattr(socket, "SO_PASSCRED"):
        return False
    try:
        import ctypes
        import faulthandler
    except ImportError:
        return False
    return hasattr(faulthandler, "register") and hasattr(ctypes.CDLL(None), "sigaction")


def _is_default(number: int) -> bool:
    """Say whether nobody handles a signal, neither in Python nor in C, and nobody ignores it."""
    return signal.getsignal(number) == signal.SIG_DFL and _handler_of(_action(number)) == 0


def _hook(number: int) -> _Hooked:
    import faulthandler

    reader, writer = socket.socketpair()
    try:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # A handler must never wait.
        writer.setblocking(False)
        # Twice: whoever registers it later with `chain` needs what C sets up for that the first time only.
        faulthandler.register(number, file=writer.fileno(), all_threads=False, chain=True)
        faulthandler.register(number, file=writer.fileno(), all_threads=False, chain=False)
    except BaseException:
        reader.close()
        writer.close()
        raise
    return _Hooked(number, reader, writer, _handler_of(_action(number)))


def _unhook(hooked: _Hooked) -> None:
    import faulthandler

    # Whoever has taken its place stays there: faulthandler puts back what was there before it, whatever is there now.
    action = _action(hooked.number)
    faulthandler.unregister(hooked.number)
    if _handler_of(action) != hooked.handler:
        _set_action(hooked.number, action)
    # The thread that reads it finds its end.
    hooked.writer.close()


def _action(number: int) -> Any:
    """Return what C does at a signal."""
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
    """Return the process that has written to a socket; None where nobody can any more."""
    with suppress(OSError):
        data, about, _, _ = reader.recvmsg(65_536, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, credentials in about if data else ():
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                return int(_CREDENTIALS.unpack(credentials[: _CREDENTIALS.size])[0])
    return None
