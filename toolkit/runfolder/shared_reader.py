"""Reads a growing record file for several followers, which mostly ask for the same part one after the other."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

from toolkit.runfolder.reader import Chunk, Cursor, read_from

# No lock: a process that is forked while another thread holds one could never read again. Each of these calls is one
# step for the interpreter.
_latest: Final[deque[tuple[Path, Cursor, Chunk]]] = deque(maxlen=2)


def read_shared(path: Path, cursor: Cursor, *, max_bytes: int) -> Chunk:
    """Return what `read_from` does; if another follower has just read the same part, it is not parsed again.

    The records belong to all followers: none may change them. There may be more in the file than was read the first
    time, as if this call had come earlier.
    """
    for known_path, known_cursor, chunk in list(_latest):
        if known_cursor == cursor and known_path == path:
            return chunk
    chunk = read_from(path, cursor, max_bytes=max_bytes)
    # A line that could not be read may come back, and is looked at again.
    if chunk.records and not chunk.bad_count and not chunk.replaced:
        _latest.append((path, cursor, chunk))
    return chunk
