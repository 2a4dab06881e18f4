"""Tables: CSV and JSONL files of any program, of Lightning and Ultralytics among others."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.importers.files import LinesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found, name_of
from toolkit.telemetry.importers.source import (
    EPOCH,
    EVAL,
    MAX_NAME_CHARS,
    NO_STEP,
    NO_TIME,
    STEP,
    SYSTEM,
    WORDS,
    Builder,
    Piece,
    RunSource,
    SourceInfo,
    as_number,
    as_step,
    ends_of,
    run_info,
)
from toolkit.telemetry.runfolder.codec import name_of_non_finite
from toolkit.telemetry.runfolder.reader import blocks_of, unended_line
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES, NON_FINITE, Record

_STEP: Final = "global_step"
_STEP_NAMES: Final = (
    _STEP,
    "trainer/global_step",
    "train/global_step",
    "step",
    "Step",
    "iteration",
    "iter",
    "current_steps",
    # W&B counts its own calls here, so a step of the trainer is better.
    "_step",
)
"""Names of the step in other programs, best first."""

_LOOK_AT: Final = 200
"""Records at the start of a file that show what counts its steps."""

_CHUNK: Final = 2_000

_NO_HEADER: Final = "files without a header"
_BOM: Final = b"\xef\xbb\xbf"
_DELIMITERS: Final = (",", ";", "\t")
_LONGEST_WHOLE: Final = 15
_LARGEST_WHOLE: Final = 2**53
_JSON_ENDINGS: Final = frozenset({".jsonl", ".ndjson", ".json"})


class NoRecordsError(ValueError):
    """A file without readable records; the message says why."""


class TableFile:
    """The records of one file, with `global_step` as ours have it.

    Each record's step is the column that most of the first ones count their steps with; without one it is the epoch,
    where that is a whole number that moves on, else the record's place in the file, from 0. Steps that begin again
    with each epoch are counted on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines = 0
        self.notes: list[str] = []
        self._unended = ""

    def chunks(self) -> Iterator[list[Record]]:
        """Yield the records in order, some thousand at a time; unreadable lines are counted.

        Raises:
            OSError: the file is missing, unreadable, or no regular file.
            NoRecordsError: it is a CSV file without a header.
        """
        rows = self._rows(is_json=self._is_json())
        first = list(itertools.islice(rows, _LOOK_AT))
        steps = _StepColumn(first)
        self.notes += steps.notes
        rows = itertools.chain(first, rows)
        while chunk := list(itertools.islice(rows, _CHUNK)):
            for record in chunk:
                steps.put(record)
            yield chunk
        if steps.has_counted_on:
            self.notes.append("its steps begin again with each epoch; they are counted on here")

    def _is_json(self) -> bool:
        for block in blocks_of(self.path):
            start = (block.data or unended_line(self.path, block)).removeprefix(_BOM).lstrip()
            if start:
                return start.startswith(b"{") or self.path.suffix.lower() in _JSON_ENDINGS
        return self.path.suffix.lower() in _JSON_ENDINGS

    def _rows(self, *, is_json: bool) -> Iterator[Record]:
        state: dict[str, Any] = {}
        block = None
        for block in blocks_of(self.path):
            self.bad_lines += block.long_line is not None
            # An empty line may be part of a quoted cell.
            for line in block.data[:-1].split(b"\n") if block.data else ():
                found = _record_on(line, state, is_json=is_json)
                if found == _NO_HEADER:
                    raise NoRecordsError(
                        f"{self.path.name} has no header row: its first line names no columns"
                    )
                if type(found) is dict:
                    yield found
                elif found is not None:
                    self.bad_lines += 1
        # Without its newline a line may still be complete; otherwise it is still being written, which is no fault.
        rest = unended_line(self.path, block) if block is not None else b""
        found = (
            _record_on(rest, state, is_json=is_json) if _is_complete(rest, state, is_json=is_json) else None
        )
        if type(found) is dict:
            yield found


