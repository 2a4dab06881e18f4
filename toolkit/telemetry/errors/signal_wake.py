"""Notices a signal immediately, even while the main thread is in a call that does not return to Python.

A Python handler runs when the main thread next executes Python code, which it never does while it hangs in a call of
CUDA or the network. The interpreter's C handler writes a byte to a socket immediately, which is read here. Linux tells
which process wrote it: a child between fork and exec has the same socket, and its signals are not ours.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

_CREDENTIALS = struct.Struct("iII")


class SignalWake:
    """Calls `on_signal` with each signal's number, on its own thread. Created and ended on the main thread."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._pid = os.getpid()
        self._reader, self._writer = socket.socketpair()
        self._reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._writer.setblocking(False)
        threading.Thread(target=self._run, name="telemetry-signal-wake", daemon=True).start()

    @classmethod
    def begin(cls, on_signal: Callable[[int], None]) -> SignalWake | None:
        """Return a running one; None if the system cannot identify the writer, or the wakeup descriptor is in use."""
        if sys.platform != "linux" or not hasattr(socket, "SO_PASSCRED"):
            return None
        before = signal.set_wakeup_fd(-1)
        if before != -1:
            # An event loop needs it to notice signals at all.
            signal.set_wakeup_fd(before)
            return None
        wake = cls(on_signal)
        signal.set_wakeup_fd(wake._writer.fileno(), warn_on_full_buffer=False)
        return wake

    def end(self) -> None:
        """Stop; a wakeup descriptor that replaced ours is kept."""
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._writer.fileno()):
            signal.set_wakeup_fd(before)
        # The thread reads the end of the stream, and ends.
        self._writer.close()
        if os.getpid() != self._pid:
            self._reader.close()

    def _run(self) -> None:
        with self._reader:
            while True:
                try:
                    numbers, about, _, _ = self._reader.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
                except OSError:
                    return
                if not numbers:
                    return
                if _sender(about) == self._pid:
                    for number in set(numbers):
                        self._on_signal(number)


def _sender(about: list[tuple[int, int, bytes]]) -> Any:
    for level, kind, data in about:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
    return None
