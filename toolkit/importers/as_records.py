"""The points of a run as records of ours, one for each step and kind, as detectors take them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from toolkit.importers.source import NO_STEP, Batch, RunSource, SourceInfo, named_columns, read_all
from toolkit.runfolder.codec import name_of_non_finite
from toolkit.runfolder.records import NON_FINITE, Record

_Key = tuple[int, str, int]


def records_of(source: RunSource) -> Iterator[list[Record]]:
    """Yield the records of each batch, in order of sessions and, within one, of the file."""
    for batch in read_all(source):
        yield records_in(source.info, batch)


def records_in(info: SourceInfo, batch: Batch) -> list[Record]:
    """Return the records of one batch; a value that is not finite is also named in `non_finite`."""
    columns = named_columns(info, batch)
    found: list[Record] = []
    open_records: dict[_Key, Record] = {}
    # The longest series first: its order is the order of the run.
    for name, column in sorted(columns, key=lambda pair: (pair[1].session, -len(pair[1]))):
        for step, moment, value in zip(column.steps, column.times, column.values, strict=True):
            key = (column.session, column.kind, step)
            record = open_records.get(key)
            if record is None or name in record:
                # The same step again is another record: the run went back.
                record = open_records[key] = {"event": column.kind, "session": column.session}
                if step != NO_STEP:
                    record["global_step"] = step
                if not math.isnan(moment):
                    record["time"] = moment
                found.append(record)
            record[name] = value
            if not math.isfinite(value):
                record.setdefault(NON_FINITE, {})[name] = name_of_non_finite(value)
    found.sort(key=_place)
    return found


def _place(record: Record) -> tuple[int, float, float]:
    """Sort by session, then by time where there is one, else by step."""
    step = float(record.get("global_step", -math.inf))
    return record["session"], record.get("time", step), step
