"""Turns the columns and events of another tool's run into records of ours."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import orjson

from toolkit.telemetry.importers.as_records import (
    Row,
    completion_row,
    field_name,
    in_order,
    rows_of,
)
from toolkit.telemetry.importers.source import (
    MAX_METRICS,
    NO_STEP,
    Batch,
    Event,
    SourceInfo,
    named_columns,
)
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.records import (
    COMPLETION,
    HISTOGRAM,
    MAX_RECORD_BYTES,
    SAMPLE,
    START,
    TABLE,
    Record,
)

TEXT: Final = "text"
CONFIG: Final = "config"

_SAME_TIME_S: Final = 0.001
"""Points of one step within this time share a record, whose time is that of the first."""
_ROOM: Final = MAX_RECORD_BYTES - 4_096
_MAX_BINS: Final = 999

KeepFile = Callable[[Event], "dict[str, Any] | None"]
"""Keeps the file of an event; returns its `path` relative to the run folder and what else is known, or None."""


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

    def records(self, batches: Iterable[Batch]) -> Iterator[Record]:
        """Yield the records of `batches`; a run without any has a start record."""
        for batch in batches:
            yield from self._records_of(batch)
        if not self._started:
            yield self._start(0, -math.inf)

    def _records_of(self, batch: Batch) -> Iterator[Record]:
        """Yield the records of `batch`, sessions in order and each by time, or by step where times are missing."""
        named = []
        for metric, column in named_columns(self._info, batch):
            name = field_name(metric)
            if name != metric:
                self.renamed[metric] = name
            named.append((name, column))
        found = [part for row in rows_of(named, apart_s=_SAME_TIME_S) for part in _parts(row)]
        found += (row for event in batch.events if (row := self._row_of(event)) is not None)
        return self._with_starts(in_order(found))

    def _row_of(self, event: Event) -> Row | None:
        if event.step == NO_STEP and not math.isfinite(event.time):
            about = repr((event.blob, event.payload)).encode("utf-8", "backslashreplace")
            if not self._is_new(f"{event.kind}/{encodable(event.name)}", about):
                return None
        if event.kind == COMPLETION:
            row = completion_row(event)
            return replace(row, fields=dict(self._masker.mask(encodable(row.fields))))
        fields = self._fields_of(event)
        if fields is None:
            return None
        kind = {"image": SAMPLE, "table": TABLE, "histogram": HISTOGRAM}.get(event.kind, TEXT)
        return Row(kind, event.session, event.step, event.time, dict(self._masker.mask(fields)))

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

    def _with_starts(self, rows: Iterable[Row]) -> Iterator[Record]:
        for row in rows:
            if row.session not in self._started:
                yield self._start(row.session, row.time)
            yield row.record()
        if self._started and (config := self._new_config()):
            # The tool wrote it later than its first points.
            yield {"event": CONFIG, "session": max(self._started) + 1, CONFIG: config}

    def _start(self, session: int, time: float) -> Record:
        self._started.add(session)
        info = self._info
        record = Row(START, session, NO_STEP, time).record()
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


def _parts(row: Row) -> list[Row]:
    """Return rows that each fit in a record."""
    if sum(map(_size_of, row.fields)) <= _ROOM:
        return [row]
    parts: list[Row] = []
    room = 0
    for name, value in row.fields.items():
        size = _size_of(name)
        if size > room:
            parts.append(replace(row, fields={}))
            room = _ROOM
        parts[-1].fields[name] = value
        room -= size
    return parts


@lru_cache(maxsize=MAX_METRICS)
def _size_of(name: str) -> int:
    # Twice: the name of a number that is not finite is also listed.
    return 2 * len(orjson.dumps(name)) + 50
