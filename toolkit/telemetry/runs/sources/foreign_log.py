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
import numpy.typing as npt
import orjson

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.diagnostics.metric_aliases import metric_key, signal_of
from toolkit.telemetry.importers.as_records import completion_record
from toolkit.telemetry.importers.source import NO_STEP, STEP, SYSTEM, Batch, BlobRef, Column, Event, RunSource
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.runfolder.codec import encode, name_of_non_finite
from toolkit.telemetry.runfolder.metrics import KINDS, NOT_METRICS
from toolkit.telemetry.runfolder.reader import Block, Cursor, Identity
from toolkit.telemetry.runfolder.records import COMPLETION, NON_FINITE, SAMPLE, Record
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.line_parser import Parsed
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.growable_array import GrowableArray
from toolkit.telemetry.runs.record_source import Place
from toolkit.telemetry.runs.store import Floats, Health

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
        self._clear()

    def _clear(self) -> None:
        self._cursor: Any = None
        self.bytes_read = 0
        self._first_time = np.nan
        self._has_steps = False
        self._row_kind: GrowableArray[np.int8] = GrowableArray(np.empty(0, dtype=np.int8))
        """Each row's place in `KINDS`, negative (-1 for the first) if it has no step of its own."""
        self._kept: list[Record] = []
        self._kept_bytes = 0
        self._images: list[BlobRef] = []
        self.files: dict[str, dict[str, None]] = {}
        """The parts of the run that have each metric, relative to its root."""
        self._media: set[str] = set()
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
        with self._lock:
            if batch.replaced:
                self._use_columns(RunColumns())
                self._clear()
                self._replaced_at = time.time()
                self._generation += 1
            self._problem = None
            self._add(batch)
            is_same = batch.cursor == self._cursor
            self._cursor = batch.cursor
            self._is_read = is_same or not batch.more
            return not self._is_read

    def _add(self, batch: Batch) -> None:
        self.bytes_read += batch.bytes_read
        for (_, reason), often in batch.passed_over.items():
            self.passed_over[reason] += often
        self._media.update(event.name for event in batch.events if event.kind in _SIZED)
        columns = [
            column
            for column in batch.columns
            if len(column) and not column.repeated and not self._is_size(column.metric)
        ]
        parsed, row_kind = self._parsed(columns)
        parsed.events = [place for event in batch.events if (place := self._keep(event)) is not None]
        parsed.records += len(parsed.events)
        self._row_kind.append(row_kind)
        self._columns.add(parsed)

    def _is_size(self, metric: str) -> bool:
        """Return whether a metric is the width of an image or the like, which W&B logs with the image itself."""
        name, _, part = metric.rpartition(".")
        return part in _SIZES and name in self._media

    def _parsed(self, columns: Sequence[Column]) -> tuple[Parsed, npt.NDArray[np.int8]]:
        """Return the points as rows: one for each step, session and kind, as our own records are."""
        empty = np.empty(0)
        no_steps = np.empty(0, dtype=np.int64)
        lengths = [len(column) for column in columns]
        steps = np.concatenate(
            [no_steps, *(np.frombuffer(column.steps, dtype=np.int64) for column in columns)]
        )
        times = np.concatenate(
            [empty, *(np.frombuffer(column.times, dtype=np.float64) for column in columns)]
        )
        session = np.repeat(np.array([column.session for column in columns], dtype=np.int64), lengths)
        kind = np.repeat(np.array([KINDS.index(column.kind) for column in columns], dtype=np.int64), lengths)
        # The same metric twice at one step makes two rows.
        nth = np.concatenate([no_steps, *map(_occurrence, columns)])
        has_step = steps != NO_STEP
        # Points without a step belong together if they were logged at the same time.
        x = np.where(has_step, steps.astype(np.float64), np.nan_to_num(times, nan=0.0))
        order = np.lexsort((nth, kind, x, ~has_step, session))
        keys = np.stack((session, has_step, x, kind, nth))[:, order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        row_of_sorted = np.cumsum(is_first) - 1
        first = order[is_first]
        row = np.empty(len(order), dtype=np.int64)
        row[order] = row_of_sorted
        if len(first):
            earliest = np.full(len(first), np.inf)
            np.fmin.at(earliest, row, np.where(np.isnan(times), np.inf, times))
            row_time = np.where(np.isinf(earliest), np.nan, earliest)
        else:
            row_time = empty
        place = _in_order(session[first], has_step[first], row_time)
        arranged = np.argsort(place)
        first, row_time = first[arranged], row_time[arranged]
        row = place[row]
        row_step = np.where(has_step[first], steps[first].astype(np.float64), np.nan)
        row_kind = kind[first]
        is_step = row_kind == KINDS.index(STEP)
        self._has_steps = self._has_steps or bool(is_step.any())
        if not self._has_steps:
            is_step = row_kind != KINDS.index(SYSTEM)
        if np.isnan(self._first_time) and np.isfinite(row_time).any():
            self._first_time = float(np.nanmin(row_time))
        parsed = Parsed(
            time=row_time,
            elapsed=row_time - self._first_time,
            step=row_step,
            epoch=np.full(len(first), np.nan),
            session=(session[first] + 1).astype(np.int32),
            is_step=is_step,
            kind=row_kind.astype(np.int8),
            at=np.full(len(first), -1, dtype=np.int64),
            metrics={},
            kinds={},
            records=len(first),
        )
        at = 0
        for column, length in zip(columns, lengths, strict=True):
            rows, values = row[at : at + length].astype(np.int32), np.array(column.values, dtype=np.float64)
            at += length
            self._add_metric(parsed, column, rows, values)
        return parsed, np.where(has_step[first], row_kind, -1 - row_kind).astype(np.int8)

    def _add_metric(
        self, parsed: Parsed, column: Column, rows: npt.NDArray[np.int32], values: Floats
    ) -> None:
        pieces = self.run.info.pieces
        prefix = pieces[column.piece].prefix if column.piece < len(pieces) else ""
        name = clean(f"{prefix}{column.metric}")
        if column.piece < len(pieces):
            self.files.setdefault(name, {})[pieces[column.piece].path] = None
        if name in ("epoch", "train/epoch"):
            parsed.epoch[rows] = values
        if name in parsed.metrics:
            earlier, before = parsed.metrics[name]
            rows, values = np.concatenate((earlier, rows)), np.concatenate((before, values))
        sorted_rows = np.argsort(rows, kind="stable")
        parsed.metrics[name] = (rows[sorted_rows], values[sorted_rows])
        parsed.kinds.setdefault(name, column.kind)

    def _keep(self, event: Event) -> tuple[str, int, int] | None:
        """Keep an event and return its kind and number; None for one that no page shows."""
        kind = _EVENTS.get(event.kind)
        if kind is None:
            return None
        record: dict[str, Any] = {"event": kind, "session": event.session + 1, "name": clean(event.name)}
        if event.step != NO_STEP:
            record["global_step"] = event.step
        if event.time == event.time:
            record["time"] = event.time
        if kind == COMPLETION:
            record = completion_record(event)
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
            records: list[Record] = []
            for kind, step, time_s in zip(
                self._row_kind.values[start:stop].tolist(),
                columns.step.values[start:stop].tolist(),
                columns.time.values[start:stop].tolist(),
                strict=True,
            ):
                record: Record = {"event": KINDS[kind if kind >= 0 else -1 - kind]}
                if time_s == time_s:
                    record["time"] = time_s
                if kind >= 0:
                    record["global_step"] = int(step)
                records.append(record)
            for segment in columns.segments:
                for row in range(max(start, segment.start), min(stop, segment.end)):
                    records[row - start]["session"] = segment.session
            for name, metric in columns.metrics.items():
                rows = metric.rows.values
                first, last = np.searchsorted(rows, (start, stop))
                if first == last or (name in NOT_METRICS and name != "epoch"):
                    continue
                values = metric.values.values[first:last].tolist()
                for row, value in zip(rows[first:last].tolist(), values, strict=True):
                    records[row - start][name] = value
                    if not math.isfinite(value):
                        records[row - start].setdefault(NON_FINITE, {})[name] = name_of_non_finite(value)
            return records


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


def _occurrence(column: Column) -> npt.NDArray[np.int64]:
    """Return, for each point, how many points at the same step came before it."""
    steps = np.frombuffer(column.steps, dtype=np.int64)
    if len(steps) < 2 or (np.diff(steps) > 0).all() or steps[0] == steps[-1] == NO_STEP:
        return np.zeros(len(steps), dtype=np.int64)
    order = np.argsort(steps, kind="stable")
    is_new = np.ones(len(steps), dtype=bool)
    is_new[1:] = np.diff(steps[order]) != 0
    starts = np.flatnonzero(is_new)
    nth = np.empty(len(steps), dtype=np.int64)
    nth[order] = np.arange(len(steps)) - np.repeat(starts, np.diff(np.append(starts, len(steps))))
    return nth


def _in_order(
    session: npt.NDArray[np.int64], has_step: npt.NDArray[np.bool_], time_s: Floats
) -> npt.NDArray[np.int64]:
    """Return the place of each row: by session and step, and rows without a step by their time among them."""
    when = np.full(len(time_s), -np.inf)
    for number in np.unique(session):
        own = np.flatnonzero(session == number)
        stepped = own[has_step[own]]
        times = np.where(np.isnan(time_s[stepped]), -np.inf, time_s[stepped])
        when[stepped] = np.maximum.accumulate(times) if len(times) else times
        others = own[~has_step[own]]
        when[others] = np.where(np.isnan(time_s[others]), -np.inf, time_s[others])
    order = np.lexsort((np.arange(len(time_s)), when, session))
    place = np.empty(len(time_s), dtype=np.int64)
    place[order] = np.arange(len(time_s))
    return place
