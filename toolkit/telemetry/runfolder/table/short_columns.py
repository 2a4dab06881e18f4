"""The columns of the usual table: what a person logs, numbers first, and nothing that a cell has no room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from toolkit.telemetry.runfolder.records import (
    CODE,
    COMPLETION,
    COMPLETIONS_DROPPED,
    EPOCH,
    EVAL,
    HISTOGRAM,
    LEDGER,
    LOST,
    MEDIA_DROPPED,
    MESSAGE,
    NON_FINITE,
    OF_THE_JOB,
    SPAN,
    SPAN_EVENT,
    SPAN_START,
    SPAN_SUMMARY,
    START,
    STATE,
    STEP,
    SUMMARY,
    SYSTEM,
    TABLE,
    TAGS,
    Record,
)
from toolkit.telemetry.runfolder.table.columns import (
    CELL_OF_NON_FINITE,
    FIRST_COLUMNS,
    MAX_COLUMNS,
    NUMBERS,
    OF_THE_END,
    Columns,
    Plan,
    cell,
    make_plan,
    one_line,
)

WITHOUT_ROWS: Final = frozenset(
    {
        *(SYSTEM, SPAN, SPAN_START, SPAN_EVENT, SPAN_SUMMARY, LEDGER, COMPLETION, COMPLETIONS_DROPPED),
        *(CODE, MESSAGE, TAGS, LOST, STATE, "environment", "other_trackers", "train_summary"),
        *(SUMMARY, TABLE, HISTOGRAM, MEDIA_DROPPED, "config_change", "metric_defined", "saved_file"),
    }
)
"""Records that the user did not log, or that are not rows: they are only in the record file."""

_BOUNDARY: Final = OF_THE_END[0]
"""The first column after the numbers. It is in every such table from the first row on."""
_OF_METRICS: Final = frozenset({STEP, EVAL, EPOCH})
_NOT_METRICS: Final = ("time/", "device_time/", "ledger/", "profiling/", "gpu/")
"""How names begin that say where time went and what the machine did: they come with the spans and the system."""
_OF_THE_MACHINE: Final = frozenset(
    {"host", "os", "python", "memory_gb", "pid", "boot_id", "process_started", "session_tag", *OF_THE_JOB}
)
_LONGEST: Final = 200


class ShortColumns(Columns):
    """Numbers of steps, evaluations and epochs in front; after them short texts and numbers of everything else.

    In front there are numbers only, so that a row gets a new column there without being parsed.
    """

    def __init__(self, names: Iterable[str] = (*FIRST_COLUMNS, *OF_THE_END)) -> None:
        super().__init__(names)
        self._front = self.names.index(_BOUNDARY)

    @staticmethod
    def can_be(names: list[str]) -> bool:
        """Return whether a table with these columns can be continued in this form."""
        return _BOUNDARY in names

    @staticmethod
    def is_header(names: list[str]) -> bool:
        """Return whether a table of ours with these columns is one of this form."""
        # Where all fields have columns, those of the start record come before what the end brings.
        return _BOUNDARY in names and "run_name" not in names[: names.index(_BOUNDARY)]

    @staticmethod
    def has_row(record: Record) -> bool:
        """Return whether the table has a row for `record`."""
        event = record.get("event")
        return not (type(event) is str and event in WITHOUT_ROWS)

    def add_new_of(self, record: Record) -> int:
        """Add the missing columns for the fields of `record`; return how many were added."""
        fields = (record.get("event"), *record, *map(type, record.values()))
        if fields in self._seen:
            return 0
        numbers, others = self._without_columns(record)
        added = len(numbers) + len(others)
        if added:
            self.names[self._front : self._front] = numbers
            self.names += others
            self._front += len(numbers)
            self._shown = {name: at for at, name in enumerate(self.names)}
            self._index = {name: self._shown[one_line(name)] for name in self._index}
            self._plans.clear()
            self._seen.clear()
        for name in record:
            at = self._shown.get(one_line(name))
            if at is not None:
                self._index[name] = at
        self._remember(fields)
        return added

    def _without_columns(self, record: Record) -> tuple[list[str], list[str]]:
        """Return the columns that `record` needs and that are not there: of numbers, and others."""
        event = record.get("event")
        named = record.get(NON_FINITE)
        found: tuple[dict[str, None], dict[str, None]] = ({}, {})
        for name, value in record.items():
            shown = one_line(name)
            is_number = type(value) in NUMBERS or (value is None and type(named) is dict and name in named)
            if shown in self._shown or not (is_number or type(value) is str) or name.startswith(_NOT_METRICS):
                continue
            if event == START and name in _OF_THE_MACHINE:
                continue
            if len(self.names) + len(found[0]) + len(found[1]) < MAX_COLUMNS:
                found[0 if is_number and event in _OF_METRICS else 1][shown] = None
            elif len(self.left_out) < MAX_COLUMNS:
                self.left_out.add(name)
        return list(found[0]), list(found[1])

    def row(self, record: Record) -> list[str]:
        """Return the cells of `record`, whose fields were given their columns before."""
        cells = [""] * len(self.names)
        named = record.get(NON_FINITE)
        is_start = record.get("event") == START
        for name, value in record.items():
            at = self._index.get(name, -1)
            if at < 0 or (is_start and name in _OF_THE_MACHINE):
                continue
            if value is None and type(named) is dict and type(named.get(name)) is str:
                cells[at] = CELL_OF_NON_FINITE.get(named[name], "")
            elif type(value) in NUMBERS or (type(value) is str and (at >= self._front or at == 0)):
                cells[at] = cell(value, _LONGEST)
        return cells

    def widened(self, old: list[str]) -> Callable[[str], str]:
        """Return what makes the cells after the first two of a row under `old` columns a row under these."""
        front = old.index(_BOUNDARY)
        more = [""] * (self._front - front)
        behind = "," * (len(self.names) - self._front - (len(old) - front))
        cells_in_front = front - 2

        def widen(cells: str) -> str:
            *numbers, others = cells.split(",", cells_in_front)
            return ",".join([*numbers, *more, others]) + behind

        return widen

    def commas_behind(self, old: list[str]) -> bytes | None:
        """Return what a row under `old` columns needs behind it; None if it gets cells in front, too."""
        return super().commas_behind(old) if old.index(_BOUNDARY) == self._front else None

    def snapshot(self) -> Any:
        """Return what `restore` takes."""
        return super().snapshot(), self._front

    def restore(self, snapshot: Any) -> None:
        """Have the columns be what they were."""
        super().restore(snapshot[0])
        self._front = snapshot[1]

    def _make_plan(self, record: Record) -> Plan | None:
        self._make_room_for_plan()
        event = record.get("event")
        places = {self._index[name]: name for name in record if name in self._index}
        if type(event) is not str or not event.isidentifier() or event == START or NON_FINITE in record:
            return None
        if places.get(0) != "event" or places.get(1) != "time" or len(places) <= 3:
            return None
        del places[0]
        is_complete = all(name in self._index or name.startswith(_NOT_METRICS) for name in record)
        return make_plan(event, places, len(self.names), is_complete=is_complete)
