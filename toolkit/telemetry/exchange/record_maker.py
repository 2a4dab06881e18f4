"""Turns the columns and events of another tool's run into records of ours."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import orjson

from toolkit.telemetry.importers.as_records import completion_record
from toolkit.telemetry.importers.source import NO_STEP, Batch, Event, SourceInfo, named_columns
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.records import (
    COMPLETION,
    HISTOGRAM,
    LOSS_JUMP,
    MAX_RECORD_BYTES,
    NAN_INF_DETECTED,
    RESERVED,
    SAMPLE,
    START,
    TABLE,
    Record,
)

TEXT: Final = "text"
CONFIG: Final = "config"

_SAME_TIME_S: Final = 0.001
"""Points of one step within this time share a record, whose time is that of the first."""
_LOOKED_BACK: Final = 8
_ROOM: Final = MAX_RECORD_BYTES - 4_096
_TAKEN_NAMES: Final = frozenset({*RESERVED, "global_step", NAN_INF_DETECTED, LOSS_JUMP})
_MAX_BINS: Final = 999

KeepFile = Callable[[Event], "dict[str, Any] | None"]
"""Keeps the file of an event; returns its `path` relative to the run folder and what else is known, or None."""


class _Row:
    """One record in the making."""

    __slots__ = ("fields", "room", "time")

    def __init__(self, time: float) -> None:
        self.time = time
        self.fields: dict[str, float] = {}
        self.room = _ROOM


class RecordMaker:
    """Makes records of batches; they have no `seq` yet."""

    def __init__(self, info: SourceInfo, keep_file: KeepFile) -> None:
        self._info = info
        self._keep_file = keep_file
        self._started: set[int] = set()
        """Sessions that have their start record."""
        self._known: dict[str, str] = {}
        """Checksums of the configuration that was written, and of events that are at no step and no time."""
        self.not_kept: Counter[str] = Counter()
        """What has no place in a run folder, by kind."""
        self.renamed: dict[str, str] = {}
        """Fields of metrics whose own name has a meaning of ours."""
        self._masker = Masker()
        self._sizes: dict[str, int] = {}

    def records(self, batches: Iterable[Batch]) -> Iterator[Record]:
        """Yield the records of `batches`; a run without any has a start record."""
        for batch in batches:
            yield from self._records_of(batch)
        if not self._started:
            yield self._start(1, math.nan)

    def _records_of(self, batch: Batch) -> Iterator[Record]:
        """Yield the records of `batch`, sessions in order and each by time, or by step where times are missing."""
        found = list(self._of_columns(batch))
        found += (record for event in batch.events if (record := self._of_event(event)) is not None)
        times: dict[int, dict[int, float]] = {}
        for record in found:
            if "time" in record:
                times.setdefault(record["session"], {}).setdefault(
                    record.get("global_step", NO_STEP), record["time"]
                )
        found.sort(key=lambda record: _order(record, times.get(record["session"], {})))
        return self._with_starts(found)

    def _of_columns(self, batch: Batch) -> Iterator[Record]:
        rows: dict[tuple[Any, ...], list[_Row]] = {}
        for metric, column in named_columns(self._info, batch):
            name = field_name(metric)
            if name != metric:
                self.renamed[metric] = name
            size = self._size_of(name)
            for step, time, value in zip(column.steps, column.times, column.values, strict=True):
                at = (column.session, column.kind, step, time if step == NO_STEP else None)
                same = rows.get(at)
                if same is None:
                    same = rows[at] = []
                row = _fitting(same, time, name, size)
                row.fields[name] = value
                row.room -= size
        for (session, kind, step, _), same in rows.items():
            for row in same:
                yield _record(kind, row.time, session, step, row.fields)

    def _of_event(self, event: Event) -> Record | None:
        if event.step == NO_STEP and not math.isfinite(event.time):
            about = repr((event.blob, event.payload)).encode("utf-8", "backslashreplace")
            if not self._is_new(f"{event.kind}/{encodable(event.name)}", about):
                return None
        if event.kind == COMPLETION:
            return dict(self._masker.mask(encodable(completion_record(event))))
        fields = self._fields_of(event)
        if fields is None:
            return None
        kind = {"image": SAMPLE, "table": TABLE, "histogram": HISTOGRAM}.get(event.kind, TEXT)
        return _record(kind, event.time, event.session, event.step, self._masker.mask(fields))

    def _fields_of(self, event: Event) -> dict[str, Any] | None:
        payload = event.payload
        name = encodable(event.name)
        if event.kind == TEXT and type(payload) is str:
            return {"name": name, "text": encodable(payload)}
        if event.kind == "histogram" and type(payload) is dict:
            counts, edges = payload.get("counts"), payload.get("edges")
            if type(counts) is list and type(edges) is list and 0 < len(counts) <= _MAX_BINS:
                # TensorBoard has only the upper edge of each bin.
                first = [payload.get("min", edges[0])] if edges and len(edges) == len(counts) else []
                return {"name": name, "values": plain(counts), "bins": plain([*first, *edges])}
        if event.kind == "image":
            kept = self._keep_file(event)
            if kept is not None:
                caption = payload.get("caption") if type(payload) is dict else None
                shown = encodable(caption) if type(caption) is str else None
                return {**kept, "prompt": shown or name, "name": name, "caption": shown}
        if event.kind == "table":
            kept = self._keep_file(event)
            if kept is not None:
                return {"name": name, **kept}
        self.not_kept[f"{event.kind}s without a place in a run folder"] += 1
        return None

    def _with_starts(self, records: list[Record]) -> Iterator[Record]:
        for record in records:
            session = record["session"]
            if session not in self._started:
                yield self._start(session, record.get("time", math.nan))
            yield record
        if self._started and (config := self._new_config()):
            # The tool wrote it later than its first points.
            yield {"event": CONFIG, "session": max(self._started), CONFIG: config}

    def _start(self, session: int, time: float) -> Record:
        self._started.add(session)
        info = self._info
        record = _record(START, time, session - 1, NO_STEP, {})
        record["run_name"] = self._masker.mask_name(encodable(info.name))
        record["imported_from"] = {"format": info.format, "source_id": info.source_id}
        if config := self._new_config():
            record[CONFIG] = config
        if info.axes:
            record["axes"] = encodable(dict(info.axes))
        return record

    def _new_config(self) -> dict[str, Any]:
        """Return what was not written yet of the configuration, without secrets."""
        new = {
            key: value
            for key, value in encodable(plain(self._info.config)).items()
            if self._is_new(f"config/{key}", orjson.dumps(value))
        }
        masked = self._masker.mask(new) if new else {}
        return masked if isinstance(masked, dict) else {}

    def _is_new(self, key: str, data: bytes) -> bool:
        checksum = hashlib.sha256(data).hexdigest()[:16]
        is_new = self._known.get(key) != checksum
        self._known[key] = checksum
        return is_new

    def _size_of(self, name: str) -> int:
        size = self._sizes.get(name)
        if size is None:
            # Twice: the name of a number that is not finite is also listed.
            size = self._sizes[name] = 2 * len(orjson.dumps(name)) + 50
        return size


def field_name(metric: str) -> str:
    """Return the field of a metric: its own name, unless that has a meaning of ours."""
    name = str(encodable(metric))
    return f"x_{name}" if name in _TAKEN_NAMES else name


def _fitting(rows: list[_Row], time: float, name: str, size: int) -> _Row:
    for row in rows[-_LOOKED_BACK:]:
        is_same = abs(row.time - time) <= _SAME_TIME_S or (row.time != row.time and time != time)
        if is_same and name not in row.fields and row.room >= size:
            return row
    row = _Row(time)
    rows.append(row)
    return row


def _record(kind: str, time: float, session: int, step: int, fields: dict[str, Any]) -> Record:
    record: Record = {"event": kind}
    if math.isfinite(time):
        record["time"] = time
    record["session"] = max(session, 0) + 1
    if step != NO_STEP:
        record["global_step"] = step
    record.update(fields)
    return record


def _order(record: Record, times: dict[int, float]) -> tuple[int, float, int]:
    step = record.get("global_step", NO_STEP)
    time = record.get("time")
    if time is None:
        time = times.get(step, math.inf if times else 0.0)
    return record["session"], time, step
