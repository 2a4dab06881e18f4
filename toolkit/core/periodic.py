"""Threads: one for periodic tasks, and a way to wait for a thread that Ctrl-C can interrupt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from toolkit.core.clock import Clock
from toolkit.core.guard import Guard

_TICK_S = 0.5
_NOTICE_WITHIN_S = 0.25


@dataclass(slots=True)
class Task:
    """Something to do every `every_s` seconds."""

    doing: str
    every_s: float
    do: Callable[[], None]
    due: float = 0.0


class PeriodicThread:
    """Runs each task at its interval. One that fails is counted and runs again; one that hangs delays the others."""

    def __init__(
        self, tasks: list[Task], *, clock: Clock, guard: Guard, name: str = "telemetry-periodic"
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._guard = guard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop, and wait at most `timeout_s` for a running task."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def tick(self) -> None:
        """Run the tasks that are due."""
        now = self._clock.monotonic()
        for task in self._tasks:
            if now >= task.due:
                task.due = now + task.every_s
                with self._guard.catch(task.doing):
                    task.do()

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            self.tick()


def join_thread(thread: threading.Thread, timeout_s: float) -> None:
    """Wait until `thread` has ended, at most `timeout_s`.

    Python notices a signal that arrives just before it waits for a lock only when that wait is over. So a long wait is
    split into short ones.
    """
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and (left_s := deadline - time.monotonic()) > 0.0:
        thread.join(min(left_s, _NOTICE_WITHIN_S))
