"""TFRecord: length, checksum of the length, data, checksum of the data."""

from __future__ import annotations

import functools
import struct
from typing import Final

HEADER: Final = 12
FOOTER: Final = 4
_MASK: Final = 0xA282EAD8


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


CRC_TABLE: Final = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, or of all of it where `crc` is that of what comes before."""
    crc ^= 0xFFFFFFFF
    table = CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the checksum that TFRecord keeps of `data`."""
    return masked(crc32c(data))


def masked(crc: int) -> int:
    """Return a CRC as TFRecord writes it."""
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


@functools.lru_cache(maxsize=4096)
def checksum_of_length(length: int) -> int:
    """Return the checksum in front of a record of this length."""
    return masked_crc32c(struct.pack("<Q", length))


def frames(data: bytes) -> tuple[list[int], list[int], int, bool]:
    """Return where the records in `data` begin and how long they are, where they end, and whether that end is damage.

    Without damage the rest is the beginning of a record. The checksums of the data are not looked at.
    """
    starts: list[int] = []
    lengths: list[int] = []
    at, size = 0, len(data)
    unpack = struct.Struct("<QI").unpack_from
    last_header = size - HEADER
    while at <= last_header:
        length, checksum = unpack(data, at)
        if checksum_of_length(length) != checksum:
            return starts, lengths, at, True
        end = at + HEADER + length + FOOTER
        if end > size:
            break
        starts.append(at + HEADER)
        lengths.append(length)
        at = end
    return starts, lengths, at, False


def is_intact(data: bytes, start: int, length: int) -> bool:
    """Return whether the checksum of a record's data is right."""
    (checksum,) = struct.unpack_from("<I", data, start + length)
    found: int = checksum
    return found == masked_crc32c(data[start : start + length])
