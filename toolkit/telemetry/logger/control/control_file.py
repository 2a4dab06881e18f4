"""Notices a new control.json, reads it once it is whole, and knows whether its request was answered before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.runfolder.control import ControlRefused, ControlRequest, Signature, peek, read_request
from toolkit.telemetry.runfolder.layout import CONTROL
from toolkit.telemetry.runfolder.reader import BadLine, Cursor, lines_of, parse_line, read_block
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE

_BLOCK_BYTES = 1024 * 1024


class ControlFile:
    """The control file of one run, for one background thread."""

    def __init__(self, run_folder: Path, *, session_started: float, guard: Guard) -> None:
        self._run_folder = run_folder
        self._seen: Signature | None = None
        self._doubtful: Signature | None = None
        self._at_start: Signature | None = None
        with guard.catch(f"looking at {CONTROL}"):
            signature = peek(run_folder)
            if signature is not None and signature[0] < session_started * 1e9:
                self._at_start = signature

    def look(self, now: float, take: Callable[[str, ControlRequest | ControlRefused], None]) -> None:
        """Call `take` with the id and the content of a new file; one that is as it was costs one `lstat`."""
        signature = peek(self._run_folder)
        if signature is None or signature == self._seen:
            return
        try:
            request = read_request(self._run_folder)
        except ControlRefused as refusal:
            # It may be half written, or about to get its permissions: refused if the next look finds it unchanged.
            if signature != self._doubtful:
                self._doubtful = signature
                return
            mtime_ns, size, inode, _ = signature
            take(refusal.request_id or f"file-{mtime_ns}-{size}-{inode}", refusal)
        else:
            if request is not None:
                if request.is_plain and not self._was_there(signature):
                    # It is new, whatever the clocks of this machine and of its disk say.
                    request = replace(request, timestamp=now)
                take(request.id, request)
        self._seen = signature

    def _was_there(self, signature: Signature) -> bool:
        """Say whether an earlier session left the file; its permissions may have changed since."""
        return self._at_start is not None and self._at_start[:3] == signature[:3]


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
