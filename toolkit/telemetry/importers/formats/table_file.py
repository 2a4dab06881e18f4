"""Tables: CSV and JSONL files of any program, of Lightning and Ultralytics among others."""

from __future__ import annotations

import csv
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, zip_longest
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import FilesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found, name_of
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import (
    EPOCH,
    EVAL,
    MAX_NAME_CHARS,
    NO_STEP,
    NO_TIME,
    STEP,
    SYSTEM,
    Builder,
    Piece,
    RunSource,
    SourceInfo,
    as_number,
    as_step,
    run_info,
)
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES, NON_FINITE

FORMAT: Final = "table"
LONG: Final = ("run", "session", "event", "step", "time", "metric", "value")
"""The columns of a table that `telemetry export` wrote: one row a point."""
NO_HEADER: Final = "files without a header"

_EPOCHS: Final = ("epoch", "Epoch")
_STEPS: Final = (
    "step",
    "Step",
    "global_step",
    "trainer/global_step",
    "train/global_step",
    "iteration",
    "iter",
    "current_steps",
    # W&B counts its own calls here, so a step of the trainer is better.
    "_step",
    *_EPOCHS,
)
"""Names of the step in other programs, best first."""
_TIMES: Final = ("time", "timestamp", "_timestamp", "wall_time", "Wall time")
_OWN_FIELDS: Final = frozenset({NON_FINITE, *_TIMES})
_EVENT: Final = "event"
_KINDS: Final = frozenset({STEP, EVAL, EPOCH, SYSTEM})
_NO_METRICS: Final = ""
_RUNTIME: Final = "train_runtime"
"""In the last row of a Hugging Face log, whose other values are means over the whole training."""

_BOM: Final = b"\xef\xbb\xbf"
_DELIMITERS: Final = (",", ";", "\t")
_LARGEST_WHOLE: Final = 2**53
_LONGEST_ROW: Final = 64 * 1024
_MOST_LINES: Final = 500
"""In one quoted cell."""
_MOST_RUNS: Final = 1_000
_QUIET_S: Final = 10.0
_NO_ROW: Final = "rows without a number, or with more cells than the header"
_USUAL_NAMES: Final = frozenset({"metrics", "results", "log"})
_SETTINGS: Final = ("hparams.yaml", "args.yaml")
"""Where Lightning and Ultralytics keep the settings, next to a table with a usual name."""
_CSV_ENDINGS: Final = frozenset({".csv", ".tsv"})
_JSONL_ENDINGS: Final = frozenset({".jsonl", ".ndjson"})


