"""What the earlier sessions of a run have told whom."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolkit.mirrors.messages.delivery import DELIVERED
from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.reader import Cursor, read_block
from toolkit.runfolder.records import MESSAGE

_MARK: Final = b'"message"'
_READ_BYTES: Final = 1024 * 1024


def already_delivered(record_file: Path, until: int) -> dict[str, set[str]]:
    """Return the names of what was delivered to each receiver by the records of `record_file` before byte `until`.

    Most lines are only searched for one word, so that this takes no longer than to read the file.

    Raises:
        OSError: the file cannot be read.
    """
    told: dict[str, set[str]] = {}
    cursor = Cursor()
    while cursor.offset < until:
        block = read_block(record_file, cursor, max_bytes=_READ_BYTES)
        if block.cursor.offset == cursor.offset:
            break
        cursor = block.cursor
        if _MARK in block.data:
            _take_from(block.data, told)
    return told


def _take_from(data: bytes, told: dict[str, set[str]]) -> None:
    for line in data.split(b"\n"):
        if _MARK not in line or b'"about"' not in line:
            continue
        try:
            record = decode(line)
        except RecordError:
            continue
        receiver, about = record.get("receiver"), record.get("about")
        is_told = record.get("event") == MESSAGE and record.get("status") == DELIVERED
        if is_told and isinstance(receiver, str) and isinstance(about, list):
            told.setdefault(receiver, set()).update(name for name in about if isinstance(name, str))
