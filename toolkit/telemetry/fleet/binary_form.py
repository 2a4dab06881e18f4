"""ClickHouse's binary forms, which keep NaN and any bytes: writes columns (Native) and reads rows (RowBinary)."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final

_FIXED: Final = {
    "UInt8": "B",
    "UInt16": "H",
    "Date": "H",
    "UInt32": "I",
    "DateTime": "I",
    "UInt64": "Q",
    "Int64": "q",
    "Float32": "f",
    "Float64": "d",
}


def types_of(columns: str) -> dict[str, str]:
    """Return the types of columns, written as in SQL: `run_id String, rank UInt32`."""
    return dict(column.split() for column in columns.split(","))


def block_of_rows(types: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> bytes:
    """Return a block of rows, at least one; `types` are those of their columns. Texts may be bytes; a date is a day."""
    columns = zip(types.items(), zip(*rows, strict=True), strict=True)
    return block_of([(name, kind, column(kind, values)) for (name, kind), values in columns], len(rows))


def block_of(columns: Sequence[tuple[str, str, bytes]], rows: int) -> bytes:
    """Return a block of columns that are encoded already."""
    parts = [_length(len(columns)), _length(rows)]
    for name, kind, data in columns:
        parts += (text(name.encode()), text(kind.encode()), data)
    return b"".join(parts)


def column(kind: str, values: Iterable[Any]) -> bytes:
    """Return the values of one column, encoded."""
    if kind == "String":
        return b"".join(map(text, values))
    if kind.startswith("Array("):
        lists = list(values)
        return numbers("UInt64", accumulate(map(len, lists))) + column(kind[6:-1], chain.from_iterable(lists))
    return numbers(kind, values)


def numbers(kind: str, values: Iterable[Any]) -> bytes:
    """Return a column of numbers, encoded."""
    packed = array(_FIXED[kind], values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def text(value: bytes | str) -> bytes:
    """Return one text, encoded: its length and itself."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    return _length(len(value)) + value


def _length(number: int) -> bytes:
    """Return a number in seven bits a byte, lowest first."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_LENGTH_BITS: Final = 63

_Reader = Callable[[bytes, int], tuple[Any, int]]


def rows_of(data: bytes, types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows in `data`, whose columns have `types`: numbers, `String` (as text) and `Bytes` (as bytes).

    `Items(N)` is an array whose items have N bytes each, as bytes.

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
    if kind.startswith("Items("):
        return partial(_read_bytes, item_bytes=int(kind[6:-1]))
    form = struct.Struct(f"<{_FIXED[kind]}")
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


def _read_bytes(data: bytes, at: int, item_bytes: int = 1) -> tuple[bytes, int]:
    length, at = _read_length(data, at)
    length *= item_bytes
    if length > len(data) - at:
        raise IndexError("a text beyond the end")
    return data[at : at + length], at + length


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at)
    return found.decode("utf-8", "replace"), at
