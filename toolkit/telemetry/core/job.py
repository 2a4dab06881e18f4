"""Work that is done in the background, one turn after the other, until it is over; and a thread for one such job."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_NOTICE_WITHIN_S = 0.25

Turn = Callable[[], "float | None"]
"""Does one piece of the work; returns the seconds until the next one (`math.inf`: when it is woken), or None where the
work is over."""


class Runner(Protocol):
    """What gives jobs their turns: threads that many share, or one of its own."""

    @property
    def has_threads(self) -> bool:
        """Whether there is a thread to run a job."""
        ...

    def add(self, job: Job, after_s: float) -> None:
        """Run `job` from `after_s` seconds on. Raises RuntimeError where the system refuses a thread."""
        ...

    def have_threads(self) -> None:
        """Have a thread if there is none. Raises RuntimeError where the system refuses it."""
        ...

    def notice(self, *, is_urgent: bool) -> None:
        """Notice that a job was asked for a turn; waits for nothing."""
        ...


class Job:
    """Takes turns on a background thread; never two at the same time.

    A turn that raises ends the job, and its exception ends the thread: a turn guards itself.
    """

    WAITING, READY, RUNNING = range(3)

    def __init__(
        self, name: str, turn: Turn, runner: Runner, *, may_block: bool = False, disk: Path | None = None
    ) -> None:
        self.name = name
        """The name of the thread while it runs this."""
        self.may_block = may_block
        """Whether a turn usually waits for a disk or a network, so that others are soon to run without it."""
        self.disk = disk
        """A folder on the disk that its turns use; None if they use none, or any."""
        self.asked = False
        """Whether a turn is wanted before its time."""
        self.is_over = False
        self.pause_s = 0.0
        """Seconds from the end of the last turn to the next one."""
        # Of the threads that share the job, changed under their lock.
        self.state = self.WAITING
        self.due = 0.0
        self.next_due = 0.0
        self._turn = turn
        self._runner = runner
        self._was_added = False
        self._thread: int | None = None
        self._free = deque([None])
        """Taken out in one step by the thread that takes a turn."""
        # Held until it is over. Not an event, for the reason that `WakeUp` gives.
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def start(self, after_s: float = 0.0) -> None:
        """Take the first turn in `after_s` seconds. Called again, ask once more for a thread that was refused.

        Raises:
            RuntimeError: the system refused a thread. The job begins once it grants one to another job.
        """
        if self._was_added:
            self._runner.have_threads()
        else:
            self._was_added = True
            self._runner.add(self, after_s)

    def wake(self, *, is_urgent: bool = True) -> None:
        """Have a turn taken soon; one that has begun is followed by another. Waits for nothing.

        Where it is not urgent, the turn of another job that asks for this one is usually ended first.
        """
        self.asked = True
        self._runner.notice(is_urgent=is_urgent)

    @property
    def is_started(self) -> bool:
        """Whether it takes turns, or took all: it was started, and the system has granted a thread."""
        return self.is_over or (self._was_added and self._runner.has_threads)

    def join(self, timeout_s: float) -> bool:
        """Wait, at most `timeout_s`, until it is over; return whether it is.

        Python notices a signal that arrives just before it waits for a lock only when that wait is over. So a long wait
        is split into short ones.
        """
        deadline = time.monotonic() + timeout_s
        while (
            not self.is_over
            and self._thread != threading.get_ident()
            and (left_s := deadline - time.monotonic()) > 0.0
        ):
            if self._under_way.acquire(timeout=min(left_s, _NOTICE_WITHIN_S)):
                self._under_way.release()
        return self.is_over

    def run_here(self, timeout_s: float) -> None:
        """Take the turns that are left on the calling thread, for `timeout_s`: the system grants no other."""
        deadline = time.monotonic() + timeout_s
        while not self.is_over and time.monotonic() < deadline:
            self.take_turn()
            if not self.is_over:
                time.sleep(min(self.pause_s, _NOTICE_WITHIN_S))

    def take_turn(self) -> None:
        """Take one turn, unless another thread is taking one."""
        try:
            self._free.pop()
        except IndexError:
            return
        try:
            self._thread = threading.get_ident()
            # Before it looks at what there is to do: who asks from now on wants another one.
            self.asked = False
            if not self.is_over:
                pause_s = self._turn()
                if pause_s is None:
                    self.end()
                else:
                    self.pause_s = pause_s
        finally:
            self._thread = None
            self._free.append(None)

    def end(self) -> None:
        """Release all who wait for it."""
        if not self.is_over:
            self.is_over = True
            self._under_way.release()


_LONGEST_S = 3600.0
"""More than a lock can wait on some systems is asked for in pieces."""


class WakeUp:
    """Wakes one waiting thread, or the next one that waits; any thread and any signal handler may call `wake`.

    `threading.Event` cannot: an exception that a signal handler raises while its lock is being taken leaves that lock
    held for ever. Here one lock is all there is, and letting go of it is a single step.
    """

    def __init__(self) -> None:
        self._sleeping = threading.Lock()
        self._sleeping.acquire()

    def wake(self) -> None:
        """Wake the thread that waits, or will wait next."""
        if not self._sleeping.locked():
            # It is woken already.
            return
        try:
            self._sleeping.release()
        except RuntimeError:
            # Another thread has just woken it.
            pass

    def wait(self, timeout_s: float) -> None:
        """Wait until it is woken, at most `timeout_s`; an hour at most."""
        self._sleeping.acquire(timeout=max(0.0, min(timeout_s, _LONGEST_S)))


class _OwnThread:
    """Gives its one job its turns."""

    def __init__(self) -> None:
        self._wake_up = WakeUp()
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
        self._wake_up.wake()

    def _run(self, job: Job, after_s: float) -> None:
        try:
            if after_s:
                self._wake_up.wait(after_s)
            while not job.is_over:
                job.take_turn()
                if not job.is_over:
                    self._wake_up.wait(job.pause_s)
        finally:
            job.end()


def own_thread_job(name: str, turn: Turn) -> Job:
    """Return a job that runs on a thread of its own."""
    return Job(name, turn, _OwnThread())
