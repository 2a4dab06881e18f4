"""The columns of the table of all records, and how a record becomes a row."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, Any, Final

import orjson

from toolkit.telemetry.runfolder.records import COMPLETION, NON_FINITE, START, Record

FIRST_COLUMNS: Final = tuple(
    """
    event time elapsed seq session global_step epoch train_loss val_loss lr grad_norm samples_per_sec sec_per_step
    gpu_mem_allocated gpu_mem_reserved cpu_mem_rss_mb gpu_util nan_inf_detected
    """.split()
)
"""The first columns of every table, before those that a run adds."""

OF_THE_END: Final = tuple(
    "status reason seconds records records_lost telemetry_errors cpu_mem_peak_mb".split()
)
"""What an end record brings. These columns come with the start: a new column means rewriting the file, and a table of
a million rows would not be rewritten in time while the process waits to end."""
_GPU_IN_USE: Final = re.compile(r"gpu/[0-9]+/mem_used_gb")
"""The field of a sample that shows a GPU; the end record then has the peak of its memory."""

MAX_COLUMNS: Final = 2_000
"""Limit on columns: more are unusable in spreadsheets and pandas, and the values are still in the records."""

_MAX_CELL: Final = 2_000
_MAX_CELL_OF_A_COMPLETION: Final = 400
"""With this limit a prompt and two answers fit into one page of the table."""
_MAX_PLANS: Final = 256

# A spreadsheet runs a cell that begins so as a formula, the wide forms of Chinese and Japanese among them; some look
# for it after blanks and letters that are not shown. Scripts of pages have the same pattern; a test compares them.
_FORMULA: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]*[=+@\t\r\n\uff1d\uff0b\uff0d\uff20-]"
)
# Also with units, such as `+1 min 05 s`: letters alone, so neither a function nor the name of a cell.
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9][0-9,]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?: [a-zµ%]{1,4}(?: [0-9]{1,2} [a-z]{1,3})?)?|-inf"
)
_NEEDS_QUOTES: Final = frozenset(',"')
NUMBERS: Final = frozenset({float, int, bool})
_ONE_LINE: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\0": "\\0"})
CELL_OF_NON_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a record with certain fields becomes a row, as long as all its values are numbers."""

    event: str
    values_of: Callable[[Record], tuple[Any, ...]]
    rest: str
    is_complete: bool
    """Whether such a record, all numbers, needs no new column."""


def make_plan(event: str, names_at: Mapping[int, str], columns: int, *, is_complete: bool) -> Plan:
    """Return the plan for records with these names in these of so many columns; `time` is in the second."""
    return Plan(
        event=event,
        values_of=itemgetter(*(names_at[at] for at in sorted(names_at))),
        rest=",".join("%s" if at in names_at else "" for at in range(2, columns)),
        is_complete=is_complete and event.isascii(),
    )


