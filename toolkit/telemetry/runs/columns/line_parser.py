"""Parses the lines of a log into columns: those of records with the same fields together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.metrics import CARRIES_METRICS, EPOCH_PREFIX, KINDS, NOT_METRICS
from toolkit.telemetry.runfolder.reader import BadLine, Block, lines_of, parse_line
from toolkit.telemetry.runfolder.records import EPOCH, LOST, NON_FINITE, STEP, Record
from toolkit.telemetry.runs.store import Floats

_NUMBERS: Final = frozenset({float, int, bool})
_LARGEST_SESSION: Final = 2**31 - 1


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


def parse_block(block: Block) -> Parsed:
    """Return what `block` holds."""
    rows = _Rows()
    if block.long_line is not None:
        rows.bad.append(block.long_line)
    for start, line in lines_of(block):
        rows.take(parse_line(start, line), start, len(line))
    return rows.finish()


class _Shape:
    """The records of one kind that have the same fields."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.values: list[Any] = []
        """All fields of the first record, then those of the second, and so on."""


class _Rows:
    """Collects records."""

    def __init__(self) -> None:
        self.bad: list[BadLine] = []
        self._events: list[tuple[str, int, int]] = []
        self._lost: list[Record] = []
        self._at: list[int] = []
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._records = 0

    def take(self, record: Record | BadLine, start: int, length: int) -> None:
        if isinstance(record, BadLine):
            self.bad.append(record)
            return
        event = record.get("event")
        if not isinstance(event, str):
            self.bad.append(BadLine(start, length, "it has no `event` field"))
            return
        self._records += 1
        if event not in CARRIES_METRICS or event == EPOCH:
            # An epoch record is also listed as an event.
            self._events.append((event, start, length))
        if event in CARRIES_METRICS:
            if NON_FINITE in record:
                record = with_non_finite(record)
            fields = (event, *record)
            shape = self._shapes.get(fields)
            if shape is None:
                shape = self._shapes[fields] = _Shape()
            shape.rows.append(len(self._at))
            shape.values += record.values()
            self._at.append(start)
        elif event == LOST:
            self._lost.append(record)

    def finish(self) -> Parsed:
        count = len(self._at)
        places = {name: np.full(count, np.nan) for name in ("time", "elapsed", "global_step", "epoch")}
        places["session"] = np.zeros(count)
        kind = np.zeros(count, dtype=np.int8)
        found: dict[str, list[tuple[tuple[int, int], str, npt.NDArray[np.int32], Floats]]] = {}
        for (event, *names), shape in self._shapes.items():
            rows = np.array(shape.rows, dtype=np.int32)
            kind[rows] = KINDS.index(event)
            prefix = EPOCH_PREFIX if event == EPOCH else ""
            for number, name in enumerate(names):
                if name in NOT_METRICS and name not in places:
                    continue
                own, values = _numbers(rows, shape.values[number :: len(names)])
                if name in places:
                    places[name][own] = values
                if name not in NOT_METRICS and len(own):
                    part = ((int(own[0]), number), event, own, values)
                    found.setdefault(prefix + name, []).append(part)
        session = np.nan_to_num(places["session"], nan=0.0, posinf=0.0, neginf=0.0)
        firsts = {name: min(parts, key=itemgetter(0)) for name, parts in found.items()}
        metrics = {}
        # In the order of first appearance.
        for name in sorted(firsts, key=lambda name: firsts[name][0]):
            rows = np.concatenate([part[2] for part in found[name]])
            order = np.argsort(rows, kind="stable")
            metrics[name] = rows[order], np.concatenate([part[3] for part in found[name]])[order]
        return Parsed(
            time=places["time"],
            elapsed=places["elapsed"],
            step=places["global_step"],
            epoch=places["epoch"],
            session=np.clip(session, 0, _LARGEST_SESSION).astype(np.int32),
            is_step=kind == KINDS.index(STEP),
            kind=kind,
            at=np.array(self._at, dtype=np.int64),
            metrics=metrics,
            kinds={name: first[1] for name, first in firsts.items()},
            events=self._events,
            bad=self.bad,
            lost=self._lost,
            records=self._records,
        )


def _numbers(rows: npt.NDArray[np.int32], column: Sequence[Any]) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return the numbers in a column, and the rows that have them; a boolean counts as 0 or 1."""
    if not _NUMBERS.issuperset(map(type, column)):
        is_number = np.array([type(value) in _NUMBERS for value in column])
        rows, column = rows[is_number], [value for value in column if type(value) in _NUMBERS]
    return rows, np.fromiter(column, dtype=np.float64, count=len(column))
