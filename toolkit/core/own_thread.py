"""A background thread for one job: for code of others, which may expect to be called on the same thread each time."""

from __future__ import annotations

import threading

from toolkit.core.bell import Bell
from toolkit.core.job import Job, Turn


class _OwnThread:
    """Gives its one job its turns."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._thread: threading.Thread | None = None

    @property
    def has_threads(self) -> bool:
        """Whether its thread runs; that of a parent does not in a forked child."""
        return self._thread is not None and self._thread.is_alive()

    def add(self, job: Job, after_s: float) -> None:
        """Start the thread. Raises RuntimeError where the system refuses it."""
        self._thread = threading.Thread(target=self._run, args=(job, after_s), name=job.name, daemon=True)
        self._thread.start()

    def have_threads(self) -> None:
        """Do nothing: it was started with its job."""

    def notice(self, *, is_urgent: bool) -> None:  # noqa: ARG002
        """Wake the thread."""
        self._bell.ring()

    def _run(self, job: Job, after_s: float) -> None:
        try:
            if after_s:
                self._bell.wait(after_s)
            while not job.is_over:
                job.take_turn()
                if not job.is_over:
                    self._bell.wait(job.pause_s)
        finally:
            job.end()


def own_thread_job(name: str, turn: Turn) -> Job:
    """Return a job that runs on a thread of its own."""
    return Job(name, turn, _OwnThread())