def _record_on(line: bytes, state: dict[str, Any], *, is_json: bool) -> Record | str | None:
    """Return the record on a line, or the reason why there is none; None where nothing was expected.

    `state` has the header of a CSV file and a row that is not complete yet. Of a table with the columns of `LONG` the
    cells stay texts.
    """
    if not line.strip() and not state.get("open"):
        return None
    if len(line) > MAX_LINE_BYTES:
        return "lines that are too long"
    if is_json:
        record = _parse(line.removeprefix(_BOM))
        return "lines that are no JSON object" if record is None else record
    words = line.decode("utf-8", "replace")
    names: list[str] | None = state.get("names")
    if names is None:
        words = words.removeprefix("\ufeff")
        delimiter = max(_DELIMITERS, key=words.count)
        names = _names_in(words.rstrip("\r"), delimiter)
        state["names"], state["delimiter"] = names, delimiter
        return None if names else _NO_HEADER
    if not names:
        return "rows without a header"
    # A quoted cell may hold line ends.
    words = f"{state.pop('open', '')}{words}"
    if words.count('"') % 2:
        if len(words) < _LONGEST_ROW and words.count("\n") < _MOST_LINES:
            state["open"] = f"{words}\n"
            return None
        return "rows with a quote that is never closed"
    try:
        cells = next(csv.reader([words.rstrip("\r")], delimiter=str(state.get("delimiter", ","))), [])
    except csv.Error:
        return "rows that are no CSV"
    if tuple(names) == LONG and len(cells) == len(LONG):
        return dict(zip(LONG, cells, strict=True))
    return _record_of(cells, names) or "rows without a number, or with more cells than the header"


def _is_complete(rest: bytes, state: dict[str, Any], *, is_json: bool) -> bool:
    """Return whether a last line without its newline is an object, or has as many cells as there are columns."""
    if len(rest) > MAX_LINE_BYTES:
        return False
    if is_json:
        return _parse(rest) is not None
    return rest.count(str(state.get("delimiter")).encode()) == len(state.get("names") or ()) - 1


