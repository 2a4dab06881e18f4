"""Takes records from the journal to the record file, in the background."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from toolkit.telemetry.core.background import WRITING, background_job
from toolkit.telemetry.core.guard import Guard, describe_error
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.logger.writing.record_appender import RecordFile
from toolkit.telemetry.logger.writing.writer_lock import WriterLock

_RETRY_S = 0.2
_WAIT_FOR_SYNC_S = 1.0
"""How soon a disk that took nothing is tried again: space that comes back should be used at once."""

_DESCRIPTOR_IS_DEAD = frozenset(
    {errno.ESTALE, errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.EBADF, errno.ENXIO, errno.ENODEV}
)
"""Errors after which opening the same file again may work: its server or its disk has come back."""

_LOOK_S = 1.0
"""How often it is looked whether the file is still in its place."""
_IDLE_AFTER_S = 0.3
_IDLE_S = 5.0
"""How often that is, once no record has come for some time: the next one wakes the writer."""


class Writer:
    """Moves batches from the queue to the record file, about every `flush_interval` seconds.

    `on_gone` is given the last line of a file that was removed or replaced under us, once another is written.
    """

    def __init__(
        self,
        record_queue: RecordQueue,
        file: RecordFile,
        lock: WriterLock,
        *,
        guard: Guard,
        flush_interval: float,
        elapsed: Callable[[], float],
        on_gone: Callable[[bytes], None],
    ) -> None:
        self.trouble: str | None = None
        """Why the disk takes no records now, or None while it does."""
        self.disk = file.path.parents[1]
        """The folder of the runs, which is on the same disk."""
        self._record_queue = record_queue
        self._file = file
        self._lock = lock
        self._guard = guard
        self._flush_interval = flush_interval
        self._elapsed = elapsed
        self._on_gone = on_gone
        self._others_reported = False
        self._deadline = 0.0
        self._looked_at = self._wrote_at = time.monotonic()
        self._sync_failed = False
        self._syncing = threading.Lock()
        self._job = background_job("telemetry-writer", self._run, WRITING, self.disk)

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system refuses a thread."""
        self._job.start()

    def wake(self) -> None:
        """Write soon: there is a lot."""
        self._job.wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was taken before this call is in the record file; False where that took too long."""
        return self._job.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what is left and stop; False where the disk did not take it in time."""
        self._deadline = time.monotonic() + timeout_s - 2 * _RETRY_S
        if not self._job.is_started:
            # The system refused a thread when the run began. It may grant one now; else this one has to do.
            with suppress(RuntimeError):
                self._job.start()
        return self._job.close(timeout_s) and self.is_drained

    @property
    def is_stuck(self) -> bool:
        """Whether, after `close`, the disk still holds the thread: what it was writing may yet arrive."""
        return self._job.is_started and not self._job.is_over

    def sync(self) -> bool:
        """Force the records onto the disk; say whether those in the record file now are there for good."""
        # One at a time: of two syncs at once the kernel fails only one, and the other would take lost bytes for safe.
        # Limited: a signal handler may close the run while the thread that it interrupted holds this lock.
        is_held = self._syncing.acquire(timeout=_WAIT_FOR_SYNC_S)
        try:
            if self._sync_failed:
                # The next sync could say yes to bytes that the kernel has thrown away: first they are written again.
                return False
            return self._file.sync()
        except OSError as error:
            self._note_failed_sync(error)
            return False
        finally:
            if is_held:
                self._syncing.release()

    def _note_failed_sync(self, error: OSError) -> None:
        self._sync_failed = True
        self._guard.report("syncing the records", error)
        self._job.wake()

    def _run(self) -> float | None:
        is_last = self._job.is_closing
        with self._guard.catch("writing records"):
            self._turn()
        if is_last and (self.is_drained or time.monotonic() > self._deadline):
            with self._guard.catch("closing the record file"):
                self._finish()
            return None
        if self.trouble:
            return _RETRY_S
        is_idle = time.monotonic() - self._wrote_at > _IDLE_AFTER_S
        return _IDLE_S if is_idle and self._record_queue.may_writer_sleep() else self._flush_interval

    @property
    def is_drained(self) -> bool:
        """Whether all that was taken is in the record file, as far as it is not synced."""
        queue = self._record_queue
        # In this order: a batch that is handed over is neither in the queue nor in the file for a short time.
        return queue.is_empty and queue.journal.is_released and not self._file.has_rest

    def _turn(self) -> None:
        self._record_queue.settle(self._elapsed())
        try:
            self._look_at_the_file()
            if self._sync_failed:
                self._write_unsynced_again()
            while True:
                if self._file.has_rest:
                    if not self._file.write():
                        self._look_at_the_file()
                        continue
                    self._record_queue.batch_written()
                    self._wrote_at = time.monotonic()
                    self._look_for_others()
                batch = self._record_queue.take_batch()
                if batch is None:
                    break
                self._file.take(batch)
        except OSError as error:
            if self.trouble is None:
                self._guard.report("writing records", error)
            self.trouble = describe_error(error)
            if error.errno in _DESCRIPTOR_IS_DEAD:
                self._file.close()
            return
        self.trouble = None
        self._job.note_flushed()

    def _finish(self) -> None:
        try:
            if not self.trouble:
                self.sync()
                if self._sync_failed:
                    self._turn()
                    self.sync()
        finally:
            self._file.close()

    def _look_at_the_file(self) -> None:
        now = time.monotonic()
        if self._file.is_open and not self._sync_failed and not self._file.is_cut():
            if not self.trouble and now - self._looked_at < _LOOK_S:
                return
            self._looked_at = now
            if self._file.is_in_place():
                self._lock.keep()
                return
        # Writing to a removed file never fails, and the records are lost.
        self._file.make_folder_again()
        if self._file.open():
            self._on_gone(self._file.last_line_written())
        self._lock.keep()

    def _look_for_others(self) -> None:
        """Say that another process writes to the record file."""
        if self._file.has_others and not self._others_reported:
            self._others_reported = True
            message = f"another process appended to {self._file.path.name} while this run was writing it"
            self._guard.report("writing records", OSError(message))

    def _write_unsynced_again(self) -> None:
        no_longer_held = self._file.write_unsynced_again()
        # Not before: a sync in the midst of it would succeed, and what is not written again yet would count as synced.
        self._sync_failed = False
        if no_longer_held:
            message = f"{no_longer_held} bytes were not synced and are no longer in memory; they may be lost"
            self._guard.report("writing again what was not synced", OSError(message))
