"""Whether a request was answered before, as the records tell it."""

from __future__ import annotations

from pathlib import Path

from toolkit.runfolder.reader import Cursor, read_from
from toolkit.runfolder.records import CONTROL_CHANGE


def was_answered(record_file: Path, request_id: str) -> bool:
    """Say whether the run's records hold an answer to the request; asked once a session, about a file left behind."""
    cursor = Cursor()
    while True:
        try:
            chunk = read_from(record_file, cursor, max_bytes=4 * 1024 * 1024)
        except FileNotFoundError:
            return False
        for record in chunk.records:
            if record.get("event") == CONTROL_CHANGE and record.get("id") == request_id:
                return True
        if chunk.next_offset == cursor.offset:
            return False
        cursor = chunk.cursor
