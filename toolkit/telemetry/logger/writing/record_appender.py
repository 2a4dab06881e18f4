"""The record file, open for appending: whole lines, whatever the disk does in between."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from toolkit.telemetry.runfolder.portable import pread, pwrite
from toolkit.telemetry.runfolder.safefile import NO_FILE, identity_of, is_file, open_to_write, sync_folder

_KEPT_UNSYNCED = 1024 * 1024


class RecordFile:
    """Appends batches of lines to one file, on one thread; another may call `sync` meanwhile."""

    def __init__(self, path: Path, *, file_mode: int, folder_mode: int) -> None:
        self.path = path
        self._file_mode = file_mode
        self._folder_mode = folder_mode
        self._home_device = _device_of(_nearest_existing(path.parent.parent))
        self._batch = b""
        self._written = 0
        self._last_line = b""
        self._ends_in_half_line = False
        self.has_others = False
        """Whether another process appended to the file while we were writing it."""
        # What `sync` looks at too. Never held while the disk is waited for.
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._size = 0
        self._synced_upto = 0
        self._unsynced: deque[tuple[int, bytes]] = deque()
        self._unsynced_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a file to append to now."""
        return self._descriptor is not None

    @property
    def has_rest(self) -> bool:
        """Whether a batch was taken that is not wholly written."""
        return self._written < len(self._batch)

    def open(self) -> bool:
        """Open the file, made if need be; a line that someone left without its end is ended before anything follows.

        Returns whether records are gone: this is not the file we wrote before, or it has become shorter. A line of
        which half went with it is then begun again.

        Raises:
            OSError: it cannot be opened now.
        """
        self.close()
        descriptor = open_to_write(
            self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, self._file_mode, only_name=False
        )
        try:
            status = os.fstat(descriptor)
            size, identity = status.st_size, identity_of(status)
            is_another = self._identity is not None and (identity != self._identity or size < self._size)
            if is_another:
                self._begin_line_again()
            if is_another or self._identity is None:
                self._ends_in_half_line = size > 0 and pread(descriptor, 1, size - 1) != b"\n"
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            if is_another:
                self._unsynced.clear()
                self._unsynced_bytes = 0
            if is_another or self._identity is None:
                self._synced_upto = size
            self._identity = identity
            self._size = size
            self._descriptor = descriptor
        with suppress(OSError):
            sync_folder(self.path.parent)
        return is_another

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_file(descriptor, self._identity or NO_FILE):
            os.close(descriptor)

    def take(self, batch: bytes) -> None:
        """Take the next batch of whole lines; the last one must be written."""
        assert not self.has_rest, "the last batch is still being written"
        self._last_line = self.last_line_written()
        self._batch = batch
        self._written = 0

    def write(self) -> bool:
        """Write what is left of the batch to the open file; False where that file was cut meanwhile.

        Raises:
            OSError: the disk took it only in part, or not at all; the next call continues where this one ended.
        """
        assert self._descriptor is not None, "there is no file to write to"
        self._notice_others(os.fstat(self._descriptor).st_size)
        if self._ends_in_half_line and (self._written == 0 or self._batch[self._written - 1] == ord("\n")):
            # The file ends in half a line that is not ours to complete.
            if not self._append(b"\n"):
                return False
            self._remember(memoryview(b"\n"))
        view = memoryview(self._batch)
        while self._written < len(view):
            count = self._append(view[self._written :])
            if not count:
                return False
            self._remember(view[self._written : self._written + count])
            self._written += count
        return True

    def last_line_written(self) -> bytes:
        """Return the newest whole line that was written, without its newline; empty before the first."""
        end = self._batch.rfind(b"\n", 0, self._written)
        return self._last_line if end < 0 else self._batch[self._batch.rfind(b"\n", 0, end) + 1 : end]

    def is_cut(self) -> bool:
        """Say whether the open file was truncated, or removed."""
        if self._descriptor is None:
            return False
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            # Its server is gone, or a script has closed descriptors that were not its own.
            return True
        return status.st_size < self._size or identity_of(status) != self._identity

    def is_in_place(self) -> bool:
        """Say whether the file we write is still the one at its path."""
        if self._descriptor is None:
            return False
        try:
            there = os.stat(self.path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return False
            raise
        return identity_of(there) == self._identity

    def make_folder_again(self) -> None:
        """Make the run folder again if it was removed, but only on its own disk: its parent may be a mount point."""
        above = _nearest_existing(self.path.parent.parent)
        if self._home_device is not None and _device_of(above) == self._home_device:
            os.makedirs(self.path.parent, self._folder_mode, exist_ok=True)

    def sync(self) -> bool:
        """Force what was handed to the kernel onto the disk; False where there is no file, or another by now.

        Raises:
            OSError: it did not get there. The kernel may by then have thrown the data away and say yes next time, so
                this is never simply tried again: see `write_unsynced_again`.
        """
        with self._lock:
            if self._descriptor is None:
                return False
            # A descriptor of its own, so that the writer can close and reopen the file while a slow disk syncs.
            descriptor = os.dup(self._descriptor)
            identity, upto = self._identity, self._size
        try:
            _fdatasync(descriptor)
        finally:
            os.close(descriptor)
        with self._lock:
            if identity != self._identity or upto > self._size:
                return False
            self._synced_upto = max(self._synced_upto, upto)
            while self._unsynced and self._unsynced[0][0] < upto:
                self._forget_oldest()
        return True

    def write_unsynced_again(self) -> int:
        """After a failed sync and a new `open`: put the same bytes at the same places again, as far as we hold them.

        Returns the number of bytes after the last good sync that are no longer held here.

        Raises:
            OSError: the disk did not take them.
        """
        with self._lock:
            held = list(self._unsynced)
            first = held[0][0] if held else self._size
            no_longer_held = max(0, first - self._synced_upto)
        # Not the descriptor that appends: Linux appends whatever is written to such a one, wherever it is asked to.
        descriptor = open_to_write(self.path, os.O_WRONLY, only_name=False)
        try:
            for offset, data in held:
                view = memoryview(data)
                while view:
                    count = pwrite(descriptor, view, offset)
                    view, offset = view[count:], offset + count
        finally:
            os.close(descriptor)
        return no_longer_held

    def _begin_line_again(self) -> None:
        if self.has_rest:
            self._written = self._batch.rfind(b"\n", 0, self._written) + 1

    def _notice_others(self, size: int) -> None:
        """Look whether the file is longer than we made it, and have our next line begin as a line of its own."""
        if size > self._size:
            assert self._descriptor is not None
            self._begin_line_again()
            self._ends_in_half_line = pread(self._descriptor, 1, size - 1) != b"\n"
            self.has_others = True
            with self._lock:
                self._size = size

    def _append(self, data: bytes | memoryview) -> int:
        assert self._descriptor is not None
        count = os.write(self._descriptor, data)
        if count <= 0:
            raise OSError(errno.EIO, "the disk took nothing and gave no reason")
        # Where the file ended when the write came: another process may have appended since we looked.
        start = os.lseek(self._descriptor, 0, os.SEEK_CUR) - count
        if start < self._size and os.fstat(self._descriptor).st_size == start + count:
            # Cut since we looked. What is gone is counted from the end of what is left, so nothing may follow that yet.
            os.ftruncate(self._descriptor, start)
            return 0
        self.has_others = self.has_others or start > self._size
        self._ends_in_half_line = False
        with self._lock:
            self._size = max(self._size, start) + count
        return count

    def _remember(self, data: memoryview) -> None:
        """Keep what was just appended until it is synced, if there is memory for it."""
        try:
            # A whole batch is in memory already.
            is_whole = data.obj is self._batch and len(data) == len(self._batch)
            kept = self._batch if is_whole else bytes(data)
        except MemoryError:
            with self._lock:
                self._unsynced.clear()
                self._unsynced_bytes = 0
            return
        with self._lock:
            self._unsynced.append((self._size - len(kept), kept))
            self._unsynced_bytes += len(kept)
            while self._unsynced_bytes > _KEPT_UNSYNCED:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, oldest = self._unsynced.popleft()
        self._unsynced_bytes -= len(oldest)


def _nearest_existing(folder: Path) -> Path:
    folder = Path(os.path.abspath(folder))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _device_of(path: Path) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _fdatasync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)
