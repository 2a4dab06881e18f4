"""Tasks that are done every few seconds in the background, such as the heartbeat of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from toolkit.telemetry.core.background import MACHINE, background_job
from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard

_FIRST_AFTER_S = 0.5
_TICK_S = 1.0


Task = tuple[str, float, Callable[[], object]]
"""What is being done, every how many seconds, and the function that does it."""


class PeriodicTasks:
    """Does each task at its interval, in the background.

    One that fails is counted and done again; one that hangs delays the others of these tasks. `kind` is that of their
    background job.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        clock: Clock,
        guard: Guard,
        kind: str = MACHINE,
        disk: Path | None = None,
    ) -> None:
        self._tasks = list(tasks)
        self._due = [0.0] * len(self._tasks)
        self._tick_s = min([_TICK_S, *(every_s for _, every_s, _ in self._tasks)])
        self._clock = clock
        self._guard = guard
        self._job = background_job("telemetry-periodic", self._turn, kind, disk)

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system refuses a thread."""
        self._job.start(_FIRST_AFTER_S)

    def close(self, timeout_s: float) -> None:
        """Stop, and wait at most `timeout_s` for a running task."""
        self._job.close(timeout_s)

    def tick(self) -> None:
        """Do the tasks that are due."""
        now = self._clock.monotonic()
        for place, (doing, every_s, do) in enumerate(self._tasks):
            # At the tick that is nearest to its time.
            if now + self._tick_s / 2 >= self._due[place]:
                self._due[place] = now + every_s
                with self._guard.catch(doing):
                    do()

    def _turn(self) -> float | None:
        if self._job.is_closing:
            return None
        self.tick()
        return self._tick_s
