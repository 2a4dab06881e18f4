"""Consecutive records with the same fields: most of a run, and cheaper to read together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.runfolder.records import Record


def runs_of_same_fields(records: Sequence[Record]) -> Iterator[tuple[tuple[str, ...], Sequence[Record]]]:
    """Yield the records in groups, each with the names of their fields; in a group, names and order are the same."""
    first, count = 0, len(records)
    while first < count:
        names = tuple(records[first])
        end = first + 1
        while end < count and tuple(records[end]) == names:
            end += 1
        yield names, records[first:end]
        first = end
