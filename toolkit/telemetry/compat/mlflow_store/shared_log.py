"""A file of records that several processes append to, each under a lock and after it has read what is new."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.compat.mlflow_store.run_state import BLOCK, ROOM, RunState
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.layout import PRIVATE, make_folders
from toolkit.telemetry.runfolder.portable import try_lock, unlock
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.safefile import open_to_write, read_inside, replace_file, write_all

_FILES: Final = "mlflow"
_MOST_BYTES: Final = 64 * 1024 * 1024
_WAIT_S: Final = 30.0
"""How long another process may have the file locked; a logger has it locked as long as it writes the run."""


class SharedLog:
    """One file of records, and the state that they add up to.

    A record that `append` took survives a kill of the process: it is in the file when `append` returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = RunState()
        self._cursor = Cursor()
        self._seq = 0
        self._descriptor = -1
        self._lock = threading.RLock()

    def state(self) -> RunState:
        """Return the state by all records that are in the file now.

        Raises:
            OSError: the file is missing or cannot be read.
        """
        with self._lock:
            if os.stat(self.path).st_size != self._cursor.offset:
                self._read()
            return self._state

    @contextmanager
    def alone(self) -> Iterator[RunState]:
        """Keep others from appending, and give the state by all records; only then `append` may be called.

        Raises:
            OSError: the file is missing, cannot be read, or stays locked by another process.
        """
        with self._lock:
            if self._descriptor >= 0:
                yield self._state
                return
            self._descriptor = open_to_write(self.path, os.O_WRONLY | os.O_APPEND, only_name=False)
            try:
                self._wait_for_lock()
                yield self.state()
            finally:
                descriptor, self._descriptor = self._descriptor, -1
                # Closing is not enough: a process that was forked meanwhile has a copy.
                unlock(descriptor)
                os.close(descriptor)

    def append(self, records: Sequence[Record]) -> None:
        """Append records, which get their numbers here.

        Raises:
            OSError: they could not be written; nothing of them counts, though some may be in the file.
        """
        numbered = [
            {"event": record["event"], "time": record["time"], "seq": seq, **record}
            for seq, record in enumerate(records, self._seq)
        ]
        data = b"".join(encode(self._with_small_block(record)) for record in numbered)
        size = os.fstat(self._descriptor).st_size
        if size > self._cursor.offset:
            # Another process was killed in the middle of a line.
            data = b"\n" + data
        write_all(self._descriptor, data)
        self._cursor = self._cursor._replace(offset=size + len(data))
        self._add(numbered)

    def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + _WAIT_S
        while try_lock(self._descriptor) is False:
            if time.monotonic() > deadline:
                raise OSError(
                    f"{self.path} is locked by another process, such as a logger that writes this run"
                )
            time.sleep(0.0005)

    def _read(self) -> None:
        while True:
            chunk = read_from(self.path, self._cursor)
            if chunk.replaced:
                self._state, self._seq = RunState(), 0
            is_end = chunk.cursor.offset == self._cursor.offset
            self._cursor = chunk.cursor
            self._add(chunk.records)
            if is_end:
                return

    def _add(self, records: Sequence[Record]) -> None:
        for record in records:
            seq = record.get("seq")
            if type(seq) is int:
                self._seq = max(self._seq, seq + 1)
            block = record.get(BLOCK)
            if isinstance(block, dict) and "file" in block:
                record = {**record, BLOCK: self._block_in(block["file"])}
            self._state.add(record)

    def _block_in(self, name: Any) -> Any:
        try:
            return orjson.loads(read_inside(self.path.parent, str(name), max_bytes=_MOST_BYTES))
        except (OSError, ValueError):
            # Someone removed or damaged it: the rest of the run can still be read.
            return None

    def forget_in_child(self) -> None:
        """Close a forked child's copy of the descriptor, which would keep the lock if the parent were killed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _with_small_block(self, record: Record) -> Record:
        block = record.get(BLOCK)
        data = orjson.dumps(block) if block else b""
        if len(data) <= ROOM:
            return record
        name = f"{_FILES}/{hashlib.sha256(data).hexdigest()[:32]}.json"
        make_folders(self.path.parent / _FILES, PRIVATE.folder)
        replace_file(self.path.parent / name, data)
        return {**record, BLOCK: {"file": name}}
