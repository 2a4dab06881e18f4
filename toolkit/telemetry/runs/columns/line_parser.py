"""Parses lines of a log into columns: many at once if they are alike, one by one otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from toolkit.telemetry.runfolder.metrics import (
    CARRIES_METRICS,
    KINDS,
    MAX_METRICS,
    NOT_METRICS,
    metrics_of,
    position_of,
)
from toolkit.telemetry.runfolder.reader import BadLine, Block, parse_line
from toolkit.telemetry.runfolder.records import EPOCH, LOST, MAX_LINE_BYTES, STEP, Record
from toolkit.telemetry.runs.store import Floats

_FEW_LINES = 400
_STEP_LINE = b'{"event":"step",'


@dataclass(slots=True)
class Parsed:
    """The contents of a block of lines. Rows are the records with metrics, in file order."""

    time: Floats
    elapsed: Floats
    step: Floats
    epoch: Floats
    session: npt.NDArray[np.int32]
    is_step: npt.NDArray[np.bool_]
    kind: npt.NDArray[np.int8]
    """Indices into KINDS."""
    at: npt.NDArray[np.int64]
    """Offsets of the lines in their file; -1 where there are none."""
    metrics: dict[str, tuple[npt.NDArray[np.int32], Floats]]
    """For each metric, the rows that have it (counted from this block's first) and their values."""
    kinds: dict[str, str]
    """The kind of record in which a metric was first seen."""
    events: list[tuple[str, int, int]] = field(default_factory=list)
    """Kind, offset and length of each record without metrics."""
    bad: list[BadLine] = field(default_factory=list)
    lost: list[Record] = field(default_factory=list)
    records: int = 0


class LineParser:
    """Parses blocks of one log, and learns which fields its step records have."""

    def __init__(self) -> None:
        # None marks a field with several types, or nested: such lines are read one by one.
        self._fields: dict[str, str | None] = {}
        self._schema: pa.Schema | None = None

    def parse(self, block: Block) -> Parsed:
        """Return what `block` holds."""
        lines = block.data[:-1].split(b"\n") if block.data else []
        starts = _starts(lines, block.start)
        alike = (
            [
                i
                for i, line in enumerate(lines)
                if line.startswith(_STEP_LINE) and b'"non_finite"' not in line and len(line) <= MAX_LINE_BYTES
            ]
            if len(lines) >= _FEW_LINES
            else []
        )
        table = self._parse_alike(lines, alike)
        # A few lines are always read one by one, so nothing needs to be learnt from them.
        found = _Rows(self._learn if len(lines) >= _FEW_LINES else None)
        if table is None:
            alike = []
        single = _others(len(lines), alike)
        for i in single:
            if lines[i]:
                found.take(parse_line(int(starts[i]), lines[i]), i, int(starts[i]), len(lines[i]))
        if block.long_line is not None:
            found.bad.insert(0, block.long_line)
        return found.finish(table, np.asarray(alike, dtype=np.int64), starts)

    def _parse_alike(self, lines: list[bytes], alike: list[int]) -> pa.Table | None:
        if len(alike) < _FEW_LINES:
            return None
        if self._schema is None:
            for i in (*alike[:50], *alike[-50:]):
                record = parse_line(0, lines[i])
                if not isinstance(record, BadLine):
                    self._learn(record)
            self._schema = self._make_schema()
        if self._schema is None:
            return None
        data = b"\n".join([lines[i] for i in alike])
        try:
            if not data.isascii():
                data.decode("utf-8")
            table = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(block_size=4 << 20),
                # An unknown field makes this fail; the lines are then read one by one, so it is never lost.
                parse_options=pj.ParseOptions(
                    explicit_schema=self._schema, unexpected_field_behavior="error"
                ),
            )
        except (pa.ArrowInvalid, UnicodeDecodeError):
            self._schema = None
            return None
        return table if table.num_rows == len(alike) and _is_strict(table) else None

    def _learn(self, record: Record) -> None:
        # With more fields there is no schema, and new names would fill the memory.
        if record.get("event") != STEP or len(self._fields) > MAX_METRICS:
            return
        for name, value in record.items():
            kind = _kind(value)
            known = self._fields.get(name, "null")
            if known == "null":
                self._fields[name] = kind
            elif kind not in ("null", known):
                self._fields[name] = None

    def _make_schema(self) -> pa.Schema | None:
        if len(self._fields) > MAX_METRICS or None in self._fields.values():
            return None
        types = {"number": pa.float64(), "bool": pa.bool_(), "text": pa.string(), "null": pa.null()}
        return pa.schema([(name, types[kind]) for name, kind in self._fields.items() if kind is not None])


