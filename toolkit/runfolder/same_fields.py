"""Consecutive records with the same fields: most of a run, and cheaper to read together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from toolkit.runfolder.records import Record

_FIRST_PART: Final = 8


class Run:
    """Consecutive records with the same fields in the same order."""

    __slots__ = ("_columns", "names", "records")

    def __init__(self, names: tuple[str, ...], records: Sequence[Record]) -> None:
        self.names = names
        self.records = records
        self._columns: Mapping[str, Sequence[Any]] | None = None

    @property
    def columns(self) -> Mapping[str, Sequence[Any]]:
        """The values of each field, in the order of the records."""
        if self._columns is None:
            self._columns = columns_of(self.names, self.records)
        return self._columns


class FixedRecords(list[Record]):
    """Records that are not changed, so that what several readers want to know of them is found out once."""

    __slots__ = ("_runs",)

    _runs: list[Run]

    @property
    def runs(self) -> list[Run]:
        """The records in runs."""
        try:
            return self._runs
        except AttributeError:
            self._runs = list(_find_runs(self))
            return self._runs


def columns_of(names: tuple[str, ...], records: Sequence[Record]) -> Mapping[str, Sequence[Any]]:
    """Return the values of each field of records with these names, in this order."""
    return dict(zip(names, zip(*map(dict.values, records), strict=True), strict=True))


def runs_of(records: Sequence[Record]) -> Sequence[Run]:
    """Return the records in runs."""
    return records.runs if isinstance(records, FixedRecords) else list(_find_runs(records))


def has_event(records: Sequence[Record], event: str) -> bool:
    """Return whether one of the records has this event."""
    for run in runs_of(records):
        if len(run.records) < _FIRST_PART:
            if event in [record.get("event") for record in run.records]:
                return True
        elif event in run.columns.get("event", ()):
            return True
    return False


def runs_of_same_fields(records: Sequence[Record]) -> Iterator[tuple[tuple[str, ...], Sequence[Record]]]:
    """Yield the records in groups, each with the names of their fields; in a group, names and order are the same."""
    for run in runs_of(records):
        yield run.names, run.records


def _find_runs(records: Sequence[Record]) -> Iterator[Run]:
    first, count = 0, len(records)
    while first < count:
        names = tuple(records[first])
        end = _end_of_run(records, first + 1, names)
        yield Run(names, records[first:end])
        first = end


def _end_of_run(records: Sequence[Record], first: int, names: tuple[str, ...]) -> int:
    """Return where, from `first` on, the records with these fields end."""
    count, at_once = len(records), _FIRST_PART
    while first < count:
        # Longer and longer parts: a long run takes few of them, and in a mixed file little is looked at in vain.
        part = records[first : first + at_once]
        if list(map(tuple, part)).count(names) != len(part):
            while tuple(records[first]) == names:
                first += 1
            return first
        first += len(part)
        at_once *= 2
    return count
