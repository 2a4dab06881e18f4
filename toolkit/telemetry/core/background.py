"""The background threads of this process, one for each kind of work, and the jobs that take turns on them.

All loggers share them; files have threads of their own in each log directory. A job that hangs, because a disk, a
driver or a network does not answer, keeps its thread, and another one takes over the other jobs of its kind: the
threads of the other kinds see to that, and who waits for such a job.

A caller takes no lock that a thread needs: a signal handler may interrupt it anywhere, and close a run there.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from toolkit.telemetry.core.clock import wait_until

WRITING: Final = "telemetry-writing"
"""Takes records to their file."""
FILES: Final = "telemetry-files"
"""Reads and writes all other files of a run, and forces them onto the disk."""
MACHINE: Final = "telemetry-machine"
"""Asks drivers, programs and other processes, and watches the training."""

_HELD_UP_S: Final = 0.25
"""A turn that takes longer holds up its thread."""
_TOGETHER_S: Final = 1.0
"""Pauses end at multiples of their length, at most of this: one wake-up serves the jobs of all loggers."""
_PHASE_S: Final = {WRITING: 0.0, FILES: 0.15, MACHINE: 0.35}
"""How much later those of a kind do: threads that wake at the same time would wait for each other."""
_EARLY_S: Final = 0.02
"""Jobs that are due within this time run together."""
_LINGER_S: Final = 0.5
"""How long a thread without jobs stays."""
_LONGEST_WAIT_S: Final = 10.0
"""A thread that has nothing to do checks that often whether another one is held up."""

_IMPORT_PATIENCE_S: Final = 1.0
_IMPORTER: Final = "<frozen importlib._bootstrap>"
_PACKAGE: Final = str(Path(__file__).parents[1])

Turn = Callable[[], "float | None"]
"""Does one piece of a job; returns the seconds until the next one (`math.inf`: when it is woken), or None where the job
is over."""


class Job:
    """Takes turns on a background thread; never two at the same time. A turn that raises ends it."""

    def __init__(self, name: str, turn: Turn, worker: Worker) -> None:
        self.name = name
        """The name of the thread while it runs this."""
        self.asked = False
        """Whether a turn is wanted before its time."""
        self.is_closing = False
        """Whether `close` was called: the next turn is the last one."""
        self.is_over = False
        self.due = self.ended = 0.0
        """When the next turn is due, and when the last one ended."""
        self.began: float | None = None
        """When the turn began that it is taking now; None between turns."""
        self._turn = turn
        self._worker = worker
        self._was_added = False
        self._thread: int | None = None
        self._free = deque([None])
        """Taken out in one step by the thread that takes a turn."""
        self._flushes_asked = self._flushes_done = 0
        self._early_s = 0.0
        self._is_flushed = False

    def start(self, after_s: float = 0.0) -> None:
        """Take the first turn in `after_s` seconds. Called again, ask once more for a thread that was refused.

        Raises:
            RuntimeError: the system refused a thread. The job begins once it grants one to another job of this kind.
        """
        if not self._was_added:
            self._was_added = True
            self.due = time.monotonic() + after_s
            self._worker.add(self)
        elif not self.is_over:
            self._worker.have_thread()

    def wake(self) -> None:
        """Have a turn taken soon; one that has begun is followed by another. Waits for nothing."""
        self.asked = True
        self._worker.ring()

    def flush(self, timeout_s: float) -> bool:
        """Wait, at most `timeout_s`, for a turn that began after this call and called `note_flushed`."""
        if not self.is_started:
            return False
        wanted = self._flushes_asked = self._flushes_asked + 1
        self.wake()
        self._wait_until(lambda: self._flushes_done >= wanted or self.is_over, timeout_s)
        return self._flushes_done >= wanted

    def note_flushed(self) -> None:
        """Note, in a turn, that it leaves nothing undone of what was there when it began."""
        self._is_flushed = True

    @property
    def is_started(self) -> bool:
        """Whether it takes turns, or took all: it was started, and the system has granted a thread."""
        return self.is_over or (self._was_added and self._worker.was_granted_a_thread)

    def is_due(self, now: float) -> bool:
        """Return whether it is to take a turn now, and is not taking one."""
        return self.began is None and (self.asked or self.is_over or self.due <= now + self._early_s)

    def is_held_up(self, now: float) -> bool:
        """Return whether its turn takes long: what it waits for may not answer."""
        began = self.began
        return began is not None and now - began > _HELD_UP_S

    def holds_up(self, thread: threading.Thread | None, now: float) -> bool:
        """Return whether its turn takes long on this thread."""
        return thread is not None and self._thread == thread.ident and self.is_held_up(now)

    def join(self, timeout_s: float) -> bool:
        """Wait, at most `timeout_s`, until it is over, unless its own turn waits; return whether it is."""
        self._wait_until(lambda: self.is_over or self._thread == threading.get_ident(), timeout_s)
        return self.is_over

    def _wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        def is_so_or_helped_out() -> bool:
            if is_so():
                return True
            self._worker.help_out(time.monotonic())
            return False

        wait_until(is_so_or_helped_out, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Have the last turns taken, on this thread where the system grants no other; return whether it is over."""
        self.is_closing = True
        self.wake()
        deadline = time.monotonic() + timeout_s
        while not self.is_started and (left_s := deadline - time.monotonic()) > 0.0:
            self.take_turn()
            time.sleep(max(0.0, min(self.due - time.monotonic(), left_s)))
        return self.join(deadline - time.monotonic())

    def take_turn(self) -> None:
        """Take one turn, unless another thread is taking one."""
        try:
            self._free.pop()
        except IndexError:
            return
        pause_s: float | None = None
        flushes = 0
        try:
            self._thread, self.began = threading.get_ident(), time.monotonic()
            # Before it looks at what there is to do: who asks from now on wants another one.
            self.asked, self._is_flushed, flushes = False, False, self._flushes_asked
            if not self.is_over:
                pause_s = self._turn()
        finally:
            self.ended = time.monotonic()
            self.due = self.ended + (pause_s or 0.0)
            # Else a short pause would be none.
            self._early_s = min(_EARLY_S, (pause_s or 0.0) / 2)
            if pause_s is not None and _EARLY_S < pause_s < math.inf:
                every_s, phase_s = min(pause_s, _TOGETHER_S), self._worker.phase_s
                self.due = round((self.due - phase_s) / every_s) * every_s + phase_s
            if self._is_flushed:
                self._flushes_done = max(self._flushes_done, flushes)
            self.is_over = self.is_over or pause_s is None
            self._thread = self.began = None
            self._free.append(None)


