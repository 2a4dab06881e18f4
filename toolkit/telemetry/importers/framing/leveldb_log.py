"""The log of LevelDB with a header of its own, as W&B and SwanLab write it: blocks of 32 KiB with checked chunks."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

HEADER: Final = 7
_MOST_EMPTY: Final = 64 * 1024**2
_BLOCK: Final = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SEED: Final = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}


@dataclass(slots=True)
class Chunks:
    """What a part of a log holds."""

    records: list[bytes]
    end: int
    """Where the last complete record ends, in the file."""
    damaged: int = 0
    """Places where bytes had to be left out."""
    first_damage: int = -1


def read(data: bytes, offset: int) -> Chunks:
    """Return the complete records in `data`, which begins at `offset` of the file, at a record or at its header."""
    found = Chunks([], offset)
    records = found.records
    add = records.append
    at = HEADER - offset if offset < HEADER else 0
    size = len(data)
    parts: list[bytes] | None = None
    unpack = struct.Struct("<IHB").unpack_from
    crc32, seeds = zlib.crc32, _SEED
    view = memoryview(data)
    while True:
        left = _BLOCK - (offset + at) % _BLOCK
        if left < HEADER:
            # Too little for a header: padding.
            at += left
            if parts is None and at <= size:
                found.end = offset + at
            continue
        if at + HEADER > size:
            break
        checksum, length, kind = unpack(data, at)
        stop = at + HEADER + length
        if stop > size and HEADER + length <= left:
            # Not written yet, or cut.
            break
        seed = seeds.get(kind)
        if seed is None or HEADER + length > left or crc32(view[at + HEADER : stop], seed) != checksum:
            # Whatever this is, the next block begins with a header.
            following = at + left
            if following > size:
                break
            found.damaged += 1
            if found.first_damage < 0:
                found.first_damage = offset + at
            at = following
            parts = None
            found.end = offset + at
            continue
        content = data[at + HEADER : stop]
        at = stop
        if kind == _FULL:
            add(content)
            parts = None
        elif kind == _FIRST:
            parts = [content]
            continue
        elif parts is None:
            # The rest of a record whose beginning was damaged.
            found.damaged += 1
        elif kind == _MIDDLE:
            parts.append(content)
            continue
        else:
            parts.append(content)
            add(b"".join(parts))
            parts = None
        found.end = offset + at
    return found


def stop_if_empty(found: Chunks, size: int, state: dict[str, Any]) -> None:
    """Set `stop` in a file's state after 64 MB without a record: a hole in a file may be endless."""
    empty = 0 if found.records else state.get("empty", 0) + size
    state["empty"] = empty
    if empty > _MOST_EMPTY:
        state["stop"] = True
