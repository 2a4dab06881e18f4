"""Whether a request was answered before, as the records tell it."""

from __future__ import annotations

from pathlib import Path

import orjson

from toolkit.runfolder.reader import BadLine, Cursor, lines_of, parse_line, read_block
from toolkit.runfolder.records import CONTROL_CHANGE

_BLOCK_BYTES = 1024 * 1024


def was_answered(record_file: Path, request_id: str, *, upto: int | None = None) -> bool:
    """Say whether the run's records hold an answer to the request, looking at the first `upto` bytes of them.

    A long run has a million records, and each new request asks: so lines that do not name it are not parsed.
    """
    named = orjson.dumps(request_id)
    cursor = Cursor()
    while upto is None or cursor.offset < upto:
        try:
            block = read_block(record_file, cursor, max_bytes=_BLOCK_BYTES)
        except FileNotFoundError:
            return False
        if named in block.data:
            for position, line in lines_of(block):
                record = parse_line(position, line) if named in line else {}
                if isinstance(record, BadLine):
                    continue
                if record.get("event") == CONTROL_CHANGE and record.get("id") == request_id:
                    return True
        if block.cursor.offset == cursor.offset:
            return False
        cursor = block.cursor
    return False
