"""An event file that holds whole events or none, whatever the disk does."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import struct
import time
from array import array
from collections.abc import Iterable
from pathlib import Path

_numbers = itertools.count()

_SLICE_BYTES = 4096


class EventFile:
    """A new file in `folder`, under the name that TensorBoard looks for.

    TensorBoard's reader stops for good at the first event that is torn, so a write that fails part of the way is
    taken back.
    """

    def __init__(self, folder: Path, first_event: bytes) -> None:
        """Make the file and write its first event.

        Raises:
            OSError: the file cannot be made.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The reader takes the files of a folder in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):04d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._file = os.open(folder / name, flags, 0o600)
        self._size = 0
        self._torn = False
        try:
            self.append([first_event])
        except OSError:
            os.close(self._file)
            raise

    def append(self, events: Iterable[bytes]) -> None:
        """Write every event, or none.

        Raises:
            OSError: the disk did not take them.
        """
        data = b"".join(map(framed, events))
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            self._take_back()
            raise
        self._size += len(data)

    def is_lost(self) -> bool:
        """Say whether writing on is in vain: the file was removed, or ends in a torn event."""
        return self._torn or os.fstat(self._file).st_nlink == 0

    def close(self) -> None:
        """Force what was written onto the disk, and close.

        Raises:
            OSError: the disk did not take it.
        """
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def abandon(self) -> None:
        """Close a file that is lost; there is nothing to force anywhere."""
        os.close(self._file)

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
        except OSError:
            self._torn = True


def framed(event: bytes) -> bytes:
    """Return `event` as it stands in the file: its length and itself, each followed by a checksum."""
    length = struct.pack("<Q", len(event))
    return b"".join((length, _checksum(length), event, _checksum(event)))


def _checksum(data: bytes) -> bytes:
    """Return the CRC-32C of `data`, turned and shifted as the format wants it."""
    table = _table_of_pairs()
    crc = 0xFFFFFFFF
    for begin in range(0, len(data), _SLICE_BYTES):
        if begin:
            # An image is a tenth of a second of arithmetic; the training thread must not wait for its turn so long.
            time.sleep(50e-6)
        pairs = min(_SLICE_BYTES, len(data) - begin) // 2
        for pair in struct.unpack_from(f"<{pairs}H", data, begin):
            crc = table[(crc ^ pair) & 0xFFFF] ^ (crc >> 16)
    if len(data) % 2:
        crc = _crc_of_byte((crc ^ data[-1]) & 0xFF) ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _table_of_pairs() -> array[int]:
    """Return what each pair of bytes does to a checksum: twice as fast as a byte at a time, for 256 KiB."""
    byte = [_crc_of_byte(value) for value in range(256)]
    return array(
        "I", ((first := byte[pair & 0xFF] ^ (pair >> 8)) >> 8 ^ byte[first & 0xFF] for pair in range(0x10000))
    )


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte
