"""One record file, read as it grows, and queries on its columns."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from dashboard.data.column_cache import ColumnCache
from dashboard.data.line_parser import LineParser, parse_event
from dashboard.data.run_columns import RunColumns
from dashboard.data.run_store import Floats, Health, MetricInfo, Series, SessionStart, XAxis
from dashboard.data.series import SeriesBuilder
from dashboard.data.span_reader import SpanReader
from dashboard.data.spans import SpanTable
from toolkit.runfolder.portable import pread
from toolkit.runfolder.reader import Cursor, read_block
from toolkit.runfolder.records import Record
from toolkit.runfolder.safefile import open_regular

_BLOCK_BYTES: Final = 16 * 1024 * 1024
_MIN_CACHED_BYTES: Final = 8 * 1024 * 1024


class RunLog:
    """Reads one growing file, each byte once, and answers queries from memory. Thread-safe."""

    def __init__(self, path: Path, cache: ColumnCache | None) -> None:
        self.path = path
        self.used_at = 0.0
        self._cache = cache
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._saver: threading.Thread | None = None
        self._cursor = Cursor()
        self._parser = LineParser()
        self._columns = RunColumns()
        self._builder = SeriesBuilder(self._columns)
        self._spans = SpanReader()
        self._pending = 0
        self._read_ms = 0.0
        self._replaced_at: float | None = None
        self._from_cache = False
        self._saved_offset = 0
        self._problem: str | None = None
        self._opened = False

    # ------------------------------------------------------------ reading

    def refresh(self, wait_s: float) -> Health:
        """Read new records. What takes longer than `wait_s` continues in a background thread."""
        self.used_at = time.monotonic()
        began = time.perf_counter()
        # A little is read here; a replaced file turns out to be large only after its start has been read.
        while (reader := self._background_reader()) is None and self._read_block():
            if time.perf_counter() - began > wait_s:
                break
        if reader is not None:
            reader.join(wait_s)
        self._read_ms = (time.perf_counter() - began) * 1000
        self._save_columns()
        return self.health()

    def _background_reader(self) -> threading.Thread | None:
        """Return the reading thread, started if necessary; None if there is too little to read."""
        with self._lock:
            # Two readers of the same file would overwrite each other's columns.
            if self._reader is not None and self._reader.is_alive():
                return self._reader
            if self._opened and self._is_little():
                return None
            self._reader = threading.Thread(
                target=self._read_all, name=f"reading {self.path.name}", daemon=True
            )
            self._reader.start()
            return self._reader

    def _is_little(self) -> bool:
        try:
            return os.stat(self.path).st_size - self._cursor.offset < _BLOCK_BYTES // 8
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
        cached = self._cache.load(self.path) if self._cache is not None else None
        with self._lock:
            if cached is not None:
                self._take_over(cached.columns, cached.cursor)
                self._saved_offset = cached.cursor.offset
                self._from_cache = True
            self._opened = True

    def _take_over(self, columns: RunColumns, cursor: Cursor) -> None:
        self._columns, self._cursor = columns, cursor
        self._builder = SeriesBuilder(columns)
        self._parser = LineParser()

    def _read_block(self) -> bool:
        """Read one block and return whether there is more."""
        with self._reading:
            try:
                block = read_block(self.path, self._cursor, max_bytes=_BLOCK_BYTES)
            except OSError as error:
                with self._lock:
                    self._problem = f"{self.path.name}: {error.strerror or error}"
                    self._pending = 0
                return False
            if block.replaced:
                with self._lock:
                    self._take_over(RunColumns(), Cursor())
                    self._replaced_at = time.time()
                    self._from_cache = False
                    self._saved_offset = 0
            parsed = self._parser.parse(block)
            moved = block.cursor.offset > self._cursor.offset
            with self._lock:
                self._columns.add(parsed)
                self._cursor = block.cursor
                self._pending = block.pending_bytes
                self._problem = None
            # The rest may be an incomplete line: then the next read makes no progress.
            return moved and block.pending_bytes > 0

    def _save_columns(self) -> None:
        """Save the columns in a background thread once there is enough new data."""
        with self._lock:
            grown = self._cursor.offset - self._saved_offset
            if self._cache is None or grown < max(_MIN_CACHED_BYTES, self._saved_offset // 4):
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
                bytes_pending=max(1, self._pending) if reading else 0,
                bad_count=columns.bad_count,
                bad_lines=tuple(columns.bad_lines),
                replaced_at=self._replaced_at,
                lost_records=columns.lost_records,
                lost_reasons=tuple(columns.lost_reasons),
                read_ms=self._read_ms,
                from_cache=self._from_cache,
                problem=problem,
            )

    @property
    def nbytes(self) -> int:
        """Memory used by the columns."""
        with self._lock:
            columns = self._columns
            held = sum(metric.rows.nbytes + metric.values.nbytes for metric in columns.metrics.values())
            return held + 4 * columns.time.nbytes + self._spans.nbytes

    # ------------------------------------------------------------ queries

    def metrics(self) -> list[MetricInfo]:
        """Return the metrics read so far."""
        with self._lock:
            found = []
            for name, metric in self._columns.metrics.items():
                row = int(metric.rows.values[-1])
                found.append(
                    MetricInfo(
                        name=name,
                        event=metric.event,
                        count=len(metric.values),
                        last=float(metric.values.values[-1]),
                        last_step=float(self._columns.step.values[row]),
                        low=float(metric.low),
                        high=float(metric.high),
                        non_finite=metric.non_finite,
                    )
                )
            return found

    def series(
        self, name: str, axis: XAxis, window: tuple[float, float] | None, buckets: int, smoothing: float
    ) -> Series:
        """Return one metric as a curve."""
        with self._lock:
            return self._builder.build(name, axis, window, buckets, smoothing)

    def newest(self) -> tuple[float, int | None] | None:
        """Return time and step of the last record with metrics, or None before the first."""
        with self._lock:
            if not self._columns.rows:
                return None
            moment, step = float(self._columns.time.values[-1]), float(self._columns.step.values[-1])
            if not np.isfinite(moment):
                return None
            return moment, int(step) if np.isfinite(step) and self._columns.counts["step"] else None

    def sessions(self) -> list[SessionStart]:
        """Return where each session that has logged a step starts."""
        with self._lock:
            times = self._columns.time.values
            return [
                SessionStart(
                    session=segment.session,
                    first_step=segment.first_step,
                    first_time=float(times[segment.start]),
                )
                for segment in self._columns.segments
                if segment.first_step is not None
            ]

    def recent(self, name: str, count: int) -> Floats:
        """Return the last values of a metric."""
        with self._lock:
            metric = self._columns.metrics.get(name)
            if metric is None or count < 1:
                return np.empty(0)
            return metric.values.values[-count:].copy()

    def values_around(self, name: str, moment: float, count: int) -> tuple[Floats, Floats]:
        """Return a metric's values just before and just after a wall time, at most `count` of each."""
        with self._lock:
            metric = self._columns.metrics.get(name)
            if metric is None or count < 1:
                return np.empty(0), np.empty(0)
            times = self._columns.time.values[metric.rows.values]
            values = metric.values.values
            # In file order: a clock that was set back does not reorder records.
            later = np.flatnonzero(times > moment)
            split = int(later[0]) if len(later) else len(values)
            return values[max(0, split - count) : split].copy(), values[split : split + count].copy()

    def means(self, name: str, buckets: int) -> Floats:
        """Return the mean of each of about `buckets` parts of a metric, without NaN and infinity."""
        with self._lock:
            metric = self._columns.metrics.get(name)
            if metric is None:
                return np.empty(0)
            values = metric.values.values
            if metric.non_finite:
                values = values[np.isfinite(values)]
            if len(values) <= buckets:
                return values.copy()
            edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
            return np.asarray(np.add.reduceat(values, edges[:-1]) / np.diff(edges))

    def table(self, names: Sequence[str] | None) -> dict[str, Floats]:
        """Return metrics as columns of one length, NaN for missing values, with step, time and session."""
        with self._lock:
            columns = self._columns
            rows = columns.rows
            session = np.zeros(rows)
            for segment in columns.segments:
                session[segment.start : segment.end] = segment.session
            table: dict[str, Floats] = {
                "global_step": columns.step.values.copy(),
                "time": columns.time.values.copy(),
                "session": session,
            }
            for name in names if names is not None else list(columns.metrics):
                metric = columns.metrics.get(name)
                if metric is not None:
                    column = np.full(rows, np.nan)
                    column[metric.rows.values] = metric.values.values
                    table[name] = column
            return table

    def present(self, names: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
        """Return, for each metric, which rows have it: a logged NaN is not an empty cell."""
        with self._lock:
            found = {}
            for name in names:
                metric = self._columns.metrics.get(name)
                if metric is not None:
                    mask = np.zeros(self._columns.rows, dtype=bool)
                    mask[metric.rows.values] = True
                    found[name] = mask
            return found

    def counts(self) -> dict[str, int]:
        """Return how many records of each kind were read."""
        with self._lock:
            return dict(self._columns.counts)

    def events(self, kinds: Iterable[str] | None, limit: int) -> list[Record]:
        """Return the newest records without metrics, newest first."""
        with self._lock:
            columns = self._columns
            all_kinds = columns.event_kind.values
            if kinds is None:
                places = np.arange(len(all_kinds))[-limit:]
            else:
                names = set(kinds)
                wanted = [i for i, name in enumerate(columns.event_names) if name in names]
                places = np.flatnonzero(np.isin(all_kinds, wanted))[-limit:]
            starts = columns.event_start.values[places].tolist()
            lengths = columns.event_length.values[places].tolist()
        found = self.records_at(list(zip(reversed(starts), reversed(lengths), strict=True)))
        return [record for record in found if record is not None]

    def records_at(self, places: Sequence[tuple[int, int]]) -> list[Record | None]:
        """Return the records at these offsets and lengths; None for invalid ones."""
        try:
            descriptor = open_regular(self.path)
        except OSError:
            return [None] * len(places)
        try:
            return [parse_event(pread(descriptor, length, start)) for start, length in places]
        finally:
            os.close(descriptor)

    def spans(self, wait_s: float) -> SpanTable:
        """Return the spans read so far, after reading new ones for at most about `wait_s`."""
        with self._lock:
            columns = self._columns
            heard: dict[int, float] = {}
            for segment in columns.segments:
                moment = float(columns.time.values[segment.end - 1])
                if np.isfinite(moment):
                    heard[segment.session] = max(moment, heard.get(segment.session, moment))
        return self._spans.read(self.path, columns, heard, wait_s)
