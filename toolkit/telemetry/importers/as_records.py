"""The points of a run as records of ours, one for each step and kind, as detectors take them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from toolkit.telemetry.importers.source import (
    NO_STEP,
    Batch,
    Event,
    RunSource,
    SourceInfo,
    named_columns,
    read_all,
)
from toolkit.telemetry.runfolder.codec import name_of_non_finite
from toolkit.telemetry.runfolder.records import COMPLETION, NON_FINITE, RESERVED, Record

_Key = tuple[int, str, int]


def records_of(source: RunSource) -> Iterator[list[Record]]:
    """Yield the records of each batch, in order of sessions and, within one, of the file."""
    for batch in read_all(source):
        yield records_in(source.info, batch)


def completions_of(source: RunSource) -> Iterator[Record]:
    """Yield what the model of a run answered, as records."""
    for batch in read_all(source):
        yield from (completion_record(event) for event in batch.events if event.kind == COMPLETION)


def completion_record(event: Event) -> Record:
    """Return such an event as a record."""
    record: Record = {"event": COMPLETION, "session": event.session + 1}
    for given, value in (event.payload or {}).items():
        name = f"x_{given}" if given in RESERVED else given
        record[name] = value
        if type(value) is float and not math.isfinite(value):
            record[name] = None
            record.setdefault(NON_FINITE, {})[name] = name_of_non_finite(value)
    return {**record, "global_step": event.step} if event.step != NO_STEP else record


def records_in(info: SourceInfo, batch: Batch) -> list[Record]:
    """Return the records of one batch; a value that is not finite is also named in `non_finite`."""
    columns = named_columns(info, batch)
    found: list[Record] = []
    open_records: dict[_Key, list[Record]] = {}
    # The longest series first: its order is the order of the run.
    for name, column in sorted(columns, key=lambda pair: (pair[1].session, -len(pair[1]))):
        for step, timestamp, value in zip(column.steps, column.times, column.values, strict=True):
            key = (column.session, column.kind, step)
            of_step = open_records.setdefault(key, [])
            record = _with_room(of_step, name, None if math.isnan(timestamp) else timestamp)
            if record is None:
                # The same step again is another record: the run went back.
                record = {"event": column.kind, "session": column.session}
                # Of what has no step only the newest takes more.
                of_step[:] = [*of_step, record] if step != NO_STEP else [record]
                if step != NO_STEP:
                    record["global_step"] = step
                if not math.isnan(timestamp):
                    record["time"] = timestamp
                found.append(record)
            record[name] = value
            if not math.isfinite(value):
                record.setdefault(NON_FINITE, {})[name] = name_of_non_finite(value)
    found.sort(key=_place)
    return found


def _with_room(of_step: list[Record], name: str, timestamp: float | None) -> Record | None:
    """Return the record of a step that takes a value: the first of its time, else the newest, if they have none yet."""
    for record in of_step:
        if name not in record and record.get("time") == timestamp:
            return record
    return of_step[-1] if of_step and name not in of_step[-1] else None


def _place(record: Record) -> tuple[int, float, float]:
    """Sort by session, then by time where there is one, else by step."""
    step = float(record.get("global_step", -math.inf))
    return record["session"], record.get("time", step), step