def _parse(line: bytes) -> Record | None:
    """Return the object in `line`, or None. Bare NaN and infinities are accepted."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if type(record) is dict:
            _make_plain(record)
    if type(record) is not dict:
        return None
    for value in record.values():
        if type(value) is str and value in WORDS:
            _make_plain(record)
            break
    return record


def _make_plain(record: Record) -> None:
    for name, value in record.items():
        if type(value) is str:
            record[name] = WORDS.get(value, value)
        elif type(value) is int and abs(value) > _LARGEST_WHOLE:
            # Python's integers have no end, and arithmetic with floats fails beyond theirs.
            is_beyond = value.bit_length() >= sys.float_info.max_exp
            record[name] = float(value) if not is_beyond else math.inf if value > 0 else -math.inf
    _name_non_finite(record)


def _name_non_finite(record: Record) -> None:
    found = {
        name: name_of_non_finite(value)
        for name, value in record.items()
        if type(value) is float and not math.isfinite(value)
    }
    if found and NON_FINITE not in record:
        record[NON_FINITE] = found


def _names_in(header: str, delimiter: str) -> list[str]:
    """Return the names of the columns; an empty list if they are numbers."""
    try:
        cells = next(csv.reader([header.lstrip("# ")], delimiter=delimiter), [])
    except csv.Error:
        return []
    names = [cell.strip() for cell in cells]
    return [] if any(not isinstance(_value_of(name), str) for name in names) else names


def _record_of(cells: Sequence[str], names: Sequence[str]) -> Record | None:
    """Return the row as a record; None if it has more cells than names, or no number."""
    if len(cells) > len(names) and any(cells[len(names) :]):
        return None
    record: Record = {}
    has_number = False
    is_odd = False
    for name, cell in zip(names, cells, strict=False):
        if not cell or not name:
            continue
        value = _value_of(cell)
        if not isinstance(value, str):
            has_number = True
            is_odd = is_odd or not math.isfinite(value)
        record.setdefault(name, value)
    if not has_number:
        return None
    if is_odd:
        _name_non_finite(record)
    return record


def _number(cell: Any) -> float | None:
    return as_number(_value_of(cell) if type(cell) is str else cell)


def _value_of(cell: str) -> float | str:
    if cell.isdecimal() and len(cell) <= _LONGEST_WHOLE:
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell


class _StepColumn:
    """Which field counts the steps of a file."""

    def __init__(self, first: Sequence[Record]) -> None:
        self.notes: list[str] = []
        self.has_counted_on = False
        self._name = _commonest(_STEP_NAMES, first)
        self._by_row = False
        self._row = -1
        self._before = -1
        self._offset = 0
        self._epoch = -math.inf
        if self._name is None and first:
            if _moves_on([record.get("epoch") for record in first]):
                self._name = "epoch"
                self.notes.append("it has no step numbers: its epochs count as steps")
            else:
                self._by_row = True
                self.notes.append("it has no step numbers: rows count as steps, from 0")

    def put(self, record: Record) -> None:
        """Set the `global_step` of `record`, if it has one."""
        self._row += 1
        if self._by_row:
            record[_STEP] = self._row
            return
        step: Any = record.get(self._name) if self._name is not None else None
        if not _is_number(step):
            step = next((record[name] for name in _STEP_NAMES if _is_number(record.get(name))), None)
            if step is None:
                record.pop(_STEP, None)
                return
        record[_STEP] = self._counted_on(int(step), record.get("epoch"))

    def _counted_on(self, step: int, epoch: Any) -> int:
        if _is_number(epoch) and epoch != self._epoch:
            # A run that goes back to a checkpoint goes back in its epochs too.
            if step + self._offset < self._before and self._epoch < epoch:
                self._offset = self._before + 1 - step
                self.has_counted_on = True
            self._epoch = epoch
        self._before = step + self._offset
        return self._before


def _commonest(names: Iterable[str], records: Sequence[Record]) -> str | None:
    counts = {name: sum(_is_number(record.get(name)) for record in records) for name in names}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def _moves_on(epochs: Sequence[Any]) -> bool:
    """Return whether these are integers with at most two records each."""
    if not all(_is_number(epoch) and epoch == int(epoch) for epoch in epochs):
        return False
    return 2 * len(set(epochs)) >= len(epochs)


def _is_number(value: Any) -> bool:
    return (type(value) is int or type(value) is float) and abs(value) < _LARGEST_WHOLE


# ---------------------------------------------------------------- as a source

FORMAT: Final = "table"
_EPOCHS: Final = ("epoch", "Epoch")
_STEPS: Final = ("step", "Step", *(name for name in _STEP_NAMES if name not in ("step", "Step")), *_EPOCHS)
_TIMES: Final = ("time", "timestamp", "_timestamp", "wall_time", "Wall time")
_OWN_FIELDS: Final = frozenset({NON_FINITE, *_TIMES})
_LONGEST_ROW: Final = 64 * 1024
_MOST_LINES: Final = 500
"""In one quoted cell."""
_MOST_RUNS: Final = 1_000
_QUIET_S: Final = 10.0
_USUAL_NAMES: Final = frozenset({"metrics", "results", "log"})
_SETTINGS: Final = ("hparams.yaml", "args.yaml")
"""Where Lightning and Ultralytics keep the settings, beside a table with a usual name."""
_CSV_ENDINGS: Final = frozenset({".csv", ".tsv"})
_JSONL_ENDINGS: Final = frozenset({".jsonl", ".ndjson"})


LONG: Final = ("run", "session", "event", "step", "time", "metric", "value")
"""The columns of a table that `telemetry export` wrote: one row a point."""


class TableSource(LinesSource):
    """One table, read as it grows. Its first line says what the columns are, or each line is an object."""

    window = 4 * 1024**2

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

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:
        """Parse complete lines: rows of plain cells all at once, others one by one."""
        start, end = 0, data.rfind(b"\n") + 1
        while not self._is_json and start < end and state.get("names") is None:
            header = data[start : data.index(b"\n", start)]
            self.line(stream, header, state, out)
            start += len(header) + 1
        if state.get("names") and start < end and self._take_rows(data[start:end], state, out):
            return end
        return start + super().parse(stream, data[start:], offset + start, state, out)

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add one row."""
        found = _record_on(line, state, is_json=self._is_json)
        if type(found) is str:
            out.pass_over(found)
        elif type(found) is dict:
            if type(found.get("metric")) is str and {"run", "session", "event", "value"} <= found.keys():
                self._add_point({**found, "value": found.get("non_finite", found["value"])}, state, out)
            else:
                self._add(found, state, out)

    def at_end(self, stream: Stream, rest: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:  # noqa: ARG002
        """Take a last line without its newline, if it is complete."""
        # The number at the end of a row that is being written may get more digits.
        is_growing = not self._is_json and time.time() - self._last_sign < _QUIET_S
        if is_growing or not _is_complete(rest, state, is_json=self._is_json):
            return 0
        self.line(stream, rest, state, out)
        return len(rest)

    def _add_point(self, row: dict[str, Any], state: dict[str, Any], out: Builder) -> None:
        """Add a row of `LONG`; the first run gives the table its name, and each is a piece."""
        step, moment, session, value = (
            _number(row.get(name)) for name in ("step", "time", "session", "value")
        )
        run, event = str(row["run"])[:MAX_NAME_CHARS], row["event"]
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
            str(row["metric"]),
            NO_STEP if step is None else step,
            NO_TIME if moment is None else moment,
            value,
            piece=self._runs[run],
            session=max(as_step(session), 0),
            kind=event if event in (STEP, EVAL, EPOCH, SYSTEM) else None,
        )

    def _take_rows(self, data: bytes, state: dict[str, Any], out: Builder) -> bool:
        """Add rows column by column; return False, with nothing added, if one of them needs a closer look."""
        names: list[str] = state["names"]
        delimiter = str(state.get("delimiter", ","))
        width = len(names)
        if tuple(names) == LONG:
            return False
        if b'"' in data or state.get("open") or width < 2 or len({*names, ""}) <= width:
            return False
        columns = _by_column(data, names, delimiter)
        if columns is None:
            return False
        axis = next((name for name in _STEPS if name in columns), None)
        moment = next((name for name in _TIMES if name in columns and columns[name].values), None)
        if any(name is not None and not columns[name].are_places for name in (axis, moment)):
            return False
        if axis is None and all(column.rows is not None for column in columns.values()):
            return False
        row = state.get("rows", -1) + 1
        count = columns[names[0]].count
        state["rows"] = row + count - 1
        steps = array("q", map(int, columns[axis].values) if axis is not None else range(row, row + count))
        times = columns[moment].values if moment is not None else array("d", [NO_TIME]) * count
        for name, found in columns.items():
            if (name == axis and name not in _EPOCHS) or name in _OWN_FIELDS:
                continue
            if found.texts:
                out.not_number(name, found.texts)
            column = out.column(name) if found.values else None
            if column is not None:
                rows = found.rows
                column.values.extend(found.values)
                column.steps.extend(steps if rows is None else map(steps.__getitem__, rows))
                column.times.extend(times if rows is None else map(times.__getitem__, rows))
            elif found.values:
                out.pass_over("points of metrics beyond the first 5,000", len(found.values) - 1)
        return True

    def _add(self, record: Record, state: dict[str, Any], out: Builder) -> None:
        row = state["rows"] = state.get("rows", -1) + 1
        axis = next((name for name in _STEPS if _is_number(record.get(name))), None)
        step = record[axis] if axis is not None else row
        moment = next((record[name] for name in _TIMES if _is_number(record.get(name))), NO_TIME)
        for name, value in record.items():
            if (name == axis and name not in _EPOCHS) or name in _OWN_FIELDS:
                continue
            if value is not None:
                out.value(name, step, float(moment), value)


