"""An event file that never contains a partial event, even if the disk is full.

TensorBoard's own record writer imports numpy and 300 modules for its checksum, computes it slower, and holds the GIL
while it does; it cannot undo a partial write either.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from toolkit.telemetry.importers.framing.tfrecord import crc32c, masked
from toolkit.telemetry.runfolder.layout import make_folders

_numbers = itertools.count()

_SLICE_BYTES = 4096


class EventFile:
    """A new file for TensorBoard, whose reader stops forever at a partial event: a write that fails is undone."""

    def __init__(self, folder: Path, first_event: bytes) -> None:
        """Make the file and write its first event. Raises OSError if the file cannot be made."""
        make_folders(folder, 0o700)
        # The reader takes the files of a folder in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):04d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._file = os.open(folder / name, flags, 0o600)
        self._size = 0
        self._is_partial = False
        try:
            self.append([first_event])
        except OSError:
            os.close(self._file)
            raise

    def append(self, events: Iterable[bytes]) -> None:
        """Write every event, or none. Raises OSError if the disk did not take them."""
        data = b"".join(map(framed, events))
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            self._undo()
            raise
        self._size += len(data)

    def is_lost(self) -> bool:
        """Return whether the file is unusable: it was removed, or ends with a partial event."""
        return self._is_partial or os.fstat(self._file).st_nlink == 0

    def close(self) -> None:
        """Sync to disk, and close. Raises OSError if the disk did not take it."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def abandon(self) -> None:
        """Close an unusable file, without a sync."""
        os.close(self._file)

    def _undo(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
        except OSError:
            self._is_partial = True


def framed(event: bytes) -> bytes:
    """Return `event` as written to the file: its length and itself, each followed by a checksum."""
    length = struct.pack("<Q", len(event))
    return b"".join((length, _checksum(length), event, _checksum(event)))


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of `data`."""
    crc = 0
    for begin in range(0, len(data), _SLICE_BYTES):
        if begin:
            # An image takes a tenth of a second; the training thread must not wait for the GIL that long.
            time.sleep(50e-6)
        crc = crc32c(data[begin : begin + _SLICE_BYTES], crc)
    return struct.pack("<I", masked(crc))
