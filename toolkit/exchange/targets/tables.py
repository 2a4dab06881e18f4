"""A run as one table: CSV, JSON lines or Parquet, long or wide."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import orjson

from toolkit.exchange.exported_run import ExportedRun
from toolkit.runfolder import columns
from toolkit.runfolder.codec import name_of_non_finite
from toolkit.runfolder.metrics import metrics_of, position_of

LONG: Final = ("run", "session", "event", "step", "time", "metric", "value")
WIDE: Final = LONG[:5]
PARQUET_MARK: Final = b"ai-toolkit-telemetry"

_ROWS: Final = 65_536
Row = tuple[Any, ...]


def write_csv(runs: Sequence[ExportedRun], out: Path, *, wide: bool) -> int:
    """Write `nan`, `inf` and `-inf` as pandas reads them; a missing cell is empty. Returns the number of points."""
    names = _names(runs) if wide else []
    points = 0
    with _created(out) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as file:
        columns.write_csv(file, [[*WIDE, *names] if wide else LONG])
        for head, values in _rows(runs):
            points += len(values)
            columns.write_csv(
                file,
                [[*head, *map(values.get, names)]]
                if wide
                else ([*head, name, value] for name, value in values.items()),
            )
    return points


def write_jsonl(runs: Sequence[ExportedRun], out: Path, *, wide: bool) -> int:
    """Write strict JSON: a value that is not finite is null, and its word is in `non_finite`."""
    points = 0
    with _created(out) as file:
        for head, values in _rows(runs):
            start = {name: cell for name, cell in zip(WIDE, head, strict=True) if cell is not None}
            points += len(values)
            odd = {
                name: name_of_non_finite(value) for name, value in values.items() if not math.isfinite(value)
            }
            if wide:
                row = {**start, **{name: None if name in odd else value for name, value in values.items()}}
                file.write(_line({**row, "non_finite": odd} if odd else row))
            else:
                for name, value in values.items():
                    row = {**start, "metric": name, "value": None if name in odd else value}
                    file.write(_line({**row, "non_finite": odd[name]} if name in odd else row))
    return points


def write_parquet(runs: Sequence[ExportedRun], out: Path, *, wide: bool) -> int:
    """Write columns; NaN and infinity are kept, a missing value is null.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("parquet needs pyarrow: pip install pyarrow", name="pyarrow") from error
    names = _names(runs) if wide else []
    kinds = [pa.string(), pa.int64(), pa.string(), pa.int64(), pa.float64()]
    fields = [*zip(WIDE, kinds, strict=True)]
    fields += (
        [(name, pa.float64()) for name in names]
        if wide
        else [("metric", pa.string()), ("value", pa.float64())]
    )
    schema = pa.schema(fields, metadata={b"writer": PARQUET_MARK})
    points = 0
    with _created(out) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in _parts(_parquet_rows(runs, names, wide=wide)):
            points += sum(row.pop() for row in part)
            columns = zip(*part, strict=True)
            arrays = [pa.array(list(column), kind) for column, (_, kind) in zip(columns, fields, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return points


def _parquet_rows(runs: Sequence[ExportedRun], names: list[str], *, wide: bool) -> Iterator[list[Any]]:
    """Yield rows whose last cell is the number of points in them."""
    for head, values in _rows(runs):
        if wide:
            yield [*head, *map(values.get, names), len(values)]
        else:
            for name, value in values.items():
                yield [*head, name, value, 1]


def is_ours(path: Path) -> bool:
    """Return whether `path` is a table that was exported before."""
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(os.fstat(file.fileno()).st_size - 65_536, 0))
        tail = file.read()
    first = head.partition(b"\n")[0]
    if first.startswith(",".join(WIDE).encode()):
        return True
    if head.startswith(b"PAR1"):
        return PARQUET_MARK in tail
    try:
        row = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and "run" in row and "session" in row and "event" in row


def _rows(runs: Iterable[ExportedRun]) -> Iterator[tuple[Row, dict[str, float]]]:
    for run in runs:
        for record in run.records():
            values = dict(metrics_of(record))
            if values:
                at = position_of(record)
                step = int(at.step) if math.isfinite(at.step) else None
                moment = at.time if math.isfinite(at.time) else None
                yield (run.name, at.session, record["event"], step, moment), values


def _names(runs: Iterable[ExportedRun]) -> list[str]:
    found: dict[str, None] = {}
    for _, values in _rows(runs):
        found.update(dict.fromkeys(values))
    return list(found)


def _parts(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    part: list[list[Any]] = []
    for row in rows:
        part.append(row)
        if len(part) >= _ROWS:
            yield part
            part = []
    if part:
        yield part


def _line(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _created(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
