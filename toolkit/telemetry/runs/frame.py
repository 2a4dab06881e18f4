"""Runs as pandas DataFrames: `runs("logs")`, `steps("logs", ["run", "step", "loss"])`, `sql("select …", "logs")`.

The tables are those of `telemetry sql`, by the same code; a value that a record does not have is NaN.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from toolkit.telemetry.runs.tables.query import query
from toolkit.telemetry.runs.tables.run_tables import TABLES, RunTables

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["evals", "findings", "requests", "runs", "settings", "spans", "sql", "steps", "system"]

Folders = str | os.PathLike[str] | Collection[str | os.PathLike[str]]
_LOGS: Final = "logs"


class _Reader(Protocol):
    def __call__(self, folders: Folders = _LOGS, columns: Collection[str] | None = None) -> pd.DataFrame:
        """Return a table of the runs in `folders`, with all columns or at least `columns`, else ValueError."""


def sql(statement: str, folders: Folders = _LOGS) -> pd.DataFrame:
    """Return the answer to one SELECT over the runs in `folders`. Raises QueryError, a ValueError."""
    answer: pd.DataFrame = query(statement, _tables(folders)).to_pandas()
    return answer


def _tables(folders: Folders) -> RunTables:
    given = [folders] if isinstance(folders, (str, os.PathLike)) else folders
    tables = RunTables([Path(folder) for folder in given], logs=Path(_LOGS))
    if not tables.runs():
        raise FileNotFoundError(f"no run found in {folders}")
    return tables


def _reader(name: str) -> _Reader:
    def read(folders: Folders = _LOGS, columns: Collection[str] | None = None) -> pd.DataFrame:
        tables = _tables(folders)
        known = tables.columns(name)
        have = {column.casefold() for column in known}
        for column in columns or ():
            if column.casefold() not in have:
                near = difflib.get_close_matches(column, known, n=3) or known
                raise ValueError(f"{name} has no column {column!r}; there is {', '.join(near)}")
        found: pd.DataFrame = tables.table(name, columns).to_pandas()
        return found

    return read


runs, settings, steps, evals, system, spans, findings, requests = map(_reader, TABLES)