class Worker:
    """A thread and the jobs that take turns on it. It runs while there are jobs."""

    def __init__(self, name: str, disk: Path | None = None, *, is_shared: bool = True) -> None:
        self.disk = disk
        """A folder on the disk that its jobs use; None if they use none, or any."""
        self.phase_s = _PHASE_S.get(name, 0.0)
        self.jobs: list[Job] = []
        # The one queue whose `put` may be interrupted by a handler that calls it too.
        self._rung: SimpleQueue[None] = SimpleQueue()
        self._name = name
        self._is_shared = is_shared
        self._thread: threading.Thread | None = None
        """The thread that takes the next turn. One that was replaced ends after the turn that held it up."""
        self._granted_in: int | None = None
        """The process that was granted a thread; None where it was refused."""

    def ring(self) -> None:
        """Wake the thread if it waits, or the next time that it would."""
        if self._rung.empty():
            self._rung.put(None)

    def _wait(self, timeout_s: float) -> bool:
        """Wait until it is woken, some seconds at most; return whether it was."""
        with suppress(Empty):
            self._rung.get(timeout=max(0.0, min(timeout_s, _LONGEST_WAIT_S)))
            return True
        return False

    @property
    def was_granted_a_thread(self) -> bool:
        """Whether a thread runs the jobs; that of a parent does not in a forked child."""
        return self._granted_in == os.getpid()

    def add(self, job: Job) -> None:
        """Run `job` from now on. Raises RuntimeError where the system refuses a thread."""
        self.jobs.append(job)
        if self._is_shared:
            _workers.setdefault((self._name, self.disk), self)
        self.have_thread()
        self.ring()

    def have_thread(self) -> None:
        """Have a thread that runs the jobs. Raises RuntimeError where the system refuses it."""
        if not _is_alive(self._thread):
            self._start_thread()

    def _start_thread(self) -> None:
        """Start a thread, which takes the place of one that is held up. Raises RuntimeError where it is refused."""
        before = self._thread
        # Whoever starts one at the same time makes one too many, which then ends.
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):
            self._thread = before
            if not _is_alive(before):
                self._granted_in = None
            raise
        self._granted_in = os.getpid()

    def forget_thread(self) -> None:
        """In a forked child: the thread is the parent's. A job that has forked is not to run the others there."""
        self._thread = None

    def help_out(self, now: float) -> None:
        """Start another thread if jobs are due, and the thread is held up or has ended; without it they wait."""
        thread = self._thread
        is_available = _is_alive(thread) and not any(job.holds_up(thread, now) for job in self.jobs)
        if not is_available and any(job.is_due(now) for job in self.jobs):
            with suppress(RuntimeError, MemoryError):
                self._start_thread()

    def _serve(self) -> None:
        thread = threading.current_thread()
        try:
            while self._thread is thread:
                now = time.monotonic()
                for worker in list(_workers.values()):
                    worker.help_out(now)
                job = self._next(now)
                if job is not None:
                    thread.name = job.name
                    job.take_turn()
                    thread.name = self._name
                elif self.jobs:
                    waiting = [job.due for job in self.jobs if job.began is None]
                    self._wait(min(waiting, default=math.inf) - now)
                # The end of a run may need it when no thread can be started any more.
                elif not self._wait(_LINGER_S):
                    self._thread = None
                    # After that: who adds a job from now on starts a thread.
                    if self.jobs:
                        self._thread = thread
        finally:
            if self._thread is thread:
                # A job ended its thread: a library that behaves like a program.
                self._thread = None
                self.help_out(math.inf)
            # The turn of a thread that was replaced is over, and its job may be due.
            self.ring()

    def _next(self, now: float) -> Job | None:
        """Return the job that is due and has waited longest since its last turn."""
        for job in tuple(self.jobs):
            if job.is_over:
                with suppress(ValueError):
                    self.jobs.remove(job)
        return min((job for job in self.jobs if job.is_due(now)), key=lambda job: job.ended, default=None)


