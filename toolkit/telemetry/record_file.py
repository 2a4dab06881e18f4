"""The record file, open for appending: whole lines, whatever the disk does in between."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

_KEPT_UNSYNCED = 4 * 1024 * 1024


class RecordFile:
    """Appends batches of lines to one file and knows how much of each has arrived.

    Used by one thread, but for `sync`, which another may call meanwhile.
    """

    def __init__(self, path: Path, *, file_mode: int, folder_mode: int) -> None:
        self.path = path
        self._file_mode = file_mode
        self._folder_mode = folder_mode
        self._descriptor: int | None = None
        self._at_line_start = True
        self._size = 0
        self._batch = b""
        self._written = 0
        self._unsynced: deque[tuple[int, bytes]] = deque()
        self._unsynced_bytes = 0
        self._home_device = _device_of(path.parent.parent)

    @property
    def is_open(self) -> bool:
        """Whether there is a file to append to now."""
        return self._descriptor is not None

    @property
    def has_rest(self) -> bool:
        """Whether a batch was taken that is not wholly written."""
        return self._written < len(self._batch)

    def open(self) -> None:
        """Open the file, made if need be; a line that someone left without its end is ended before anything follows.

        Raises:
            OSError: it cannot be opened now.
        """
        self.close()
        flags = (
            os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        )
        descriptor = os.open(self.path, flags, self._file_mode)
        size = os.fstat(descriptor).st_size
        self._at_line_start = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        self._size = size
        self._descriptor = descriptor
        _sync_folder(self.path.parent)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def take(self, batch: bytes) -> None:
        """Take the next batch of whole lines; the last one must be written."""
        assert not self.has_rest, "the last batch is still being written"
        self._batch = batch
        self._written = 0

    def write(self) -> None:
        """Write what is left of the batch.

        Raises:
            OSError: the disk took it only in part, or not at all; the next call goes on where this one ended.
        """
        if self._descriptor is None:
            self.open()
        assert self._descriptor is not None
        if not self._at_line_start and self._written == 0:
            # The file ends in half a line that is not ours to complete.
            self._size += os.write(self._descriptor, b"\n")
            self._at_line_start = True
        view = memoryview(self._batch)
        while self._written < len(view):
            count = os.write(self._descriptor, view[self._written :])
            self._remember(self._size, bytes(view[self._written : self._written + count]))
            self._written += count
            self._size += count

    def last_line_written(self) -> bytes:
        """Return the newest whole line that is in the file, without its newline; empty before the first."""
        return self._batch[: self._written].rpartition(b"\n")[0].rpartition(b"\n")[2]

    def begin_line_again(self) -> None:
        """Go back to the start of the line that was being written: its first half is in a file that is gone."""
        if self.has_rest:
            self._written = self._batch.rfind(b"\n", 0, self._written) + 1
        self._unsynced.clear()
        self._unsynced_bytes = 0

    def is_in_place(self) -> bool:
        """Say whether the file we write is still the one at its path."""
        if self._descriptor is None:
            return False
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        ours = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def make_folder_again(self) -> None:
        """Make the run folder anew where somebody removed it.

        Only on the disk it was on: the folder above may now be an empty mount point.
        """
        home = self.path.parent.parent
        if self._home_device is not None and _device_of(home) == self._home_device:
            os.makedirs(self.path.parent, self._folder_mode, exist_ok=True)

    def sync(self) -> None:
        """Force what was handed to the kernel onto the disk.

        Raises:
            OSError: it did not get there. The kernel may by then have thrown the data away and say yes next time, so
                this is never simply tried again: see `write_unsynced_again`.
        """
        if self._descriptor is None:
            return
        # A descriptor of its own, so that the writer can close and reopen the file while a slow disk syncs.
        descriptor = os.dup(self._descriptor)
        upto = self._size
        try:
            _fdatasync(descriptor)
        finally:
            os.close(descriptor)
        while self._unsynced and self._unsynced[0][0] < upto:
            _, data = self._unsynced.popleft()
            self._unsynced_bytes -= len(data)

    def write_unsynced_again(self) -> int:
        """After a failed sync: reopen the file and put the same bytes at the same places again, as far as we hold them.

        Returns the number of bytes behind the last good sync that are no longer held here.
        """
        self.open()
        held = list(self._unsynced)
        descriptor = os.open(self.path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            for offset, data in held:
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)
        return max(0, self._size - sum(len(data) for _, data in held) - self._synced_upto())

    def _synced_upto(self) -> int:
        return self._unsynced[0][0] if self._unsynced else self._size

    def _remember(self, offset: int, data: bytes) -> None:
        self._unsynced.append((offset, data))
        self._unsynced_bytes += len(data)
        while self._unsynced_bytes > _KEPT_UNSYNCED:
            _, oldest = self._unsynced.popleft()
            self._unsynced_bytes -= len(oldest)


def _device_of(path: Path) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _fdatasync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file last: its folder has to be synced for that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        # Some file systems cannot sync a folder; the records themselves are synced as usual.
        pass
    finally:
        os.close(descriptor)