class TableSource(FilesSource):
    """One table, read as it grows. Its first line says what the columns are, or each line is an object."""

    def __init__(self, info: SourceInfo, path: str, *, is_json: bool) -> None:
        folder, _, name = path.rpartition("/")
        is_usual = Path(name).stem in _USUAL_NAMES
        super().__init__(info, settings=[f"{folder}/{file}".lstrip("/") for file in _SETTINGS if is_usual])
        self._path = path
        self._is_json = is_json
        self._runs: dict[str, int] = {}

    def streams(self) -> Sequence[Stream]:
        """Return the one file."""
        return [Stream(self._path)]

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Add complete lines."""
        end = data.rfind(b"\n") + 1
        if end:
            self._add(data[: end - 1], state, out)
        return end

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Add a last line without its newline, if it is complete."""
        # The number at the end of a row that is being written may get more digits.
        is_growing = not self._is_json and time.time() - self._last_sign < _QUIET_S
        if is_growing or len(rest) > MAX_LINE_BYTES:
            return 0
        if self._is_json:
            is_complete = parsed(rest) is not None
        else:
            delimiter = str(state.get("delimiter")).encode()
            is_complete = rest.count(delimiter) == len(state.get("names") or ()) - 1
        if is_complete:
            self._add(rest, state, out)
        return len(rest) if is_complete else 0

    def _add(self, data: bytes, state: dict[str, Any], out: Builder) -> None:
        if self._is_json:
            objects = list(_objects_on(data.split(b"\n"), out))
            names = [*dict.fromkeys(name for row in objects for name in row)]
            if {"run", "session", "event", "metric", "value"} <= {*names}:
                for row in objects:
                    self._add_point({**row, "value": row.get(NON_FINITE, row.get("value"))}, state, out)
                return
            columns = {name: _Column([row.get(name) for row in objects]) for name in names}
            self._add_columns(columns, len(objects), state, out)
            return
        rows = list(_rows_on(data.decode("utf-8", "replace").split("\n"), state, out))
        names = state.get("names") or []
        if tuple(names) == LONG:
            for cells in rows:
                self._add_point(dict(zip(LONG, cells, strict=False)), state, out)
            return
        columns = _columns_of(rows, names)
        if all(len(column.rows) < len(rows) for column in columns.values()):
            # A row without a number is the header again, or a comment.
            kept = sorted({*()}.union(*(column.rows for column in columns.values())))
            if len(kept) < len(rows):
                out.pass_over(_NO_ROW, len(rows) - len(kept))
                rows = [rows[at] for at in kept]
                columns = _columns_of(rows, names)
        self._add_columns(columns, len(rows), state, out)

    def _add_columns(
        self, columns: dict[str, _Column], count: int, state: dict[str, Any], out: Builder
    ) -> None:
        """Add some rows, column by column."""
        if not count:
            return
        first = state.get("rows", 0)
        state["rows"] = first + count
        steps, axes = _first_of(state.get("axes") or self._axes_of(columns, count, state), columns, count)
        at = array("q", (NO_STEP if step is None else int(step) for step in steps))
        if not state["axes"]:
            at = array("q", range(first, first + count))
        clocks, _ = _first_of(_TIMES, columns, count)
        times = array("d", (NO_TIME if clock is None else clock for clock in clocks))
        kinds = _kinds_of(columns, count)
        is_mixed = len({*kinds}) > 1
        for name, column in columns.items():
            if name in _OWN_FIELDS:
                continue
            if column.texts:
                out.not_number(name, column.texts)
            is_axis = name in axes and name not in _EPOCHS
            for kind in dict.fromkeys(kinds):
                if kind == _NO_METRICS:
                    continue
                rows, values = column.rows, column.values
                if is_axis or is_mixed:
                    keep = [kinds[row] == kind and not (is_axis and axes[row] == name) for row in rows]
                    rows, values = [*compress(rows, keep)], array("d", compress(values, keep))
                points = out.column(name, kind=kind) if rows else None
                if points is not None:
                    points.steps.extend(at if len(rows) == count else map(at.__getitem__, rows))
                    points.times.extend(times if len(rows) == count else map(times.__getitem__, rows))
                    points.values.extend(values)
                elif rows:
                    out.pass_over("points of metrics beyond the first 5,000", len(rows) - 1)

    def _axes_of(self, columns: Mapping[str, _Column], count: int, state: dict[str, Any]) -> list[str]:
        """Return the names of the columns that count the steps, as the first rows show them; none where rows do."""
        axes = [name for name in _STEPS if name in columns and columns[name].rows]
        if axes and axes[0] in _EPOCHS:
            epochs = columns[axes[0]].values
            if all(map(float.is_integer, epochs)) and 2 * len({*epochs}) >= count:
                self.info.note("it has no step numbers: its epochs count as steps")
            else:
                axes = []
        if not axes:
            self.info.note("it has no step numbers: rows count as steps, from 0")
        # What comes later may have another of these names.
        state["axes"] = axes and [*_STEPS]
        return axes

    def _add_point(self, row: dict[str, Any], state: dict[str, Any], out: Builder) -> None:
        """Add a row of `LONG`; the first run gives the table its name, and each is a piece."""
        step, timestamp, session, value = (
            _number(row.get(name)) for name in ("step", "time", "session", "value")
        )
        run, event = str(row.get("run"))[:MAX_NAME_CHARS], row.get("event")
        runs: list[str] = state.setdefault("runs", [*self._runs])
        if run not in self._runs and len(runs) < _MOST_RUNS and run not in runs:
            runs.append(run)
        for name in runs[len(self._runs) :]:
            if self._runs:
                self.info.pieces.append(Piece(f"{self._path}: {name}", f"{name}/"))
            else:
                self.info.name = name
            self._runs[name] = len(self._runs)
        if value is None or run not in self._runs:
            out.pass_over("rows without a number")
            return
        out.add(
            str(row.get("metric")),
            NO_STEP if step is None else step,
            NO_TIME if timestamp is None else timestamp,
            value,
            piece=self._runs[run],
            session=max(as_step(session), 0),
            kind=event if event in _KINDS else None,
        )


