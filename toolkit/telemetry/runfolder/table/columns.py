"""The columns of metrics.csv, and the cells of a record's row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import orjson

from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, NON_FINITE, START, STEP, Record

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
"""What an end record brings. These columns are there from the start: a new one means copying the file, and a very large
one might not be copied in time while the process waits to end."""

WITHOUT_ROWS: Final = frozenset(
    {
        *(records.SYSTEM, records.SPAN, records.SPAN_START, records.SPAN_EVENT, records.SPAN_SUMMARY),
        *(records.LEDGER, records.COMPLETION, records.COMPLETIONS_DROPPED, records.CODE, records.MESSAGE),
        *(records.TAGS, records.LOST, records.STATE, records.ENVIRONMENT, "train_summary"),
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
    [*"host os python memory_gb pid boot_id process_started session_tag".split(), *records.OF_THE_JOB]
)
_LONGEST_SHORT_TEXT: Final = 200
_LONGEST_TEXT: Final = 2_000

# A spreadsheet runs a cell that begins so as a formula, the wide forms of Chinese and Japanese among them; some look
# for it after blanks and letters that are not shown.
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
    """The columns of one table, in order of appearance.

    Names that differ only in how a line break is written share one.
    """

    def __init__(self, form: str = ALL) -> None:
        self.names = {name: at for at, name in enumerate([*FIRST_COLUMNS, *OF_THE_END])}
        """The columns as in the header, without quotes, and their places."""
        self.left_out: set[str] = set()
        """Fields without a column because the table is at its limit."""
        self._is_short = form == SHORT
        self._places: dict[str, int | None] = {**self.names, NON_FINITE: None}
        """The place of each field that was seen; None for one that never gets any."""
        self._numbers = {*range(1, len(FIRST_COLUMNS))}
        """The places of metrics: pandas takes a column with a text for texts."""

    def has_row(self, record: Record) -> bool:
        """Return whether the table has a row for `record`."""
        return not (self._is_short and _event_of(record) in WITHOUT_ROWS)

    def add_new_of(self, record: Record) -> None:
        """Add the missing columns for the fields of `record`."""
        if self._places.keys() >= record.keys():
            return
        event, named = _event_of(record), record.get(NON_FINITE)
        for name, value in record.items():
            if name in self._places:
                continue
            is_number = type(value) in _NUMBERS or (value is None and type(named) is dict and name in named)
            if self._is_short and name.startswith(_NOT_METRICS):
                self._places[name] = None
            elif not self._is_short or (
                (is_number or type(value) is str) and not (event == START and name in _OF_THE_MACHINE)
            ):
                self._add(name, is_metric=is_number and event in _OF_METRICS)

    def _add(self, name: str, *, is_metric: bool) -> None:
        shown = one_line(name)
        if shown in self.names or len(self.names) < MAX_COLUMNS:
            at = self._places[name] = self.names.setdefault(shown, len(self.names))
            if is_metric:
                self._numbers.add(at)
        elif len(self.left_out) < MAX_COLUMNS:
            self.left_out.add(name)

    def row(self, record: Record) -> list[str]:
        """Return the cells of `record`, whose fields were given their columns before."""
        event, named = _event_of(record), record.get(NON_FINITE)
        cells = [""] * len(self.names)
        is_short = self._is_short
        longest = _LONGEST_SHORT_TEXT if is_short else _LONGEST_TEXT
        left_out = _OF_THE_MACHINE if is_short and event == START else ()
        places, floats = [], []
        for name, value in record.items():
            at = self._places.get(name)
            if at is None or name in left_out:
                continue
            kind = type(value)
            if kind is float:
                places.append(at)
                floats.append(value)
            elif kind in _NUMBERS:
                cells[at] = repr(value)
            elif value is None:
                word = named.get(name) if type(named) is dict else None
                cells[at] = _CELL_OF_NON_FINITE.get(word, "") if type(word) is str else ""
            elif kind is str:
                cells[at] = "" if is_short and at in self._numbers else _text_cell(value, longest)
            elif not is_short:
                cells[at] = _text_cell(orjson.dumps(value).decode("utf-8"), longest)
        if floats:
            # All at once: `repr` of each would take half of the time of a row.
            data = orjson.dumps(floats)
            # A foreign file may have `1e999`.
            texts = map(repr, floats) if b"null" in data else data[1:-1].decode("ascii").split(",")
            for at, text in zip(places, texts, strict=True):
                cells[at] = text
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
