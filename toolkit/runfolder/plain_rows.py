"""Rows of the table straight from lines of records, without making records of them.

The text of a number is the same in a line and in a cell, so a row is the line without its names, put into the order of
the columns. This takes a third of the time of parsing the lines and writing their numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from toolkit.runfolder.columns import Columns, Plan
from toolkit.runfolder.plain_lines import PlainLines, texts_in

_OF_NUMBERS = b"0123456789+-.eE,"
_WORDS = {b"false": b"False", b"true": b"True"}


class PlainRows(NamedTuple):
    """Rows without their newlines, and the `seq` of each."""

    rows: list[bytes]
    seqs: list[int]


class _Order(NamedTuple):
    plan: Plan
    fields: list[int | None]
    """The row after the event: which field is in a cell; None means empty cells."""
    commas: list[bytes]
    """For each of these, what is there without a field: the commas of the empty cells, but for one."""
    seq: int
    """Which field is the `seq`."""


class LineRows:
    """Makes rows for one table."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._lines = PlainLines()
        self._order: _Order | None = None
        """That of the lines before: most of the next ones have it, too."""

    def rows_of(self, lines: Sequence[bytes]) -> list[PlainRows] | None:
        """Return the rows of `lines`, those without a row left out; None if the records must be parsed.

        They must be unless each line is a record of numbers, its event apart, whose fields had a row before.
        """
        at_once = self._rows_of_same(lines)
        if at_once is not None:
            return [at_once]
        found = []
        for _, alike in groupby(lines, _count_quotes):
            group = list(alike)
            rows = self._rows_of_same(group)
            if rows is not None:
                found.append(rows)
            elif not self._are_without_rows(group):
                return None
        return found

    def _rows_of_same(self, lines: Sequence[bytes]) -> PlainRows | None:
        """Return the rows of lines that have the same fields; None if they do not, or are not plain."""
        texts = texts_in(lines[0])
        order = self._order_for(texts)
        columns = self._lines.columns_of(lines, texts) if order is not None else None
        if order is None or columns is None:
            return None
        for at, column in enumerate(columns):
            if column[0] in _WORDS:
                columns[at] = [_WORDS.get(value, b"?") for value in column]
        count, width = len(lines), len(order.fields) + 1
        cells = [b"\n"] * (count * width)
        for at, (field, commas) in enumerate(zip(order.fields, order.commas, strict=True), 1):
            cells[at::width] = [commas] * count if field is None else columns[field]
        text = b",".join(cells)
        # A value may be anything without a comma; only numbers may be left as they are.
        odd = text.translate(None, _OF_NUMBERS)
        if odd.count(b"\n") != count or odd.translate(None, b"\nFalsTru"):
            return None
        text = text.replace(b"\n", b"\n" + order.plan.event.encode("ascii"))
        try:
            seqs = list(map(int, columns[order.seq]))
        except ValueError:
            return None
        # Every row but the last has one more comma, from before the next.
        return PlainRows((text + b",").split(b"\n")[1:], seqs)

    def _order_for(self, texts: tuple[str, ...]) -> _Order | None:
        plan = self._columns.plan_for(texts[1], (texts[0], *texts[2:])) if texts else None
        if plan is None or not plan.is_complete:
            return None
        if self._order is None or self._order.plan is not plan:
            self._order = _make_order(plan, texts[2:])
        return self._order

    def _are_without_rows(self, lines: Sequence[bytes]) -> bool:
        return not any(self._columns.has_row({"event": event}) for event in _events_of(lines))


def _count_quotes(line: bytes) -> int:
    return line.count(b'"')


def _make_order(plan: Plan, fields: Sequence[str]) -> _Order | None:
    in_line = {name: at for at, name in enumerate(fields)}
    places: list[int | None] = []
    commas: list[bytes] = []
    for at in range(1, plan.columns):
        if at in plan.names_at:
            places.append(in_line[plan.names_at[at]])
            commas.append(b"")
        elif places and places[-1] is None:
            commas[-1] += b","
        else:
            places.append(None)
            commas.append(b"")
    if "seq" not in in_line or not places or places[-1] is not None:
        return None
    # The comma before the next row is the last of this one.
    if commas[-1]:
        commas[-1] = commas[-1][:-1]
    else:
        del places[-1], commas[-1]
    return _Order(plan, places, commas, in_line["seq"])


def _events_of(lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        parts = line.split(b'"', 4)
        is_event = len(parts) == 5 and parts[:3] == [b"{", b"event", b":"]
        yield parts[3].decode("utf-8", "replace") if is_event else ""