class _Column:
    """The numbers of one column, and which rows they are in."""

    def __init__(self, cells: Sequence[Any], number: Callable[[Any], float | None] = as_number) -> None:
        found = [(row, value) for row, cell in enumerate(cells) if (value := number(cell)) is not None]
        self.rows: Sequence[int] = [row for row, _ in found]
        self.values = array("d", [value for _, value in found])
        self.cells = cells

    @classmethod
    def of_texts(cls, cells: Sequence[str]) -> _Column:
        """Return the numbers in cells of CSV."""
        try:
            values = array("d", map(float, cells))
        except ValueError:
            return cls(cells, _number)
        column = cls(())
        column.rows, column.values, column.cells = range(len(cells)), values, cells
        return column

    @property
    def texts(self) -> int:
        """How many cells are filled, and not with a number."""
        if len(self.rows) == len(self.cells):
            return 0
        filled = [cell for cell in self.cells if cell is not None and cell != ""]
        return len(filled) - len(self.rows)


def _objects_on(lines: Iterable[bytes], out: Builder) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            found = parsed(line.removeprefix(_BOM)) if len(line) <= MAX_LINE_BYTES else None
            if found is not None:
                yield found
            else:
                is_long = len(line) > MAX_LINE_BYTES
                out.pass_over("lines that are too long" if is_long else "lines that are no JSON object")


def _rows_on(lines: Iterable[str], state: dict[str, Any], out: Builder) -> Iterator[list[str]]:
    """Yield the cells of each row; `state` has the header, and a row that is not complete yet."""
    delimiter, names = str(state.get("delimiter", "")), state.get("names")
    for line in lines:
        # An empty line may be part of a quoted cell.
        if not line.strip() and not state.get("open"):
            continue
        if len(line) > MAX_LINE_BYTES:
            out.pass_over("lines that are too long")
            continue
        words = line.rstrip("\r")
        if names is None:
            names, delimiter = _header_of(words)
            state["names"], state["delimiter"] = names, delimiter
            if not names:
                out.pass_over(NO_HEADER)
            continue
        if not names:
            out.pass_over("rows without a header")
            continue
        if '"' not in words and not state.get("open"):
            cells = words.split(delimiter)
        else:
            # A quoted cell may hold line ends.
            words = f"{state.pop('open', '')}{words}"
            if words.count('"') % 2:
                if len(words) < _LONGEST_ROW and words.count("\n") < _MOST_LINES:
                    state["open"] = f"{words}\n"
                else:
                    out.pass_over("rows with a quote that is never closed")
                continue
            try:
                cells = next(csv.reader([words], delimiter=delimiter), [])
            except csv.Error:
                out.pass_over("rows that are no CSV")
                continue
        if len(cells) > len(names) and any(cells[len(names) :]):
            out.pass_over(_NO_ROW)
        else:
            yield cells


def _columns_of(rows: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, _Column]:
    """Return the columns by name, of two with the same name the first; a row may have fewer cells than others."""
    found: dict[str, _Column] = {}
    for name, cells in zip(names, zip_longest(*rows, fillvalue=""), strict=False):
        if name and name not in found:
            found[name] = _Column.of_texts(cells)
    return found


