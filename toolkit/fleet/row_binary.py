"""Reads rows in ClickHouse's RowBinary format, which keeps NaN and any bytes as they are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

_FIXED: Final = {
    "UInt8": "<B",
    "UInt16": "<H",
    "UInt32": "<I",
    "UInt64": "<Q",
    "Int64": "<q",
    "Float32": "<f",
    "Float64": "<d",
}

_LENGTH_BITS: Final = 63

_Reader = Callable[[bytes, int], tuple[Any, int]]


def rows_of(data: bytes, types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows in `data`, whose columns have `types`: numbers, `String` (as text) and `Bytes` (as bytes).

    Raises:
        IndexError, struct.error: they are not of this form.
    """
    readers = [_reader_of(kind) for kind in types]
    at, end = 0, len(data)
    while at < end:
        row = []
        for read in readers:
            value, at = read(data, at)
            row.append(value)
        yield tuple(row)


def _reader_of(kind: str) -> _Reader:
    if kind == "Bytes":
        return _read_bytes
    if kind == "String":
        return _read_text
    if kind.startswith("Array("):
        return _array_reader(_reader_of(kind[6:-1]))
    form = struct.Struct(_FIXED[kind])
    unpack, size = form.unpack_from, form.size
    return lambda data, at: (unpack(data, at)[0], at + size)


def _array_reader(read_item: _Reader) -> _Reader:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        count, at = _read_length(data, at)
        items = []
        for _ in range(count):
            item, at = read_item(data, at)
            items.append(item)
        return items, at

    return read


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    length = shift = 0
    while shift < _LENGTH_BITS:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at
        shift += 7
    raise IndexError("a length without end")


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_length(data, at)
    if length > len(data) - at:
        raise IndexError("a text beyond the end")
    return data[at : at + length], at + length


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at)
    return found.decode("utf-8", "replace"), at