class _Cells:
    """The numbers of one column."""

    def __init__(self, cells: Sequence[str]) -> None:
        self.count = len(cells)
        self.rows: Sequence[int] | None = None
        """Which cells they are; None if all are numbers."""
        self.texts = 0
        try:
            self.values = array("d", map(float, cells))
        except ValueError:
            filled = [row for row, cell in enumerate(cells) if cell]
            self.rows = [row for row in filled if not isinstance(_value_of(cells[row]), str)]
            self.texts = len(filled) - len(self.rows)
            self.values = array("d", (float(cells[row]) for row in self.rows))

    @property
    def are_places(self) -> bool:
        """Whether each row has a number that can be a step or a time."""
        if self.rows is not None:
            return False
        lowest, highest = ends_of(self.values)
        return bool(-_LARGEST_WHOLE < lowest <= highest < _LARGEST_WHOLE)


def _by_column(data: bytes, names: Sequence[str], delimiter: str) -> dict[str, _Cells] | None:
    """Return the columns of rows without quotes; None if they have not all as many cells as there are names."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n")
    lines = text.split("\n")
    counts = {*map(methodcaller("count", delimiter), lines)}
    if counts != {len(names) - 1} or max(map(len, lines)) > _LONGEST_ROW:
        return None
    cells = text.replace("\n", delimiter).split(delimiter)
    return {name: _Cells(cells[at :: len(names)]) for at, name in enumerate(names)}


def sources_in(folder: Folder) -> Found:
    """Return a run for each table in a folder that has a column of steps or epochs."""
    found: list[RunSource] = []
    for name in sorted(folder.files)[:1000]:
        ending = Path(name).suffix.lower()
        if ending in _CSV_ENDINGS or ending in _JSONL_ENDINGS:
            source = _table(
                folder.root, folder.below(name), folder.head(name, 64 * 1024), ending in _JSONL_ENDINGS
            )
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
    lines = [line for line in head.removeprefix(_BOM).split(b"\n") if line.strip()]
    if not lines:
        return None
    names: set[str] = set()
    if is_json:
        record = _parse(lines[0])
        if record is None:
            return None
        names = {name for name in _STEPS if _is_number(record.get(name))}
    else:
        header = lines[0].decode("utf-8", "replace").rstrip("\r")
        names = set(_names_in(header, max(_DELIMITERS, key=header.count)))
    if not is_named and names.isdisjoint(_STEPS):
        return None
    path = Path(relative)
    name = name_of((root / relative).parent) if path.stem in _USUAL_NAMES else path.stem
    info = run_info(FORMAT, os.path.realpath(root / relative), name, root, [relative])
    return TableSource(info, relative, is_json=is_json)
