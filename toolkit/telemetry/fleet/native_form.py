"""Rows as columns in ClickHouse's form Native, which keeps NaN and any bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
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
    parts = [_length(len(types)), _length(len(rows))]
    for (name, kind), values in zip(types.items(), zip(*rows, strict=True), strict=True):
        parts += (_text(name), _text(kind), _column(kind, values))
    return b"".join(parts)


def _column(kind: str, values: Sequence[Any]) -> bytes:
    if kind == "String":
        # Of most texts few differ.
        encoded = {value: _text(value) for value in set(values)}
        return b"".join(map(encoded.__getitem__, values))
    if kind.startswith("Array("):
        ends = _column("UInt64", tuple(accumulate(map(len, values))))
        return ends + _column(kind[6:-1], tuple(chain.from_iterable(values)))
    packed = array(_FIXED[kind], values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _text(value: bytes | str) -> bytes:
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    return _length(len(value)) + value


def _length(number: int) -> bytes:
    """Return a number in seven bits a byte, lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
