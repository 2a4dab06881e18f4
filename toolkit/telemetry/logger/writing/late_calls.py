"""Calls that cannot be written any more, or not in this process: said once, counted, and declared lost in the run."""

from __future__ import annotations

import atexit
import mmap
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from toolkit.telemetry.core.guard import PREFIX, Guard, MisuseError
from toolkit.telemetry.core.lifetime import process_ends
from toolkit.telemetry.logger.writing.session_folder import SessionFolder
from toolkit.telemetry.logger.writing.sessions import alone_in
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.journal.journal import is_being_written
from toolkit.telemetry.runfolder.reader import last_seq
from toolkit.telemetry.runfolder.records import LOST
from toolkit.telemetry.runfolder.safefile import open_to_write, write_all

IN_A_FORK: Final = "logged in a forked process"
_WHY: Final = "logged after close()"
_FORKS: Final = 512
_STDERR: Final = 2
_MOST_AT_THE_END: Final = 100
"""Records about calls that are declared at once while the process ends: no later time is certain to come."""


def call_that_writes(method: str) -> str | None:
    """Return what the script calls a method by whose values are lost; None for one that writes nothing."""
    call = {"_log_summary": "summary"}.get(method, method)
    return call if call.startswith(("log", "summary")) or call in ("state", "batch") else None


def report_call_of_copy(guard: Guard, method: str) -> None:
    """Report a call on a copy of a logger in a process that does not write its run."""
    call = call_that_writes(method)
    if call is not None:
        guard.report_misuse(
            f"{call} was called on a copy of a logger in another process, where nothing is written; make a logger "
            "of its own there, or log what comes back to the process that has the run",
            "a call of a copy",
        )


class LateCalls:
    """Takes the name of each call that a logger ignores because its run has ended, or is another process's."""

    def __init__(self, session_folder: SessionFolder, elapsed: Callable[[], float], guard: Guard) -> None:
        self._session_folder = session_folder
        self._elapsed = elapsed
        self._guard = guard
        self._process = os.getpid()
        self.may_write = True
        """Whether the disk took all that came before; one that does not answer must not be asked at the very end."""
        self._count = self._declared = self._declarations = 0
        self._lock = threading.Lock()
        # Shared with the processes that are forked later. Each counts in a place of its own: none waits for another.
        self._in_forks = memoryview(mmap.mmap(-1, _FORKS * 8)).cast("Q")

    @property
    def in_forks(self) -> int:
        """How many calls forked processes have lost so far."""
        return sum(self._in_forks)

    def take(self, method: str) -> None:
        """Take a call; one that writes nothing is no mistake. Raises MisuseError if `strict` is set."""
        call = call_that_writes(method)
        if call is None:
            return
        if os.getpid() != self._process:
            self._take_in_fork(call)
            return
        self._count += 1
        with self._guard.catch("declaring calls after close()"):
            if process_ends():
                if self._declarations < _MOST_AT_THE_END:
                    self._declare()
            elif self._count == 1:
                # The first one at once, in case that the process is killed; the others once their number is known.
                atexit.register(self._declare)
                threading.Thread(target=self._declare, name="telemetry-late", daemon=True).start()
        if process_ends() and threading.current_thread() is not threading.main_thread():
            # Such a thread may be stopped for good at any time, also while it has standard error locked.
            return
        self._guard.report_misuse(
            f"{call} was called after close(), when nothing is written any more; call close() last, and log inside "
            "the `with` block",
            "a call after close()",
        )

    def _take_in_fork(self, call: str) -> None:
        is_first = not any(self._in_forks)
        self._in_forks[os.getpid() % _FORKS] += 1
        sentence = (
            f"{call} was called in a forked process, where nothing is written; make a logger of its own there, or log "
            "what comes back to the process that has the run"
        )
        kind = f"{IN_A_FORK}: {MisuseError.__name__}"
        self._guard.counts[kind] = self._guard.counts.get(kind, 0) + 1
        if self._guard.strict:
            raise MisuseError(sentence)
        with self._guard.catch("printing a line"):
            # Not through `print` or `logging`: another thread may have held their locks when the process was forked.
            if is_first and select.select([], [_STDERR], [], 0)[1]:
                line = f"{PREFIX} {sentence}; this is reported once, and such calls are counted in the run\n"
                os.write(_STDERR, line.encode())

    def _declare(self) -> None:
        """Write how many records are lost, unless someone else has the file by now."""
        # While a process ends no thread can be started to wait for a file server.
        wait_s = 0.0 if process_ends() else 5.0
        # A thread that declares just now may be stopped for good before it does, and hold the lock from then on.
        if self.may_write and self._lock.acquire(timeout=0.0 if sys.is_finalizing() else 2.0):
            try:
                with self._guard.catch("declaring calls after close()"):
                    self._write_how_many(wait_s)
            finally:
                self._lock.release()
        else:
            self.may_write = False

    def _write_how_many(self, wait_s: float) -> None:
        where, path = self._session_folder, self._session_folder.record_file
        records = self._count - self._declared
        with alone_in(where.folder, wait_s):
            if not records or not path.exists() or is_being_written(path, within_s=wait_s):
                return
            about = {"time": time.time(), "elapsed": self._elapsed(), "seq": last_seq(path) + 1}
            rank = {"rank": where.rank} if where.rank else {}
            lost = {"session": where.session.session, **rank, "records": records, "reason": _WHY}
            descriptor = open_to_write(path, os.O_WRONLY | os.O_APPEND, only_name=False)
            try:
                write_all(descriptor, encode({"event": LOST, **about, **lost}))
            finally:
                os.close(descriptor)
            self._declared += records
            self._declarations += 1