_workers: dict[tuple[str, Path | None], Worker] = {}
"""Those whose threads are shared, by their kind and disk."""


def background_job(name: str, turn: Turn, kind: str, disk: Path | None = None) -> Job:
    """Return a job for the thread that all jobs of its kind share; `disk` is a folder on the disk that it uses."""
    return Job(name, turn, _workers.setdefault((kind, disk), Worker(kind, disk)))


def own_thread_job(name: str, turn: Turn) -> Job:
    """Return a job that runs on a thread of its own."""
    return Job(name, turn, Worker(name, is_shared=False))


def held_up_disks() -> set[Path]:
    """Return the disks that do not answer now."""
    now = time.monotonic()
    workers = list(_workers.values())
    return {
        worker.disk for worker in workers if worker.disk and any(job.is_held_up(now) for job in worker.jobs)
    }


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _in_forked_child() -> None:
    for worker in list(_workers.values()):
        worker.forget_thread()
    _workers.clear()


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identifier.

    Python before 3.12 can hang in `sys._current_frames` forever: a garbage collection within it may wait for a lock
    that the call itself holds (python/cpython#106883). So it is called here alone, with the collector off.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001 - Python has no other way to ask for them
    finally:
        if is_on:
            gc.enable()


def _await_imports() -> None:
    """Before a fork: a module that a thread of ours is importing stays locked in the child for ever."""
    forking, deadline = threading.get_ident(), time.monotonic() + _IMPORT_PATIENCE_S
    while time.monotonic() < deadline and any(
        _imports_for_us(frame) for thread, frame in frames_of_threads().items() if thread != forking
    ):
        time.sleep(0.001)


def _imports_for_us(frame: FrameType) -> bool:
    files = {each.f_code.co_filename for each, _ in traceback.walk_stack(frame)}
    return _IMPORTER in files and any(file.startswith(_PACKAGE) for file in files)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_await_imports, after_in_child=_in_forked_child)
