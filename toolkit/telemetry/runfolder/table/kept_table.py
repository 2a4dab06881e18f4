"""A table that is about to be replaced is kept where it has more in it than the new one."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from toolkit.telemetry.runfolder.safefile import open_regular

_MOST_KEPT: Final = 100
_LONGEST_LINE: Final = 8 * 1024 * 1024
"""Characters: a row has 2,000 cells of 2,000 letters at most, and a file of another kind may be one line."""


def keep_fuller(table: Path, new: Path) -> Path | None:
    """Give `table` a second name if it has rows, columns or cells that `new` has fewer of; return that name.

    `new` is what will be renamed to `table`. A table that cannot be read as one is kept, too.

    Raises:
        OSError: it could not be kept.
    """
    try:
        old = _content_of(open_regular(table))
    except OSError:
        # There is no table, or something else such as a link to a file elsewhere, which is left alone.
        return None
    found = _content_of(open_regular(new)) if old is not None else None
    if old is not None and found is not None:
        (rows, cells, columns), (new_rows, new_cells, new_columns) = old, found
        if not rows or (rows <= new_rows and cells <= new_cells and columns <= new_columns):
            return None
    for number in range(1, _MOST_KEPT + 1):
        kept = table.with_name(f"metrics.earlier{f'-{number}' if number > 1 else ''}.csv")
        if not os.path.lexists(kept):
            os.rename(table, kept)
            return kept
    raise FileExistsError(f"there are {_MOST_KEPT} earlier tables in {table.parent} already")


def _content_of(descriptor: int) -> tuple[int, int, frozenset[str]] | None:
    """Return the number of rows and of cells that are not empty, and the columns; None if it is not a table."""
    rows = cells = 0
    with open(descriptor, encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(_ended_lines(file))
        try:
            header = next(reader, [])
            for row in reader:
                # Not those of an empty line.
                rows += bool(row)
                cells += sum(map(bool, row))
        except csv.Error:
            return None
    return rows, cells, frozenset(header)


def _ended_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if line.endswith(("\n", "\r")):
            yield line
        elif len(line) >= _LONGEST_LINE:
            raise csv.Error("a line that is longer than any row")
