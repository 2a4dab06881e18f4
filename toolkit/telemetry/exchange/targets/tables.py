"""A run as one table, with a row for each point: CSV or Parquet."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.exchange.exported_run import ExportedRun, new_file
from toolkit.telemetry.importers.formats.table_file import LONG
from toolkit.telemetry.runfolder.table import columns

PARQUET_MARK: Final = b"ai-toolkit-telemetry"
LOSES: Final = (
    "a table has the numbers of series alone: settings, tags, texts, images, the epoch of a record of ours and the end "
    "of a run are not in it"
)

_ROWS: Final = 65_536


def write_csv(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write `nan`, `inf` and `-inf` as pandas reads them; a missing cell is empty. Returns the number of points."""
    table = _Table(runs, columns.no_formula)
    with new_file(out) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as file:
        columns.write_csv(file, [LONG])
        columns.write_csv(file, table.rows(), are_marked=True)
    return table.points


def write_parquet(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write columns; NaN and infinity are kept, a missing value is null.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("parquet needs pyarrow: pip install pyarrow", name="pyarrow") from error
    table = _Table(runs)
    texts, wholes = dict.fromkeys(("run", "event", "metric"), pa.string()), ("session", "step")
    kinds = {**texts, **dict.fromkeys(wholes, pa.int64())}
    fields = [(name, kinds.get(name, pa.float64())) for name in LONG]
    schema = pa.schema(fields, metadata={b"writer": PARQUET_MARK})
    rows = table.rows()
    with new_file(out) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while part := list(islice(rows, _ROWS)):
            cells = zip(zip(*part, strict=True), fields, strict=True)
            arrays = [pa.array(column, kind) for column, (_, kind) in cells]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return table.points


def is_ours(path: Path) -> bool:
    """Return whether `path` is a table that was exported before."""
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(os.fstat(file.fileno()).st_size - 65_536, 0))
        tail = file.read()
    if head.startswith(b"PAR1"):
        return PARQUET_MARK in tail
    return head.startswith(",".join(LONG).encode())


class _Table:
    """The rows of a table, one a point, and the number of those that were taken."""

    def __init__(self, runs: Sequence[ExportedRun], mark: Callable[[str], str] = str) -> None:
        self._runs = runs
        self._mark = mark
        """Called for each text."""
        self._marks: dict[str, str] = {}
        self.points = 0

    def _marked(self, run: ExportedRun, name: str) -> str:
        found = self._marks.get(name)
        if found is None:
            found = self._marks[name] = self._mark(name)
            if found != name:
                run.notes.append(f"the metric {name!r} is called {found!r}")
        return found

    def rows(self) -> Iterator[Sequence[Any]]:
        """Yield the cells of each row."""
        for run in self._runs:
            label = self._mark(run.label)
            if run.source is not None:
                for session, event, name, steps, times, values in run.series(run.source):
                    self.points += len(values)
                    always = (repeat(label), repeat(session), repeat(event))
                    yield from zip(
                        *always, steps, times, repeat(self._marked(run, name)), values, strict=False
                    )
                continue
            for *head, found in run.rows():
                self.points += len(found)
                for name, value in found.items():
                    yield (label, *head, self._marked(run, name), value)
