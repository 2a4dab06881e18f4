"""The columns of metrics.csv, and the cells of a record's row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import orjson

from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.records import COMPLETION, EPOCH, EVAL, NON_FINITE, START, STEP, Record

SHORT: Final = "short"
"""What a person logs: steps, evaluations, checkpoints, findings and the like, with their numbers and short texts."""
ALL: Final = "all"
"""Every record, with every field."""

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
"""What an end record brings. These columns are there from the start: a new column means rewriting the file, and a table
of a million rows would not be rewritten in time while the process waits to end."""
_GPU_IN_USE: Final = re.compile(r"gpu/[0-9]+/mem_used_gb")
"""The field of a sample that shows a GPU; the end record then has the peak of its memory."""

WITHOUT_ROWS: Final = frozenset(
    {
        *(records.SYSTEM, records.SPAN, records.SPAN_START, records.SPAN_EVENT, records.SPAN_SUMMARY),
        *(records.LEDGER, records.COMPLETION, records.COMPLETIONS_DROPPED, records.CODE, records.MESSAGE),
        *(records.TAGS, records.LOST, records.STATE, records.ENVIRONMENT, "other_trackers", "train_summary"),
        *(records.SUMMARY, records.TABLE, records.HISTOGRAM, records.MEDIA_DROPPED),
        *("config_change", "metric_defined", "saved_file"),
    }
)
"""Records that the user did not log, or that are not rows: the short table leaves them out."""

MAX_COLUMNS: Final = 2_000
"""Limit on columns: more are unusable in spreadsheets and pandas, and the values are still in the records."""

_OF_METRICS: Final = frozenset({STEP, EVAL, EPOCH})
_NOT_METRICS: Final = ("time/", "device_time/", "ledger/", "profiling/", "gpu/")
"""How names begin that say where time went and what the machine did: they come with the spans and the system."""
_OF_THE_MACHINE: Final = frozenset(
    {
        "host",
        "os",
        "python",
        "memory_gb",
        "pid",
        "boot_id",
        "process_started",
        "session_tag",
        *records.OF_THE_JOB,
    }
)
_LONGEST_SHORT_TEXT: Final = 200
_LONGEST_TEXT: Final = 2_000
_LONGEST_OF_A_COMPLETION: Final = 400

# A spreadsheet runs a cell that begins so as a formula, the wide forms of Chinese and Japanese among them; some look
# for it after blanks and letters that are not shown. Scripts of pages have the same pattern; a test compares them.
_FORMULA: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]*[=+@\t\r\n\uff1d\uff0b\uff0d\uff20-]"
)
# Also with units, such as `+1 min 05 s`: letters alone, so neither a function nor the name of a cell.
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9][0-9,]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?: [a-zµ%]{1,4}(?: [0-9]{1,2} [a-z]{1,3})?)?|-inf"
)
_NUMBERS: Final = frozenset({float, int, bool})
_ONE_LINE: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\0": "\\0"})
_CELL_OF_NON_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


class Columns:
    """The columns of one table: numbers of steps, evaluations and epochs, the end's, then everything else.

    Within each part they come in order of appearance. Names that differ only in how a line break is written share one.
    """

    def __init__(self, form: str = ALL) -> None:
        self.left_out: set[str] = set()
        """Fields without a column because the table is at its limit."""
        self._is_short = form == SHORT
        # As sets that keep their order.
        self._numbers: dict[str, None] = dict.fromkeys(FIRST_COLUMNS)
        self._others: dict[str, None] = dict.fromkeys(OF_THE_END)
        self._settled: dict[str, str | None] = {}
        """The column of each field that was seen; None for one that never gets any."""
        self._index: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The columns in order, as in the header, without quotes."""
        return [*self._numbers, *self._others]

    def has_row(self, record: Record) -> bool:
        """Return whether the table has a row for `record`."""
        return not (self._is_short and _event_of(record) in WITHOUT_ROWS)

    def add_new_of(self, record: Record) -> bool:
        """Add the missing columns for the fields of `record`; return whether there were any."""
        if self._settled.keys() >= record.keys():
            return False
        event, named = _event_of(record), record.get(NON_FINITE)
        columns, settled = len(self.names), len(self._settled)
        for name, value in record.items():
            if name in self._settled:
                continue
            is_number = type(value) in _NUMBERS or (value is None and type(named) is dict and name in named)
            if self._is_short and not name.startswith(_NOT_METRICS):
                if not (is_number or type(value) is str) or (event == START and name in _OF_THE_MACHINE):
                    continue
            elif self._is_short or name == NON_FINITE:
                self._settled[name] = None
                continue
            self._add(name, self._numbers if is_number and event in _OF_METRICS else self._others)
            if _GPU_IN_USE.fullmatch(name):
                self._add(name.replace("mem_used_gb", "mem_peak_gb"), self._others)
        if len(self._settled) > settled:
            places = {shown: at for at, shown in enumerate(self.names)}
            self._index = {name: places[shown] for name, shown in self._settled.items() if shown is not None}
        return len(self.names) > columns

    def _add(self, name: str, part: dict[str, None]) -> None:
        shown = one_line(name)
        if shown in self._numbers or shown in self._others:
            self._settled[name] = shown
        elif len(self._numbers) + len(self._others) < MAX_COLUMNS:
            part[shown] = None
            self._settled[name] = shown
        elif len(self.left_out) < MAX_COLUMNS:
            self.left_out.add(name)

    def row(self, record: Record) -> list[str]:
        """Return the cells of `record`, whose fields were given their columns before."""
        event, named = _event_of(record), record.get(NON_FINITE)
        cells = [""] * (len(self._numbers) + len(self._others))
        is_short, numbers = self._is_short, len(self._numbers)
        longest = _LONGEST_SHORT_TEXT if is_short else _LONGEST_TEXT
        longest = _LONGEST_OF_A_COMPLETION if event == COMPLETION and not is_short else longest
        left_out = _OF_THE_MACHINE if is_short and event == START else ()
        for name, value in record.items():
            at = self._index.get(name)
            if at is None or name in left_out:
                continue
            kind = type(value)
            if kind in _NUMBERS:
                cells[at] = repr(value)
            elif value is None:
                word = named.get(name) if type(named) is dict else None
                cells[at] = _CELL_OF_NON_FINITE.get(word, "") if type(word) is str else ""
            elif kind is str:
                # Numbers come first, so that a spreadsheet and pandas take these columns for numbers.
                cells[at] = _text_cell(value, longest) if not is_short or at >= numbers or at == 0 else ""
            elif not is_short:
                cells[at] = _text_cell(orjson.dumps(value).decode("utf-8"), longest)
        return cells

    def header(self) -> str:
        """Return the first line of the table, without its newline."""
        return ",".join(map(_quoted, self.names))


def _event_of(record: Record) -> str | None:
    event = record.get("event")
    return event if type(event) is str else None


def _text_cell(text: str, longest: int) -> str:
    if text.isalnum() and len(text) <= longest:
        return text
    return _quoted(one_line(text, longest))


def one_line(text: str, longest: int = _LONGEST_TEXT) -> str:
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
            [value if value is None or type(value) in _NUMBERS else no_formula(str(value)) for value in row]
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
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text
