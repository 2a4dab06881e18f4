"""A run that another tool logged, read into the same columns as our own runs."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import orjson

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.diagnostics.metric_aliases import metric_key, signal_of
from toolkit.telemetry.importers.as_records import Row, completion_row, field_name, rows_of
from toolkit.telemetry.importers.source import (
    NO_STEP,
    STEP,
    SYSTEM,
    Batch,
    BlobRef,
    Event,
    RunSource,
    named_columns,
)
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.metrics import KINDS
from toolkit.telemetry.runfolder.reader import Block, Cursor, Identity
from toolkit.telemetry.runfolder.records import COMPLETION, SAMPLE, Record
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.line_parser import Parsed
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.growable_array import GrowableArray
from toolkit.telemetry.runs.record_source import Place
from toolkit.telemetry.runs.store import Health

_ROWS_AT_ONCE: Final = 2_000
_MAX_KEPT_BYTES: Final = 64 * 1024**2
"""Texts, tables and histograms of a run that are kept in memory; more are only counted."""
_EVENTS: Final = {
    "text": "text",
    "image": SAMPLE,
    "histogram": "histogram",
    "table": "table",
    "completion": COMPLETION,
}
_SIZED: Final = frozenset({"image", "table"})
_SIZES: Final = frozenset({"width", "height", "size", "ncols", "nrows"})
_EPOCHS: Final = frozenset({"epoch", "train/epoch"})
_IMAGES: Final = "images/"


class ForeignLog(ColumnQueries):
    """Reads the run from a cursor on, each value once, and answers queries from memory. Thread-safe."""

    def __init__(self, source: RunSource) -> None:
        # A copy: sources remember what they read, and the list reads the same run.
        self.run = copy.deepcopy(source)
        super().__init__()
        self.source = ForeignSource(self)
        self._generation = 0
        self._guard = Guard()
        self._reader: threading.Thread | None = None
        self._read_ms = 0.0
        self._media: set[str] = set()
        """Names of images and tables."""
        self._clear()

    def _clear(self) -> None:
        self._cursor: Any = None
        self.bytes_read = 0
        self._first_time = np.nan
        self._has_steps = False
        self._has_step: GrowableArray[np.bool_] = GrowableArray(np.empty(0, dtype=bool))
        """Whether each row has a step of its own."""
        self._kept: list[Record] = []
        self._kept_bytes = 0
        self._images: list[BlobRef] = []
        self.files: dict[str, dict[str, None]] = {}
        """The parts of the run that have each metric, relative to its root."""
        self.passed_over: Counter[str] = Counter()
        self._problem: str | None = None
        self._replaced_at: float | None = None
        self._is_read = False
        """Whether the end has been reached, and nothing was found after it since."""

    # ------------------------------------------------------------ reading

    def refresh(self, wait_s: float) -> Health:
        """Read what is new. What takes longer than `wait_s` continues in a background thread."""
        self.used_at = time.monotonic()
        began = time.perf_counter()
        with self._lock:
            reader = self._reader
            if reader is None or not reader.is_alive():
                reader = self._reader = threading.Thread(
                    target=self._read_all, name="reading another tool's run", daemon=True
                )
                reader.start()
        reader.join(max(wait_s, 0.001))
        self._read_ms = (time.perf_counter() - began) * 1000
        # Who does not wait asks for what is read. That a look for more has begun does not make it incomplete.
        return self.health(is_looking=wait_s > 0)

    def _read_all(self) -> None:
        while self._read_batch():
            pass

    def _read_batch(self) -> bool:
        batch = self._guard.call("reading another tool's run", self.run.read, self._cursor)
        if batch is None:
            with self._lock:
                self._problem = f"the run could not be read: {', '.join(self._guard.counts)}"
                self._is_read = True
            return False
        self._media.update(event.name for event in batch.events if event.kind in _SIZED)
        columns = [
            (clean(name), column)
            for name, column in named_columns(self.run.info, batch)
            if len(column) and not self._is_size(column.metric)
        ]
        # Before the lock: pages ask meanwhile.
        rows = rows_of(columns)
        with self._lock:
            if batch.replaced:
                self._use_columns(RunColumns())
                self._clear()
                self._replaced_at = time.time()
                self._generation += 1
            self._problem = None
            pieces = self.run.info.pieces
            for name, column in columns:
                if column.piece < len(pieces):
                    self.files.setdefault(name, {})[pieces[column.piece].path] = None
            self._add(batch, rows)
            is_same = batch.cursor == self._cursor
            self._cursor = batch.cursor
            self._is_read = is_same or not batch.more
            return not self._is_read

    def _add(self, batch: Batch, rows: Sequence[Row]) -> None:
        self.bytes_read += batch.bytes_read
        for (_, reason), often in batch.passed_over.items():
            self.passed_over[reason] += often
        parsed = self._parsed(rows)
        parsed.events = [place for event in batch.events if (place := self._keep(event)) is not None]
        parsed.records += len(parsed.events)
        self._columns.add(parsed)

    def _is_size(self, metric: str) -> bool:
        """Return whether a metric is the width of an image or the like, which W&B logs with the image itself."""
        name, _, part = metric.rpartition(".")
        return part in _SIZES and name in self._media

    def _parsed(self, rows: Sequence[Row]) -> Parsed:
        found: dict[str, tuple[list[int], list[float]]] = {}
        kinds: dict[str, str] = {}
        for number, row in enumerate(rows):
            for name, value in row.fields.items():
                if name not in found:
                    found[name] = [], []
                    kinds[name] = row.kind
                numbers, values = found[name]
                numbers.append(number)
                values.append(value)
        metrics = {
            name: (np.array(numbers, dtype=np.int32), np.array(values))
            for name, (numbers, values) in found.items()
        }
        epoch = np.full(len(rows), np.nan)
        for name in _EPOCHS & metrics.keys():
            at, epochs = metrics[name]
            epoch[at] = epochs
        row_time = np.array([row.time if row.time > -math.inf else math.nan for row in rows])
        has_step = np.array([row.step != NO_STEP for row in rows], dtype=bool)
        kind = np.array([KINDS.index(row.kind) for row in rows], dtype=np.int8)
        is_step = kind == KINDS.index(STEP)
        self._has_steps = self._has_steps or bool(is_step.any())
        if not self._has_steps:
            is_step = kind != KINDS.index(SYSTEM)
        if np.isnan(self._first_time) and np.isfinite(row_time).any():
            self._first_time = float(np.nanmin(row_time))
        self._has_step.append(has_step)
        return Parsed(
            time=row_time,
            elapsed=row_time - self._first_time,
            step=np.where(has_step, np.array([row.step for row in rows], dtype=np.float64), np.nan),
            epoch=epoch,
            session=np.array([row.session + 1 for row in rows], dtype=np.int32),
            is_step=is_step,
            kind=kind,
            at=np.full(len(rows), -1, dtype=np.int64),
            metrics=metrics,
            kinds=kinds,
            records=len(rows),
        )

    def _keep(self, event: Event) -> tuple[str, int, int] | None:
        """Keep an event and return its kind and number; None for one that no page shows."""
        kind = _EVENTS.get(event.kind)
        if kind is None:
            return None
        record = Row(kind, event.session, event.step, event.time, {"name": clean(event.name)}).record()
        if kind == COMPLETION:
            record = completion_row(event).record()
        elif kind == SAMPLE:
            if event.blob is None:
                self.passed_over["images whose file is not there"] += 1
                return None
            # The page checks what it is by its first bytes.
            record |= {"path": f"{_IMAGES}{len(self._images)}.png", "prompt": record.pop("name")}
            self._images.append(event.blob)
        else:
            record["content"] = f"in {clean(event.blob.path)}" if event.blob else plain(event.payload)
        size = len(orjson.dumps(record, default=str))
        if self._kept_bytes + size > _MAX_KEPT_BYTES:
            self.passed_over["texts and tables beyond the first 64 MiB"] += 1
            return None
        self._kept_bytes += size
        self._kept.append(record)
        return kind, len(self._kept) - 1, 1

    def health(self, *, is_looking: bool = False) -> Health:
        """Return the state of reading; with `is_looking`, a look for more that has not ended counts as well."""
        with self._lock:
            columns = self._columns
            is_alive = self._reader is not None and self._reader.is_alive()
            is_reading = is_alive and (is_looking or not self._is_read)
            return Health(
                records=columns.records,
                bytes_read=self.bytes_read,
                bytes_pending=1 if is_reading else 0,
                replaced_at=self._replaced_at,
                read_ms=self._read_ms,
                problem=self._problem or self._passed_over_sentence(),
            )

    def _passed_over_sentence(self) -> str | None:
        notes = [clean(note) for note in list(self.run.info.notes) if not note.startswith("notes: ")]
        total = sum(self.passed_over.values())
        if total:
            reasons = ", ".join(
                f"{often:,} {clean(reason)}" for reason, often in self.passed_over.most_common(5)
            )
            notes.append(f"{total:,} {'value' if total == 1 else 'values'} passed over: {reasons}")
        more = f"; and {len(notes) - 4} more, on the Config & output page" if len(notes) > 4 else ""
        return "; ".join(notes[:4]) + more if notes else None

    # ------------------------------------------------------------ answers

    def config(self) -> dict[str, Any]:
        """Return the configuration, as far as it was read."""
        return dict(plain(dict(self.run.info.config)))

    def origin(self) -> dict[str, str]:
        """Return where the run comes from, for people."""
        info = self.run.info
        found = {"format": info.format, "written by": info.writer, "id": info.run_id, "parent": info.parent}
        found["folder"] = str(info.root)
        for number, piece in enumerate(info.pieces[:20]):
            found[f"part {number + 1}" if len(info.pieces) > 1 else "part"] = piece.path
        if len(info.pieces) > 20:
            found["more parts"] = f"{len(info.pieces) - 20:,}"
        for number, note in enumerate([*info.notes][:20]):
            found[f"note {number + 1}"] = note
        with self._lock:
            for reason, often in self.passed_over.most_common(50):
                found[f"passed over: {reason}"] = f"{often:,}"
        return {clean(name): clean(value) for name, value in found.items() if value}

    def image(self, relative: str, max_bytes: int) -> bytes:
        """Return an image by the path in its record.

        Raises:
            OSError: there is none, or it cannot be read.
        """
        number = relative.removeprefix(_IMAGES).removesuffix(".png")
        if not number.isdecimal() or int(number) >= len(self._images):
            raise OSError("there is no such image in the run")
        return self.run.blob(self._images[int(number)], max_bytes=max_bytes)

    def named(self, name: str) -> str:
        """Return the metric with this name, else the one with the same meaning: `train/loss` for `train_loss`."""
        with self._lock:
            metrics = self._columns.metrics
            if name in metrics:
                return name
            key, signal = metric_key(name), signal_of(name)
            alike = [
                other
                for other in metrics
                if metric_key(other) == key or (signal is not None and signal_of(other) == signal)
            ]
            return max(alike, key=lambda other: len(metrics[other].values), default=name)

    # ------------------------------------------------------------ as records

    def read_records(self, places: Sequence[Place]) -> Sequence[Record | None]:
        """Return events; the place of one is its number, not an offset."""
        with self._lock:
            return [self._kept[number] if 0 <= number < len(self._kept) else None for number, _ in places]

    @property
    def read_so_far(self) -> tuple[int, int]:
        """A number that changes if the run is replaced, and how many rows were read."""
        with self._lock:
            return self._generation, self._columns.rows

    def rows(self, start: int, stop: int) -> list[Record]:
        """Return rows as records of ours."""
        with self._lock:
            columns = self._columns
            found = [
                Row(KINDS[kind], 0, int(step) if has_step else NO_STEP, time_s)
                for kind, has_step, step, time_s in zip(
                    columns.kind.values[start:stop].tolist(),
                    self._has_step.values[start:stop].tolist(),
                    columns.step.values[start:stop].tolist(),
                    columns.time.values[start:stop].tolist(),
                    strict=True,
                )
            ]
            for segment in columns.segments:
                for row in found[max(segment.start - start, 0) : max(segment.end - start, 0)]:
                    row.session = segment.session - 1
            for name, metric in columns.metrics.items():
                first, last = np.searchsorted(metric.rows.values, (start, stop))
                field = field_name(name)
                for number, value in zip(
                    metric.rows.values[first:last].tolist(),
                    metric.values.values[first:last].tolist(),
                    strict=True,
                ):
                    found[number - start].fields[field] = value
            return [row.record() for row in found]


class ForeignSource:
    """The rows of such a run as a RecordSource; an offset is the number of a row."""

    def __init__(self, log: ForeignLog) -> None:
        self._log = log

    @property
    def name(self) -> str:
        """The name of the run."""
        return clean(self._log.run.info.name)

    def read_block(self, cursor: Cursor, *, max_bytes: int) -> Block:  # noqa: ARG002 - a part is small
        """Return the rows after `cursor`, without lines."""
        generation, rows = self._log.read_so_far
        identity = Identity(generation, 0, 0, 0)
        is_replaced = cursor.identity is not None and cursor.identity != identity
        start = 0 if is_replaced else cursor.offset
        stop = min(rows, start + _ROWS_AT_ONCE)
        return Block(
            data=b"",
            start=start,
            cursor=Cursor(stop, identity),
            long_line=None,
            replaced=is_replaced,
            pending_bytes=rows - stop,
        )

    def records_in(self, block: Block) -> Iterator[tuple[list[Record], int]]:
        """Yield the records of a block."""
        if block.cursor.offset > block.start:
            yield self._log.rows(block.start, block.cursor.offset), block.cursor.offset

    def pieces(self) -> Iterator[bytes]:
        """Yield all rows as lines of our own format."""
        rows = self._log.read_so_far[1]
        for start in range(0, rows, _ROWS_AT_ONCE):
            yield b"".join(map(encode, self._log.rows(start, min(start + _ROWS_AT_ONCE, rows))))
