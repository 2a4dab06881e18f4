"""Ctrl-C and SIGTERM as a wish that the loop reads between steps."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM; a second one does what it would have done without us."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        # Python lets only the main thread set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._restore()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()
        # print() may be in the middle of a line of its own when the signal comes.
        os.write(
            2, f"\n[run] {self.received.name}: saving after this step; once more ends at once\n".encode()
        )

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself gave us
        self._before.clear()
