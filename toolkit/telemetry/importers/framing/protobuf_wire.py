"""Fields of protobuf messages, without their schemas."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

Field = tuple[int, int, int, int]
"""Number, wire type, and where the content begins and ends; for a varint, its value and its end."""

_MAX_SHIFT: Final = 63
_SIGN: Final = 1 << 63


class WireError(ValueError):
    """The bytes are no message."""


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields in `data[start:end]`.

    Raises:
        WireError: the bytes are no message.
    """
    at = start
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = varint(data, at - 1, end)
        number, wire = key >> 3, key & 7
        if wire == BYTES:
            if at >= end:
                raise WireError("cut")
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = varint(data, at - 1, end)
            if size > end - at:
                raise WireError("a field is longer than its message")
            yield number, wire, at, at + size
            at += size
        elif wire == VARINT:
            value, at = varint(data, at, end)
            yield number, wire, value, at
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            if size > end - at:
                raise WireError("cut")
            yield number, wire, at, at + size
            at += size
        else:
            raise WireError(f"wire type {wire}")
        if number == 0:
            raise WireError("field 0")


def parts(data: bytes, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield where the contents of each field with this number begin and end: texts, and messages in the message."""
    for found, wire, at, stop in fields(data, start, end):
        if found == number and wire == BYTES:
            yield at, stop


def integer(data: bytes, start: int, end: int, number: int) -> int | None:
    """Return the integer in the field with this number, as signed; None without one."""
    found = None
    for field, wire, value, _ in fields(data, start, end):
        if field == number and wire == VARINT:
            found = signed(value)
    return found


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at `at` and where it ends.

    Raises:
        WireError: it does not end within ten bytes.
    """
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
        if shift > _MAX_SHIFT:
            break
    raise WireError("a number that does not end")


def signed(value: int) -> int:
    """Return a varint as a signed 64-bit integer."""
    return value - (1 << 64) if value & _SIGN else value


def double(data: bytes, at: int) -> float:
    """Return the float64 at `at`."""
    value: float = struct.unpack_from("<d", data, at)[0]
    return value


def single(data: bytes, at: int) -> float:
    """Return the float32 at `at`."""
    value: float = struct.unpack_from("<f", data, at)[0]
    return value


def text(data: bytes, start: int, end: int) -> str:
    """Return a text field."""
    return data[start:end].decode("utf-8", "replace")


def timestamp(data: bytes, start: int, end: int) -> float:
    """Return a google.protobuf.Timestamp as seconds since the epoch."""
    return (integer(data, start, end, 1) or 0) + (integer(data, start, end, 2) or 0) / 1e9
