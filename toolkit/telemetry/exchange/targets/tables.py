"""A run as one table: CSV or Parquet, long or wide."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.exchange.exported_run import ExportedRun, new_file
from toolkit.telemetry.importers.formats.table_file import LONG
from toolkit.telemetry.runfolder.table import columns

WIDE: Final = LONG[:5]
PARQUET_MARK: Final = b"ai-toolkit-telemetry"
LOSES: Final = (
    "a table has the numbers of series alone: settings, tags, texts, images, the epoch of a record of ours and the end "
    "of a run are not in it"
)

_ROWS: Final = 65_536


def write_csv(runs: Sequence[ExportedRun], out: Path, *, wide: bool) -> int:
    """Write `nan`, `inf` and `-inf` as pandas reads them; a missing cell is empty. Returns the number of points."""
    table = _Table(runs, wide=wide)
    with new_file(out) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as file:
        columns.write_csv(file, [table.header()])
        columns.write_csv(file, table.rows(columns.no_formula), are_marked=True)
    return table.points


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
    table = _Table(runs, wide=wide)
    kinds = {"run": pa.string(), "session": pa.int64(), "event": pa.string(), "step": pa.int64()}
    kinds |= {} if wide else {"metric": pa.string()}
    fields = [(name, kinds.get(name, pa.float64())) for name in table.header()]
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
    return head.startswith(",".join(WIDE).encode())


class _Table:
    """The rows of a table, one a point or one a record, and the number of points in those that were taken."""

    def __init__(self, runs: Sequence[ExportedRun], *, wide: bool) -> None:
        self._runs = runs
        self._wide = wide
        self._names: list[str] | None = None
        self._marks: dict[str, str] = {}
        self.points = 0

    def _marked(self, run: ExportedRun, name: str, mark: Callable[[str], str]) -> str:
        found = self._marks.get(name)
        if found is None:
            found = self._marks[name] = mark(name)
            if found != name:
                run.notes.append(f"the metric {name!r} is called {found!r}")
        return found

    def header(self) -> Sequence[str]:
        if not self._wide:
            return LONG
        if self._names is None:
            rows = chain.from_iterable(run.rows() for run in self._runs)
            self._names = [*dict.fromkeys(name for *_, values in rows for name in values)]
        return [*WIDE, *self._names]

    def rows(self, mark: Callable[[str], str] = str) -> Iterator[Sequence[Any]]:
        """Yield the cells of each row; `mark` is called for each text."""
        names = self.header()[len(WIDE) :]
        for run in self._runs:
            label = mark(run.label)
            if run.source is not None and not self._wide:
                for session, event, name, steps, times, values in run.series(run.source):
                    self.points += len(values)
                    always = (repeat(label), repeat(session), repeat(event))
                    yield from zip(
                        *always, steps, times, repeat(self._marked(run, name, mark)), values, strict=False
                    )
                continue
            for *head, found in run.rows():
                self.points += len(found)
                if self._wide:
                    yield [label, *head, *map(found.get, names)]
                else:
                    for name, value in found.items():
                        yield (label, *head, self._marked(run, name, mark), value)
