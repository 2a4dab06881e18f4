"""Columns as a block in ClickHouse's Native format, without numpy."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
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


def native_block(columns: Sequence[tuple[str, str, Sequence[Any]]]) -> bytes:
    """Return a block of `columns`: the name, type and values of each. Texts are bytes; a date is a day since 1970."""
    rows = len(columns[0][2])
    return block_of([(name, kind, column(kind, values)) for name, kind, values in columns], rows)


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


def text(value: bytes) -> bytes:
    """Return one text, encoded: its length and itself."""
    length = len(value)
    return (_SHORT[length] if length < len(_SHORT) else _length(length)) + value


def _length(number: int) -> bytes:
    """Return a number in seven bits a byte, lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT: Final = [_length(number) for number in range(0x1000)]
"""The lengths of nearly all texts."""
