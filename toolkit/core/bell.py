"""Wakes a waiting thread, and can be rung from anywhere."""

from __future__ import annotations

import threading

from toolkit.runfolder.script_interrupts import pass_on_interrupt

_LONGEST_S = 3600.0
"""More than a lock can wait on some systems is asked for in pieces."""


class Bell:
    """Wakes one waiting thread, or the next one that waits; can be rung from any thread and any signal handler.

    `threading.Event` cannot: an exception that a signal handler raises while its lock is being taken leaves that lock
    held for ever. Here one lock is all there is, and letting go of it is a single step.
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread that waits, or will wait next."""
        if not self._silence.locked():
            # It rings already.
            return
        try:
            self._silence.release()
        except RuntimeError as error:
            # Another thread has just rung it.
            pass_on_interrupt(error)

    def wait(self, timeout_s: float) -> None:
        """Wait until it rings, at most `timeout_s`; an hour at most."""
        self._silence.acquire(timeout=max(0.0, min(timeout_s, _LONGEST_S)))
