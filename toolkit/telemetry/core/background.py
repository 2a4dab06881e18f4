"""The background threads of this process: few workers that run the jobs of all loggers, and a monitor over them.

One worker is enough as long as no job takes long: it waits for the next job that is due, and runs what is due at the
same time one after the other. The monitor runs no job. It checks now and then whether jobs are due that no worker
gets to, because a disk, a driver or a network does not answer, and starts another worker. So there are never more
workers than jobs that hang, and a few. Jobs for a disk that does not answer run after all others.

A caller's thread takes no lock that a worker needs: a signal handler may interrupt it anywhere, and close a run there.
It changes a job or a queue in one step and rings a bell.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.job import Job, Turn, WakeUp

_IDLE_NAME: Final = "telemetry-worker"
_SOON_S: Final = 0.02
"""How long a job that is due waits for a worker that is busy, before there is another one."""
_FEW: Final = 3
_SLOW_S: Final = 0.25
_SEVERAL: Final = 12
_HUNG_S: Final = 2.0
_AT_ONCE: Final = 8
"""Workers that are started at once where so many hang already."""
_LINGER_S: Final = 2.0
"""How long a worker stays that is not needed."""
_CHECK_S: Final = 0.25
_CHECK_WHEN_IDLE_S: Final = 2.0
_SHORT_PAUSE_S: Final = 0.4
"""Jobs with pauses like this show that something is logged."""
_ACTIVE_S: Final = 2.0
"""How long after the turn of such a job something counts as being logged."""
_AFTER_BUG_S: Final = 0.5
_EARLY_S: Final = 0.002
_TICKS_S: Final = (1.0, 0.5, 0.1)
"""Jobs run at multiples of these, so that one wake-up of a worker serves many."""
_AT_EXIT: Final = 3
"""Workers for the end of the process, where what hangs may need another one and none can be started."""
_FEWEST: Final = _AT_EXIT if sys.version_info[:2] == (3, 12) else 1
"""Workers that are not held up at any time. Python 3.12 says too late that the process is about to end."""


class _Worker:
    """A thread that runs jobs."""

    __slots__ = ("is_idle", "job", "since", "thread")

    def __init__(self, since: float) -> None:
        self.thread: threading.Thread
        self.job: Job | None = None
        self.since = since
        """When it was started, or took its job."""
        self.is_idle = False


class Background:
    """Runs jobs on as few threads as it can. There are none while there are no jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Taken by workers and the monitor only."""
        self._changed: deque[Job] = deque()
        """Jobs that were added, and those that come from a turn."""
        self._jobs: dict[Job, None] = {}
        self._schedule: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._ready: deque[Job] = deque()
        self._some_asked = False
        self._is_urgent = False
        """Whether a caller may wait for a job that was asked for a turn."""
        self._workers: list[_Worker] = []
        self._leader: _Worker | None = None
        """The worker that waits for the next job that is due."""
        self._monitor: threading.Thread | None = None
        self._work, self._alarm = WakeUp(), WakeUp()
        self._active_until = 0.0
        self._all_busy_at = 0.0
        self._is_exiting = False
        self._guard = Guard()

    # What callers use, on any thread.

    def add(self, job: Job, after_s: float) -> None:
        """Run `job` from `after_s` seconds on.

        Raises:
            RuntimeError: the system refused a thread. The job runs once it grants one to another.
        """
        job.next_due = time.monotonic() + after_s
        self._changed.append(job)
        try:
            self.have_threads()
        finally:
            self._ring()

    def notice(self, *, is_urgent: bool) -> None:
        """Notice that a job was asked for a turn."""
        if not is_urgent and self._is_in_turn():
            # This worker finds it after its turn, without a wake-up. Should the turn hang, the monitor finds it.
            self._some_asked = True
            return
        self._is_urgent = True
        self._some_asked = True
        self._ring()

    def _is_in_turn(self) -> bool:
        """Return whether a worker calls this."""
        me = threading.get_ident()
        return any(worker.job is not None and worker.thread.ident == me for worker in self._workers)

    @property
    def has_threads(self) -> bool:
        """Whether there are threads, so that a job is run."""
        return bool(self._workers) or self._monitor is not None

    def _ring(self) -> None:
        self._work.wake()
        # After the change that is to be noticed: a worker says that it is busy before it looks for changes.
        if not any(worker.is_idle for worker in self._workers):
            self._alarm.wake()

    def have_threads(self) -> None:
        """Have a worker and the monitor. Raises RuntimeError where the system refuses a thread."""
        # Who looks at the same time may start one too many, which then ends.
        for _ in range(_FEWEST - len(self._workers)):
            self._start_worker()
        monitor = self._monitor
        if monitor is None or (monitor.ident is not None and not monitor.is_alive()):
            monitor = threading.Thread(target=self._watch, name="telemetry-monitor", daemon=True)
            self._monitor = monitor
            try:
                monitor.start()
            except (RuntimeError, MemoryError):
                self._monitor = None
                raise

    def _start_worker(self) -> None:
        worker = _Worker(time.monotonic())
        worker.thread = threading.Thread(target=self._serve, args=(worker,), name=_IDLE_NAME, daemon=True)
        # Before it runs: who looks meanwhile need not start another one.
        self._workers.append(worker)
        try:
            worker.thread.start()
        except (RuntimeError, MemoryError):
            self._workers.remove(worker)
            raise

    def forget_threads(self) -> None:
        """In a forked child: have no threads, so that no call waits for them."""
        self._workers, self._monitor = [], None

    def prepare_for_exit(self) -> None:
        """Start workers for the end of the process: since Python 3.12 its exit handlers can start none."""
        if self._jobs or self._changed:
            self._is_exiting = True
            self._start_workers(_AT_EXIT)

    # Of a worker.

    def _serve(self, worker: _Worker) -> None:
        try:
            # A job may fork, and its child is not to run the jobs of its parent.
            while _background is self:
                job: Job | None = None
                wait_s: float | None = _AFTER_BUG_S
                with self._guard.catch("looking for background work"):
                    job, wait_s = self._choose(worker)
                if job is not None:
                    try:
                        self._run(worker, job)
                    finally:
                        worker.job = None
                        self._changed.append(job)
                elif wait_s is None:
                    return
                else:
                    self._work.wait(wait_s)
        finally:
            if worker in self._workers:
                # A job ended its thread: a library that behaves like a program.
                self._workers.remove(worker)
                self._alarm.wake()

    def _run(self, worker: _Worker, job: Job) -> None:
        thread = worker.thread
        is_over = True
        try:
            thread.name = job.name
            job.take_turn()
            is_over = job.is_over
        finally:
            thread.name = _IDLE_NAME
            if is_over:
                job.end()
            now = time.monotonic()
            job.next_due = next_due(job.due, now, job.pause_s)
            if job.pause_s < _SHORT_PAUSE_S:
                self._active_until = now + _ACTIVE_S

    def _choose(self, worker: _Worker) -> tuple[Job | None, float | None]:
        """Return a job to run now; or None and how long to wait for one, or None and None where it is to end."""
        with self._lock:
            # First: who asks for a turn from now on rings the monitor too.
            worker.is_idle = False
            is_urgent, self._is_urgent = self._is_urgent, False
            now = time.monotonic()
            self._collect(now)
            others_wait = any(other.is_idle for other in self._workers)
            job = self._first_ready(now, is_only_worker=not others_wait)
            if job is not None:
                job.state = Job.RUNNING
                worker.job, worker.since = job, now
                if self._leader is worker:
                    self._leader = None
                if not others_wait:
                    self._all_busy_at = now
                if others_wait and not self._ready and now < self._active_until:
                    # It waits for the next job that is due.
                    self._work.wake()
                elif (self._ready and is_urgent) or (job.may_block and now < self._active_until):
                    self._alarm.wake()
                return job, None
            if not self._jobs:
                return None, self._leave(worker)
            if self._leader not in self._workers:
                self._leader = worker
            if self._leader is not worker:
                free = sum(other.job is None for other in self._workers)
                if self._is_exiting or free <= _FEWEST:
                    worker.is_idle = True
                    return None, math.inf
                if now - self._all_busy_at > _LINGER_S:
                    return None, self._leave(worker)
                worker.is_idle = True
                return None, _LINGER_S
            worker.is_idle = True
            return None, self._next() - now

    def _first_ready(self, now: float, *, is_only_worker: bool) -> Job | None:
        """Take the next job to run off the list: one for a disk that does not answer only if it can do no harm."""
        dead = self.dead_disks(now) if self._ready else set()
        for place, job in enumerate(self._ready):
            if job.disk not in dead:
                del self._ready[place]
                return job
        return self._ready.popleft() if self._ready and not is_only_worker else None

    def dead_disks(self, now: float | None = None) -> set[Path]:
        """Return the disks that hold a worker up now."""
        now = time.monotonic() if now is None else now
        held_up = [
            worker.job for worker in list(self._workers) if worker.job and now - worker.since > _SLOW_S
        ]
        return {job.disk for job in held_up if job.disk is not None}

    def _leave(self, worker: _Worker) -> float | None:
        """Take a worker off the list; return None, or 0 where it is needed after all."""
        self._workers.remove(worker)
        # After that: who adds a job from now on starts a worker.
        if self._changed:
            self._workers.append(worker)
            return 0.0
        if not self._jobs:
            # The others end too.
            self._work.wake()
            self._alarm.wake()
        return None

    def _collect(self, now: float) -> None:
        """Take over what changed, and find the jobs that are to run now."""
        while self._changed:
            job = self._changed[0]
            if job.is_over:
                self._jobs.pop(job, None)
            else:
                self._jobs[job] = None
                job.state = Job.WAITING
                if job.asked:
                    self._make_ready(job, -math.inf)
                elif job.next_due < math.inf:
                    heapq.heappush(self._schedule, (job.next_due, next(self._order), job))
            self._changed.popleft()
        if self._some_asked:
            # Before they are looked at: who asks meanwhile is seen the next time.
            self._some_asked = False
            for job in self._jobs:
                if job.asked and job.state == Job.WAITING:
                    self._make_ready(job, -math.inf)
        while self._schedule and self._schedule[0][0] <= now + _EARLY_S:
            due, _, job = heapq.heappop(self._schedule)
            if _is_scheduled(job, due):
                self._make_ready(job, due)
        if len(self._schedule) > 64 + 4 * len(self._jobs):
            self._schedule = [entry for entry in self._schedule if _is_scheduled(entry[2], entry[0])]
            heapq.heapify(self._schedule)

    def _make_ready(self, job: Job, due: float) -> None:
        job.state = Job.READY
        job.due = due
        self._ready.append(job)

    def _next(self) -> float:
        while self._schedule and not _is_scheduled(self._schedule[0][2], self._schedule[0][0]):
            heapq.heappop(self._schedule)
        return self._schedule[0][0] if self._schedule else math.inf

    # Of the monitor.

    def _watch(self) -> None:
        me = threading.current_thread()
        while self._monitor is me and _background is self:
            wait_s: float | None = _AFTER_BUG_S
            with self._guard.catch("watching over background work"):
                wait_s = self._check_workers()
            if wait_s is not None:
                self._alarm.wait(wait_s)
                continue
            self._monitor = None
            # After that: who adds a job from now on starts a monitor.
            if (self._jobs or self._changed) and self._monitor is None:
                self._monitor = me

    def _check_workers(self) -> float | None:
        """Start workers if they are needed; return how long to wait before the next check, or None for none."""
        now = time.monotonic()
        with self._lock:
            self._collect(now)
            if not self._jobs:
                # Its workers end by themselves.
                return None
            # A worker whose first step failed says nothing.
            dead = [one for one in self._workers if now - one.since > _HUNG_S and not one.thread.is_alive()]
            for worker in dead:
                self._workers.remove(worker)
            next_job = self._next()
            waiting = len(self._ready)
            not_answering = self.dead_disks(now)
            others = sum(job.disk not in not_answering for job in self._ready)
        workers = list(self._workers)
        count = len(workers)
        held_up = sum(one.job is not None and now - one.since > _SLOW_S for one in workers)
        if self._jobs and count - held_up < _FEWEST and count < _SEVERAL:
            return _SOON_S if self._start_workers(1) else _CHECK_S
        # The last idle one is for the jobs that do not hang.
        if sum(worker.is_idle for worker in workers) > (waiting > others == 0):
            if waiting:
                self._work.wake()
            return self._usual_pause(now)
        if not waiting:
            # No worker waits for the next job that is due.
            return max(_SOON_S, min(next_job - now, self._usual_pause(now)))
        if others:
            # Workers that hang are no help.
            count -= held_up
        patience_s = (
            0.0 if not count else _SOON_S if count < _FEW else _SLOW_S if count < _SEVERAL else _HUNG_S
        )
        left_s = max((one.since for one in workers if one.job is not None), default=now) + patience_s - now
        if left_s > 0.0:
            return max(_SOON_S, min(left_s, _CHECK_S))
        return _SOON_S if self._start_workers(1 if count < _SEVERAL else min(_AT_ONCE, waiting)) else _CHECK_S

    def _start_workers(self, count: int) -> bool:
        """Start workers; return whether the system granted them. Else those that are there have to do."""
        try:
            for _ in range(count):
                self._start_worker()
        except (RuntimeError, MemoryError):
            return False
        return True

    def _usual_pause(self, now: float) -> float:
        if now < self._active_until:
            return _CHECK_S
        # Between the seconds at which jobs run.
        return _CHECK_WHEN_IDLE_S - (now - 0.6) % _CHECK_WHEN_IDLE_S


def next_due(due: float, ended: float, pause_s: float) -> float:
    """Return when to take the next turn, `pause_s` after one that was `due` and `ended`.

    Multiples of a tick, so that jobs run together. One that kept its time keeps its pace.
    """
    if pause_s == math.inf:
        return math.inf
    tick_s = next((tick_s for tick_s in _TICKS_S if pause_s >= tick_s), 0.0)
    if not tick_s:
        return ended + pause_s
    since = due if ended - due < tick_s / 4 else ended
    return math.ceil((since + pause_s) / tick_s - 1e-6) * tick_s


def _is_scheduled(job: Job, due: float) -> bool:
    return job.state == Job.WAITING and job.next_due == due and not job.is_over


_background = Background()


def background() -> Background:
    """Return the background threads of this process."""
    return _background


def background_job(name: str, turn: Turn, *, may_block: bool = False, disk: Path | None = None) -> Job:
    """Return a job that runs on the threads that all loggers of this process share."""
    return Job(name, turn, _background, may_block=may_block, disk=disk)


def _in_forked_child() -> None:
    """Begin from scratch: the threads belong to the parent, and one of them may have held the lock."""
    global _background
    _background.forget_threads()
    _background = Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)

if sys.version_info >= (3, 12):
    # Called right before the interpreter refuses threads, which `atexit` comes too late for.
    _register: Any = getattr(threading, "_register_atexit", None)
    if _register is not None:
        _register(lambda: _background.prepare_for_exit())


_FIRST_AFTER_S = 0.5
_TICK_S = 1.0
_SHORT_TICK_S = 0.5
_TASK_EARLY_S = 0.25
"""How much before its time a task is done: a tick that comes a little early would put it off to the next one."""


@dataclass(slots=True)
class Task:
    """Something to do every `every_s` seconds."""

    doing: str
    every_s: float
    do: Callable[[], None]
    due: float = 0.0


class PeriodicTasks:
    """Does each task at its interval, in the background.

    One that fails is counted and done again; one that hangs delays the others of these tasks.
    """

    def __init__(
        self,
        tasks: list[Task],
        *,
        clock: Clock,
        guard: Guard,
        name: str = "telemetry-periodic",
        disk: Path | None = None,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._guard = guard
        self._is_stopped = False
        self._job = background_job(name, self._turn, disk=disk)

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system refuses a thread."""
        self._job.start(_FIRST_AFTER_S)

    def close(self, timeout_s: float) -> None:
        """Stop, and wait at most `timeout_s` for a running task."""
        self._is_stopped = True
        if self._job.is_started:
            self._job.wake()
            self._job.join(timeout_s)

    def tick(self) -> None:
        """Do the tasks that are due."""
        now = self._clock.monotonic()
        for task in self._tasks:
            if now + _TASK_EARLY_S >= task.due:
                task.due = now + task.every_s
                with self._guard.catch(task.doing):
                    task.do()

    def _turn(self) -> float | None:
        if self._is_stopped:
            return None
        self.tick()
        is_whole = all(task.every_s % _TICK_S == 0.0 for task in self._tasks)
        return _TICK_S if is_whole else _SHORT_TICK_S