def _first_of(
    names: Sequence[str], columns: Mapping[str, _Column], count: int
) -> tuple[list[float | None], list[str]]:
    """Return for each row the number in the first of these columns that has one there, and the name of that."""
    values: list[float | None] = [None] * count
    owners = [""] * count
    for name in names:
        column = columns.get(name)
        for row, value in zip(column.rows, column.values, strict=True) if column is not None else ():
            if not owners[row] and abs(value) < _LARGEST_WHOLE:
                values[row], owners[row] = value, name
    return values, owners


def _kinds_of(columns: Mapping[str, _Column], count: int) -> list[str | None]:
    """Return the kind of each row where its own fields say it; else its metrics' names do."""
    kinds: list[str | None] = [None] * count
    if _EVENT in columns:
        # In `metrics.csv` of ours, the rows of other events have fields that are no metrics.
        other = _NO_METRICS if columns.keys() >= {"seq", "session", "elapsed"} else None
        kinds = [cell if cell in _KINDS else other for cell in columns[_EVENT].cells]
    for row in columns[_RUNTIME].rows if _RUNTIME in columns else ():
        kinds[row] = EPOCH
    return kinds


def _header_of(words: str) -> tuple[list[str], str]:
    """Return the names of the columns and what is between them; no names if one of them is a number."""
    words = words.removeprefix("\ufeff")
    delimiter = max(_DELIMITERS, key=words.count)
    try:
        names = [cell.strip() for cell in next(csv.reader([words.lstrip("# ")], delimiter=delimiter), [])]
    except csv.Error:
        names = []
    return ([] if any(_number(name) is not None for name in names) else names), delimiter


def _number(cell: Any) -> float | None:
    """Return the number in a cell of CSV, or of JSON."""
    try:
        return float(cell) if type(cell) is str else as_number(cell)
    except ValueError:
        return None


# ---------------------------------------------------------------- detection


def sources_in(folder: Folder) -> Found:
    """Return a run for each table in a folder that has a column of steps or epochs."""
    found: list[RunSource] = []
    for name in sorted(folder.files)[:1000]:
        ending = Path(name).suffix.lower()
        if ending in _CSV_ENDINGS or ending in _JSONL_ENDINGS:
            is_json = ending in _JSONL_ENDINGS
            source = _table(folder.root, folder.below(name), folder.head(name, 64 * 1024), is_json)
            if source is not None:
                found.append(source)
    return Found(found)


def source_of_file(path: Path, head: bytes) -> TableSource | None:
    """Return the run of one table that was named, also one without steps."""
    is_json = path.suffix.lower() in _JSONL_ENDINGS or head.removeprefix(_BOM).lstrip()[:1] == b"{"
    if not is_json and path.suffix.lower() not in _CSV_ENDINGS:
        return None
    return _table(path.parent, path.name, head, is_json, is_named=True)


def _table(
    root: Path, relative: str, head: bytes, is_json: bool, *, is_named: bool = False
) -> TableSource | None:
    first = next((line for line in head.removeprefix(_BOM).split(b"\n") if line.strip()), None)
    if first is None:
        return None
    if is_json:
        record = parsed(first)
        if record is None:
            return None
        names = {name for name in _STEPS if as_number(record.get(name)) is not None}
    else:
        names = {*_header_of(first.decode("utf-8", "replace").rstrip("\r"))[0]}
    if not is_named and names.isdisjoint(_STEPS):
        return None
    return _source(root, relative, is_json=is_json)


def _source(root: Path, relative: str, *, is_json: bool) -> TableSource:
    path = Path(relative)
    name = name_of((root / relative).parent) if path.stem in _USUAL_NAMES else path.stem
    info = run_info(FORMAT, os.path.realpath(root / relative), name, root, [relative])
    return TableSource(info, relative, is_json=is_json)
