"""Rows of the table straight from lines of records, without making records of them.

Nearly all lines of a run are steps with the same fields, and every value is a number. The text of a number is the same
in a line and in a cell, so a row is the line without its names, put into the order of the columns. This takes a third
of the time of parsing the lines and writing their numbers again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from toolkit.runfolder.columns import Columns, Plan

_FEWEST = 16
"""So many lines are worth a pattern: to make one takes a millisecond."""
_MOST_PATTERNS = 64
_OF_NUMBERS = b"0123456789+-.eE,"
_WORDS = {b"false": b"False", b"true": b"True"}


class PlainRows(NamedTuple):
    """Rows without their newlines, and the `seq` of each."""

    rows: list[bytes]
    seqs: list[int]


class _Pattern(NamedTuple):
    plan: Plan
    lines: re.Pattern[bytes]
    """Matches one line; its groups are the values of the fields after the event."""
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
        self._patterns: dict[bytes, _Pattern] = {}

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
        pattern = self._pattern_for(lines[0], is_worth_it=len(lines) >= _FEWEST)
        if pattern is None:
            return None
        found = pattern.lines.findall(b"\n".join(lines))
        count = len(lines)
        if len(found) != count:
            return None
        columns: list[Sequence[bytes]] = list(zip(*found, strict=True))
        for at, column in enumerate(columns):
            if column[0] in _WORDS:
                columns[at] = [_WORDS.get(value, b"?") for value in column]
        width = len(pattern.fields) + 1
        cells = [b"\n"] * (count * width)
        for at, (field, commas) in enumerate(zip(pattern.fields, pattern.commas, strict=True), 1):
            cells[at::width] = [commas] * count if field is None else columns[field]
        text = b",".join(cells)
        # What matched may be anything without a comma; only numbers may be left as they are.
        odd = text.translate(None, _OF_NUMBERS)
        if odd.count(b"\n") != count or odd.translate(None, b"\nFalsTru"):
            return None
        text = text.replace(b"\n", b"\n" + pattern.plan.event.encode("ascii"))
        try:
            seqs = list(map(int, columns[pattern.seq]))
        except ValueError:
            return None
        # Every row but the last has one more comma, from before the next.
        return PlainRows((text + b",").split(b"\n")[1:], seqs)

    def _pattern_for(self, line: bytes, *, is_worth_it: bool) -> _Pattern | None:
        names = b'"'.join(line.split(b'"')[1::2])
        known = self._patterns.get(names)
        if known is None and not is_worth_it:
            return None
        plan = self._plan_for(names)
        if plan is None or known is None or known.plan is not plan:
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            known = _make_pattern(plan, names) if plan is not None else None
            if known is not None:
                self._patterns[names] = known
        return known

    def _plan_for(self, names: bytes) -> Plan | None:
        if names.count(b'"') < 3 or b"\\" in names:
            return None
        try:
            first, event, *fields = names.decode("utf-8").split('"')
        except UnicodeDecodeError:
            return None
        plan = self._columns.plan_for(event, (first, *fields)) if first == "event" else None
        return plan if plan is not None and plan.is_complete else None

    def _are_without_rows(self, lines: Sequence[bytes]) -> bool:
        return not any(self._columns.has_row({"event": event}) for event in _events_of(lines))


def _count_quotes(line: bytes) -> int:
    return line.count(b'"')


def _make_pattern(plan: Plan, names: bytes) -> _Pattern | None:
    _, event, *fields = names.split(b'"')
    in_line = {name.decode("utf-8"): at for at, name in enumerate(fields)}
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
    values = b"".join(b',"%b":([^,]+)' % re.escape(name) for name in fields[:-1])
    pattern = b'^\\{"event":"%b"%b,"%b":([^}]+)\\}$' % (event, values, re.escape(fields[-1]))
    return _Pattern(plan, re.compile(pattern, re.MULTILINE), places, commas, in_line["seq"])


def _events_of(lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        parts = line.split(b'"', 4)
        is_event = len(parts) == 5 and parts[:3] == [b"{", b"event", b":"]
        yield parts[3].decode("utf-8", "replace") if is_event else ""
