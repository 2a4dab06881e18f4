"""One record file, read into columns as it grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.reader import Cursor
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.line_parser import parse_block
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.record_source import FileSource, GrowingSource, Place
from toolkit.telemetry.runs.store import Health

_BLOCK_BYTES: Final = 16 * 1024 * 1024
MIN_CACHED_BYTES: Final = 256 * 1024
"""What is shorter is read as fast from the log itself."""
_LONG_S: Final = 60.0


class RunLog(ColumnQueries):
    """Reads one growing file, each byte once, and answers queries from memory. Thread-safe."""

    def __init__(self, path: Path, cache: ColumnCache | None, source: GrowingSource | None = None) -> None:
        """Read the file at `path`, or what `source` has of one with this name."""
        super().__init__()
        self.path = path
        self._source = source or FileSource(path)
        self._cache = cache
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._saver: threading.Thread | None = None
        self._cursor = Cursor()
        self.pending = 0
        """Bytes of the source that the last read left."""
        self._read_ms = 0.0
        self._replaced_at: float | None = None
        self._from_cache = False
        self._saved_offset = 0
        self._problem: str | None = None
        self._opened = False

    def refresh(self, wait_s: float) -> Health:
        """Read new records. What takes longer than `wait_s` continues in a background thread."""
        self.used_at = time.monotonic()
        began = time.perf_counter()
        if wait_s > _LONG_S and not self._opened:
            # Of a thousand logs, a thread for each would take longer than reading.
            self._open_cached()
        # A little is read here; a replaced file turns out to be large only after its start has been read.
        while (reader := self._background_reader()) is None and self._read_block():
            if time.perf_counter() - began > wait_s:
                break
        if reader is not None:
            reader.join(wait_s)
        self._read_ms = (time.perf_counter() - began) * 1000
        self._save_columns()
        return self.health()

    def read_records(self, places: Sequence[Place]) -> Sequence[Record | None]:
        """Return the records at these offsets and lengths."""
        return self._source.read_records(places)

    def _background_reader(self) -> threading.Thread | None:
        """Return the reading thread, started if necessary; None if there is too little to read."""
        # Before the lock: an engine may take seconds to say it.
        is_little = self._opened and self._is_little()
        with self._lock:
            # Two readers of the same file would overwrite each other's columns.
            if self._reader is not None and self._reader.is_alive():
                return self._reader
            if is_little:
                return None
            self._reader = threading.Thread(
                target=self._read_all, name=f"reading {self.path.name}", daemon=True
            )
            self._reader.start()
            return self._reader

    def _is_little(self) -> bool:
        try:
            return self._source.size() - self._cursor.offset < _BLOCK_BYTES // 8
        except OSError:
            return True

    def _read_all(self) -> None:
        done = False
        try:
            if not self._opened:
                self._open_cached()
            while self._read_block():
                pass
            done = True
        finally:
            if not done:
                with self._lock:
                    self._problem = "reading the log failed; showing what was read before"

    def _open_cached(self) -> None:
        with self._reading:
            cached = self._cache.load(self.path) if self._cache is not None and not self._opened else None
            with self._lock:
                if cached is not None:
                    self._use(*cached)
                    self._saved_offset = self._cursor.offset
                    self._from_cache = True
                self._opened = True

    def _use(self, columns: RunColumns, cursor: Cursor) -> None:
        self._use_columns(columns)
        self._cursor = cursor

    def _read_block(self) -> bool:
        """Read one block and return whether there is more."""
        with self._reading:
            try:
                block = self._source.read_block(self._cursor, max_bytes=_BLOCK_BYTES)
            except OSError as error:
                with self._lock:
                    self._problem = f"{self.path.name}: {error.strerror or error}"
                    self.pending = 0
                return False
            if block.replaced:
                with self._lock:
                    self._use(RunColumns(), Cursor())
                    self._replaced_at = time.time()
                    self._from_cache = False
                    self._saved_offset = 0
            moved = block.cursor.offset > self._cursor.offset
            parsed = parse_block(block) if moved else None
            with self._lock:
                if parsed is not None:
                    self._columns.add(parsed)
                self._cursor = block.cursor
                self.pending = block.pending_bytes
                self._problem = None
            # The rest may be an incomplete line: then the next read makes no progress.
            return moved and block.pending_bytes > 0

    def _save_columns(self) -> None:
        """Save the columns in a background thread once there is enough new data."""
        with self._lock:
            grown = self._cursor.offset - self._saved_offset
            if self._cache is None or grown < max(MIN_CACHED_BYTES, self._saved_offset // 4):
                return
            if self._is_busy(self._reader) or self._is_busy(self._saver):
                return
            save = self._cache.prepare(self.path, self._columns, self._cursor)
            self._saved_offset = self._cursor.offset
            self._saver = threading.Thread(target=save, name=f"saving {self.path.name}", daemon=True)
            self._saver.start()

    @staticmethod
    def _is_busy(thread: threading.Thread | None) -> bool:
        return thread is not None and thread.is_alive()

    def wait_until_saved(self, timeout_s: float) -> None:
        """Wait for a save in progress."""
        saver = self._saver
        if saver is not None:
            saver.join(timeout_s)

    def health(self) -> Health:
        """Return the state of reading."""
        with self._lock:
            columns = self._columns
            reading = self._reader is not None and self._reader.is_alive()
            problem = self._problem
            if problem is None and columns.metrics_left_out:
                shown, left = len(columns.metrics), len(columns.metrics_left_out)
                problem = f"{left:,} or more metrics beyond the first {shown:,} are not shown"
            return Health(
                records=columns.records,
                bytes_read=self._cursor.offset,
                # Unknown before the first block is parsed, but not zero.
                bytes_pending=max(1, self.pending) if reading else 0,
                bad_count=columns.bad_count,
                bad_lines=tuple(columns.bad_lines),
                replaced_at=self._replaced_at,
                lost_records=columns.lost_records,
                lost_reasons=tuple(columns.lost_reasons),
                read_ms=self._read_ms,
                from_cache=self._from_cache,
                problem=problem,
            )
