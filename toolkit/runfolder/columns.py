"""A record as one row of the wide table: which columns it has, and how a cell is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import orjson

from toolkit.runfolder.records import NON_FINITE, Record

FIRST_COLUMNS: Final = (
    *(
        "event",
        "time",
        "elapsed",
        "seq",
        "session",
        "global_step",
        "epoch",
        "train_loss",
        "val_loss",
        "lr",
        "grad_norm",
    ),
    *(
        "samples_per_sec",
        "sec_per_step",
        "gpu_mem_allocated",
        "gpu_mem_reserved",
        "cpu_mem_rss_mb",
        "gpu_util",
    ),
    "nan_inf_detected",
)
"""The columns every table begins with, so that what people look for stands in front of what a run adds."""

MAX_COLUMNS: Final = 2_000
"""A spreadsheet, pandas and a person all give up long before; what has no column is still in the records."""

_MAX_CELL: Final = 2_000

# A spreadsheet runs a cell that begins so as a formula. Numbers are written as numbers, so only text is marked.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
_NEEDS_QUOTES: Final = frozenset(',"')
_ONE_LINE: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\0": "\\0"})
_CELL_OF_NON_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


class Columns:
    """The columns of one table, in order of appearance."""

    def __init__(self, names: Iterable[str] = FIRST_COLUMNS) -> None:
        self.names: list[str] = []
        self.left_out: set[str] = set()
        self._index: dict[str, int] = {}
        for name in names:
            self._add(name)

    def add_new_of(self, record: Record) -> int:
        """Give a column to each field of `record` that has none; return how many were added."""
        added = 0
        for name in record:
            if name not in self._index and name != NON_FINITE:
                if len(self.names) < MAX_COLUMNS:
                    self._add(name)
                    added += 1
                elif len(self.left_out) < MAX_COLUMNS:
                    self.left_out.add(name)
        return added

    def drop_last(self, count: int) -> None:
        """Take the newest `count` columns away again."""
        for name in self.names[len(self.names) - count :]:
            del self._index[name]
        del self.names[len(self.names) - count :]

    def row(self, record: Record) -> list[str]:
        """Return the cells of `record`."""
        cells = [""] * len(self.names)
        index = self._index
        for name, value in record.items():
            at = index.get(name)
            if at is not None and value is not None:
                cells[at] = cell(value)
        named = record.get(NON_FINITE)
        if type(named) is dict:
            for name, text in named.items():
                at = index.get(name)
                if at is not None and not cells[at]:
                    cells[at] = _CELL_OF_NON_FINITE.get(text, "")
        return cells

    def header(self) -> str:
        """Return the first line of the table, without its newline."""
        return ",".join(_text_cell(name) for name in self.names)

    def _add(self, name: str) -> None:
        self._index[name] = len(self.names)
        self.names.append(name)


def cell(value: Any) -> str:
    """Return `value` as the text of one cell, quoted where it must be; never more than one line."""
    kind = type(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else _CELL_OF_NON_FINITE.get(str(value), str(value))
    if kind is int or kind is bool:
        return str(value)
    if kind is str:
        return _text_cell(value)
    return _text_cell(orjson.dumps(value).decode("utf-8"))


def _text_cell(text: str) -> str:
    if text.isalnum():
        return text
    if len(text) > _MAX_CELL:
        text = f"{text[:_MAX_CELL]}… [{len(text)} characters]"
    text = text.translate(_ONE_LINE)
    if text.startswith(_FORMULA_STARTS):
        text = f"'{text}"
    if not _NEEDS_QUOTES.isdisjoint(text):
        return '"' + text.replace('"', '""') + '"'
    return text
