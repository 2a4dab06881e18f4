"""Tables and histograms in the records of a run."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import Floats

MAX_ROWS: Final = 5_000
_MAX_COLUMNS: Final = 50
_MAX_CELL: Final = 1_000
_MAX_BINS: Final = 4_096
_MAX_STEPS: Final = 200
_BINS: Final = 48


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table, with columns of numbers as numbers."""

    columns: Mapping[str, Sequence[object]]
    total: int
    """How many rows there are; more than MAX_ROWS are not shown."""


def table_of(content: Any) -> LoggedTable | None:
    """Return a table that is in the record itself, as a list of mappings; None if `content` is no such list."""
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return None
    rows = [row for row in content[:MAX_ROWS] if isinstance(row, dict)]
    names = list(dict.fromkeys(name for row in rows for name in row))[:_MAX_COLUMNS]
    return _table(names, [[row.get(name, "") for name in names] for row in rows], len(content))


def read_csv(data: bytes) -> LoggedTable | None:
    """Return the table in a CSV file; None if it has no columns."""
    reader = csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""))
    try:
        names = next(reader, [])[:_MAX_COLUMNS]
        rows = list(itertools.islice(reader, MAX_ROWS))
        total = len(rows) + sum(1 for _ in reader)
    except csv.Error:
        return None
    if not names:
        return None
    return _table(names, [[*row, *[""] * len(names)][: len(names)] for row in rows], total)


def matching_rows(table: LoggedTable, search: str) -> LoggedTable:
    """Return the rows with `search`, in lower case, in one of their cells."""
    kept = [
        number
        for number, row in enumerate(zip(*table.columns.values(), strict=True))
        if any(search in str(cell).lower() for cell in row)
    ]
    columns = {name: [cells[number] for number in kept] for name, cells in table.columns.items()}
    return LoggedTable(columns, len(kept))


def _table(names: Sequence[object], rows: Sequence[Sequence[object]], total: int) -> LoggedTable:
    columns: dict[str, Sequence[object]] = {}
    for number, name in enumerate(names):
        label = clean(str(name))[:100] or f"column {number + 1}"
        while label in columns:
            label += " "
        columns[label] = _cells([row[number] for row in rows])
    return LoggedTable(columns, total)


def _cells(values: Sequence[object]) -> Sequence[object]:
    """Return numbers if all cells that are not empty are numbers, so that they are sorted as such; else texts."""
    numbers: list[float | None] = []
    for value in values:
        if value is None or value == "":
            numbers.append(None)
            continue
        try:
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise ValueError
            numbers.append(float(value))
        except (ValueError, OverflowError):
            return [clean(str(value))[:_MAX_CELL] for value in values]
    return numbers if any(number is not None for number in numbers) else ["" for _ in values]


# ---------------------------------------------------------------- histograms


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramMap:
    """Histograms of one name over the steps, in bins that they share."""

    steps: Floats
    edges: Floats
    share: Floats
    """The share of the values of a step in each bin: a row a bin, a column a step."""
    logged: int
    """How many histograms there are; `steps` are some of them, evenly spread."""
    not_finite: int
    """How many of their values were NaN or infinite."""


def histogram_map(records: Iterable[Record]) -> HistogramMap | None:
    """Return the histograms in `records`, which come newest first; None if none of them can be read."""
    by_step: dict[float, tuple[Floats, Floats]] = {}
    logged = not_finite = 0
    for number, record in enumerate(records):
        found = _histogram(record)
        if found is None:
            continue
        logged += 1
        more = record.get("not_finite")
        not_finite += more if type(more) is int and more > 0 else 0
        step = record.get("global_step")
        # The newest one of a step counts.
        by_step.setdefault(float(step) if type(step) is int and abs(step) < 2**53 else float(-number), found)
    if not by_step:
        return None
    order = sorted(by_step)
    if len(order) > _MAX_STEPS:
        order = [order[round(at * (len(order) - 1) / (_MAX_STEPS - 1))] for at in range(_MAX_STEPS)]
    shown = [by_step[step] for step in order]
    spans = [_filled(edges, counts) for edges, counts in shown]
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    if not low < high:
        margin = abs(low) * 0.1 or 0.5
        low, high = low - margin, high + margin
    common = np.linspace(low, high, _BINS + 1)
    share = np.stack([_rebinned(edges, counts, common) for edges, counts in shown], axis=1)
    return HistogramMap(
        steps=np.array(order), edges=common, share=share, logged=logged, not_finite=not_finite
    )


def _histogram(record: Record) -> tuple[Floats, Floats] | None:
    """Return edges, one more than counts, and counts of our own records and those of other tools."""
    content = record.get("content")
    source: Mapping[str, Any] = content if isinstance(content, dict) else record
    counts, edges = source.get("values", source.get("counts")), source.get("bins", source.get("edges"))
    if not isinstance(counts, list) or not isinstance(edges, list) or not 0 < len(counts) <= _MAX_BINS:
        return None
    if not all(type(number) in (int, float) for number in (*counts, *edges)):
        return None
    try:
        heights, places = np.array(counts, np.float64), np.array(edges, np.float64)
    except OverflowError:
        return None
    if len(places) == len(heights):
        # TensorBoard has only the upper edge of each bin; the first may be the largest float.
        low = _number(source.get("min"), float(places[0]))
        places = np.concatenate(([min(low, float(places[0]))], places))
    if len(places) != len(heights) + 1 or not heights.sum() > 0 or (heights < 0).any():
        return None
    # The outermost edges of TensorBoard are beyond any value.
    places = np.clip(places, -1e300, min(_number(source.get("max"), 1e300), 1e300))
    if not np.isfinite(places).all() or not np.isfinite(heights).all() or (np.diff(places) < 0).any():
        return None
    return places, heights


def _filled(edges: Floats, counts: Floats) -> tuple[float, float]:
    """Return the range of the bins that are not empty."""
    filled = np.flatnonzero(counts)
    return float(edges[filled[0]]), float(edges[filled[-1] + 1])


def _rebinned(edges: Floats, counts: Floats, common: Floats) -> Floats:
    """Return the share of the values in each common bin; inside its own bin each value may be anywhere."""
    total = counts.sum()
    widths = np.diff(edges)
    share = np.zeros(len(common) - 1)
    # All values of a bin without width are at one place.
    for place, height in zip(edges[:-1][widths == 0], counts[widths == 0], strict=True):
        if height:
            share[np.clip(np.searchsorted(common, place, "right") - 1, 0, len(share) - 1)] += height
    spread = np.where(widths > 0, counts, 0.0)
    up_to = np.concatenate(([0.0], np.cumsum(spread)))
    shares: Floats = (share + np.diff(np.interp(common, edges, up_to))) / total
    return shares


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise
