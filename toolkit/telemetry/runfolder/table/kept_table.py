"""A table that is about to be replaced is kept where it has more in it than the new one."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from toolkit.telemetry.runfolder.safefile import open_regular

_NAME: Final = "metrics.earlier"
_MOST_KEPT: Final = 100
_LONGEST_LINE: Final = 8 * 1024 * 1024
"""Characters: a row has 2,000 cells of 2,000 letters at most, and a file of another kind may be one line."""


@dataclass(frozen=True, slots=True)
class _Content:
    rows: int
    cells: int
    """Those that are not empty, in all rows."""
    columns: frozenset[str]

    def is_in(self, other: _Content) -> bool:
        return self.rows <= other.rows and self.cells <= other.cells and self.columns <= other.columns


def keep_fuller(table: Path, new: Path) -> Path | None:
    """Give `table` a second name if it has rows, columns or cells that `new` has fewer of; return that name.

    `new` is what will be renamed to `table`. A table that cannot be read as one is kept, too.

    Raises:
        OSError: it could not be kept.
    """
    try:
        descriptor = open_regular(table)
    except OSError:
        # There is no table, or something else such as a link to a file elsewhere, which is left alone.
        return None
    old = _content_of(descriptor)
    if old is not None:
        if not old.rows:
            return None
        found = _content_of(open_regular(new))
        if found is not None and old.is_in(found):
            return None
    for kept in _free_names(table):
        try:
            os.link(table, kept)
        except FileExistsError:
            continue
        except OSError:
            # Not every file system has second names.
            if os.path.lexists(kept):
                continue
            os.rename(table, kept)
        return kept
    raise FileExistsError(f"there are {_MOST_KEPT} earlier tables in {table.parent} already")


def _free_names(table: Path) -> Iterator[Path]:
    yield table.with_name(f"{_NAME}.csv")
    for number in range(2, _MOST_KEPT + 1):
        yield table.with_name(f"{_NAME}-{number}.csv")


def _content_of(descriptor: int) -> _Content | None:
    """Return the content of a table without an incomplete last line; None if it is not a table."""
    with open(descriptor, encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(_ended_lines(file))
        rows = cells = 0
        try:
            header = next(reader, [])
            for row in reader:
                # Not those of an empty line.
                rows += bool(row)
                cells += sum(map(bool, row))
        except csv.Error:
            return None
    return _Content(rows, cells, frozenset(header))


def _ended_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if line.endswith(("\n", "\r")):
            yield line
        elif len(line) >= _LONGEST_LINE:
            raise csv.Error("a line that is longer than any row")