class Columns:
    """The columns of one table with a column for every field, in order of appearance.

    A field's column is found by what the header can say of its name, which is all that an adopted table knows: two
    names that differ only in how a line break is written share one.
    """

    def __init__(self, names: Iterable[str] = FIRST_COLUMNS) -> None:
        self.names: list[str] = []
        """As in the header, without quotes."""
        self.left_out: set[str] = set()
        self._index: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._plans: dict[tuple[Any, ...], Plan | None] = {}
        self._seen: set[tuple[Any, ...]] = set()
        for name in names:
            self._shown[name] = len(self.names)
            self.names.append(name)

    def add_new_of(self, record: Record) -> int:
        """Add a column for each new field of `record`; return how many were added."""
        fields = (record.get("event") == START, *record)
        if fields in self._seen:
            return 0
        added = 0
        for name in (*record, *_to_come(record)):
            if name not in self._index and name != NON_FINITE:
                shown = one_line(name)
                at = self._shown.get(shown)
                if at is not None:
                    self._index[name] = at
                elif len(self.names) < MAX_COLUMNS:
                    self._index[name] = self._shown[shown] = len(self.names)
                    self.names.append(shown)
                    added += 1
                elif len(self.left_out) < MAX_COLUMNS:
                    self.left_out.add(name)
        if added:
            self._plans.clear()
        self._remember(fields)
        return added

    def _remember(self, fields: tuple[Any, ...]) -> None:
        if len(self._seen) >= _MAX_PLANS:
            self._seen.clear()
        self._seen.add(fields)

    @staticmethod
    def has_row(_: Record) -> bool:
        """Return whether the table has a row for a record: always."""
        return True

    def snapshot(self) -> Any:
        """Return a snapshot for `restore`."""
        return list(self.names), dict(self._index), dict(self._shown)

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot."""
        self.names, self._index, self._shown = snapshot
        self._plans.clear()
        self._seen.clear()

    def widened(self, old: list[str]) -> Callable[[str], str]:
        """Return what makes the cells after the first two of a row under `old` columns a row under these."""
        # New columns go to the end, so an old row becomes a new one by commas alone; it needs no parsing.
        missing = "," * (len(self.names) - len(old))
        return lambda cells: cells + missing

    def commas_behind(self, old: list[str]) -> bytes | None:
        """Return what a row under `old` columns needs behind it; None if it needs more than that."""
        return b"," * (len(self.names) - len(old))

    def row(self, record: Record) -> list[str]:
        """Return the cells of `record`, whose fields were given their columns before."""
        cells = [""] * len(self.names)
        index = self._index
        longest = _MAX_CELL if record.get("event") != COMPLETION else _MAX_CELL_OF_A_COMPLETION
        for name, value in record.items():
            at = index.get(name)
            if at is not None and value is not None:
                cells[at] = cell(value, longest)
        named = record.get(NON_FINITE)
        if type(named) is dict:
            for name, text in named.items():
                at = index.get(name)
                # Only what the record has, as null: a column that comes later must not give an old row a value.
                if at is not None and record.get(name, 0) is None and not cells[at]:
                    cells[at] = CELL_OF_NON_FINITE.get(text, "") if type(text) is str else ""
        return cells

    def parts(self, record: Record) -> list[str]:
        """Return the row of `record` in parts that a comma joins: its event, its time, and the rest.

        Nearly every record is all numbers but for its event, and has the fields of one before it. Such a row is
        planned once; then orjson writes its numbers in the time that Python takes for two of them.
        """
        event = record.get("event")
        if type(event) is not str:
            return self.row(record)
        fields = (event, *record)
        if fields not in self._plans:
            self._plans[fields] = self._make_plan(record)
        return _planned_row(self._plans[fields], record) or self.row(record)

    def plain_parts(self, record: Record) -> list[str] | None:
        """Return the same if no new column is needed and the row was planned before, which takes less time."""
        event = record.get("event")
        plan = self._plans.get((event, *record)) if type(event) is str else None
        return _planned_row(plan, record) if plan is not None and plan.is_complete else None

    def _make_room_for_plan(self) -> None:
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()

    def _make_plan(self, record: Record) -> Plan | None:
        self._make_room_for_plan()
        event = record.get("event")
        places = {self._index[name]: name for name in record if name in self._index}
        if type(event) is not str or not event.isidentifier() or "time" not in record:
            return None
        if NON_FINITE in record or not 3 < len(places) == len(record):
            return None
        del places[0]
        return make_plan(event, places, len(self.names), is_complete=True)

    def header(self) -> str:
        """Return the first line of the table, without its newline."""
        return ",".join(_quoted(name) for name in self.names)


def _planned_row(plan: Plan | None, record: Record) -> list[str] | None:
    """Return the row of a record; None if it has no plan, or a value that is no number."""
    if plan is None:
        return None
    values = plan.values_of(record)
    if not NUMBERS.issuperset(map(type, values)):
        return None
    text = orjson.dumps(values)[1:-1].decode("ascii")
    if "null" in text:
        return None
    if "e" in text:
        text = text.replace("true", "True").replace("false", "False")
    when, *others = text.split(",")
    return [plan.event, when, plan.rest % (*others,)]


def _to_come(record: Record) -> Iterator[str]:
    """Yield the fields that the end record will have because of `record`."""
    if record.get("event") == START:
        yield from OF_THE_END
    for name in record:
        if _GPU_IN_USE.fullmatch(name):
            yield name.replace("mem_used_gb", "mem_peak_gb")


def cell(value: Any, longest: int = _MAX_CELL) -> str:
    """Return `value` as the text of one cell, quoted where it must be; never more than one line."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            return CELL_OF_NON_FINITE.get(str(value), str(value))
        return orjson.dumps(value).decode("ascii")
    if kind is int or kind is bool:
        return str(value)
    if kind is str:
        return _text_cell(value, longest)
    return _text_cell(orjson.dumps(value).decode("utf-8"), longest)


def _text_cell(text: str, longest: int) -> str:
    if text.isalnum() and len(text) <= longest:
        return text
    return _quoted(one_line(text, longest))


def one_line(text: str, longest: int = _MAX_CELL) -> str:
    """Return `text` without line breaks, of bounded length, and no formula to a spreadsheet."""
    if len(text) > longest:
        text = f"{text[:longest]}… [{len(text)} characters]"
    return no_formula(text.translate(_ONE_LINE))


def no_formula(text: str) -> str:
    """Return `text` as a cell that no spreadsheet takes for a formula; a number stays one."""
    if text[:1].isalnum():
        return text
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def write_csv(file: IO[str], rows: Iterable[Iterable[Any]], *, are_marked: bool = False) -> None:
    """Write rows of cells of any type, none of them a formula to a spreadsheet.

    Of rows that `are_marked`, each text is from `no_formula` already: a million rows repeat a few.
    """
    csv.writer(file, lineterminator="\n").writerows(
        rows
        if are_marked
        else (
            [value if value is None or type(value) in NUMBERS else no_formula(str(value)) for value in row]
            for row in rows
        )
    )


def csv_of(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return a table as the bytes of a CSV file that pandas reads."""
    text = io.StringIO()
    write_csv(text, [names])
    write_csv(text, rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _quoted(text: str) -> str:
    return text if _NEEDS_QUOTES.isdisjoint(text) else '"' + text.replace('"', '""') + '"'