class _Rows:
    """Collects records read one by one."""

    def __init__(self, learn: Callable[[Record], None] | None) -> None:
        self._learn = learn
        self.bad: list[BadLine] = []
        self._events: list[tuple[str, int, int]] = []
        self._lost: list[Record] = []
        self._lines: list[int] = []
        self._frame: list[tuple[float, float, float, float, float, int]] = []
        self._metrics: dict[str, tuple[list[int], list[float]]] = {}
        self._kinds: dict[str, str] = {}
        self._records = 0

    def take(self, record: Record | BadLine, line: int, start: int, length: int) -> None:
        if isinstance(record, BadLine):
            self.bad.append(record)
            return
        event = record.get("event")
        if not isinstance(event, str):
            self.bad.append(BadLine(start, length, "it has no `event` field"))
            return
        self._records += 1
        if self._learn is not None:
            self._learn(record)
        if event not in CARRIES_METRICS:
            self._events.append((event, start, length))
            if event == LOST:
                self._lost.append(record)
            return
        row = len(self._frame)
        self._lines.append(line)
        self._frame.append((*position_of(record), KINDS.index(event)))
        if event == EPOCH:
            # An epoch record is also listed as an event.
            self._events.append((event, start, length))
        for name, value in metrics_of(record):
            rows, values = self._metrics.setdefault(name, ([], []))
            rows.append(row)
            values.append(value)
            self._kinds.setdefault(name, event)

    def finish(
        self, table: pa.Table | None, alike: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
    ) -> Parsed:
        frame = np.array(self._frame, dtype=np.float64).reshape(len(self._frame), 6)
        own_lines = np.asarray(self._lines, dtype=np.int64)
        rows = len(own_lines) + len(alike)
        # Interleave the rows of both kinds in the order of their lines.
        lines = np.concatenate((own_lines, alike))
        order = np.argsort(lines, kind="stable")
        place = np.empty(rows, dtype=np.int32)
        place[order] = np.arange(rows, dtype=np.int32)
        own_place, alike_place = place[: len(own_lines)], place[len(own_lines) :]

        def column(number: int, name: str) -> Floats:
            whole = np.full(rows, np.nan)
            whole[own_place] = frame[:, number]
            if table is not None and name in table.column_names:
                found = table.column(name)
                if not pa.types.is_string(found.type):
                    whole[alike_place] = _to_floats(found)
            return whole

        kind = np.full(rows, KINDS.index(STEP), dtype=np.int8)
        kind[own_place] = frame[:, 5]
        session = np.nan_to_num(column(4, "session"), nan=0.0, posinf=0.0, neginf=0.0)
        parsed = Parsed(
            time=column(0, "time"),
            elapsed=column(1, "elapsed"),
            step=column(2, "global_step"),
            epoch=column(3, "epoch"),
            session=np.clip(session, 0, 2**31 - 1).astype(np.int32),
            is_step=kind == KINDS.index(STEP),
            kind=kind,
            at=starts[lines[order]],
            metrics={},
            kinds=self._kinds,
            events=self._events,
            bad=self.bad,
            lost=self._lost,
            records=self._records + len(alike),
        )
        for name, (at, values) in self._metrics.items():
            parsed.metrics[name] = (
                own_place[np.asarray(at, dtype=np.int64)],
                np.asarray(values, dtype=np.float64),
            )
        if table is not None:
            _add_alike(parsed, table, alike_place)
            # In the order of first appearance, whichever way their lines were read.
            parsed.metrics = dict(sorted(parsed.metrics.items(), key=lambda item: int(item[1][0][0])))
        return parsed


def _add_alike(parsed: Parsed, table: pa.Table, place: npt.NDArray[np.int32]) -> None:
    for name in table.column_names:
        column = table.column(name)
        if name in NOT_METRICS or pa.types.is_string(column.type) or column.null_count == len(column):
            continue
        if column.null_count:
            present = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
            rows, values = place[present], _to_floats(column)[present]
        else:
            rows, values = place, _to_floats(column)
        if name in parsed.metrics:
            own_rows, own_values = parsed.metrics[name]
            if rows[0] < own_rows[0]:
                parsed.kinds[name] = STEP
            rows = np.concatenate((own_rows, rows))
            order = np.argsort(rows, kind="stable")
            rows, values = rows[order], np.concatenate((own_values, values))[order]
        parsed.metrics[name] = (rows, values)
        parsed.kinds.setdefault(name, STEP)


def _is_strict(table: pa.Table) -> bool:
    """Return whether all numbers are finite: pyarrow also accepts bare NaN and Infinity, which JSON does not have."""
    return all(
        pc.all(pc.is_finite(column)).as_py() is not False
        for column in table.columns
        if pa.types.is_floating(column.type)
    )


def _to_floats(column: pa.ChunkedArray) -> Floats:
    values = column.cast(pa.float64()).to_numpy()
    return np.asarray(values, dtype=np.float64)


def _kind(value: object) -> str | None:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else None


def _starts(lines: list[bytes], start: int) -> npt.NDArray[np.int64]:
    lengths = np.fromiter(map(len, lines), dtype=np.int64, count=len(lines))
    return start + np.concatenate(([0], np.cumsum(lengths + 1)[:-1])) if len(lines) else lengths


def _others(count: int, taken: list[int]) -> list[int]:
    if not taken:
        return list(range(count))
    free = np.ones(count, dtype=bool)
    free[taken] = False
    return [int(i) for i in np.flatnonzero(free)]
