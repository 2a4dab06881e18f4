"""Runs in SQLite databases: new rows are those after the last row's number."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from toolkit.telemetry.importers.files import Source
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.framing import sqlite_view
from toolkit.telemetry.importers.framing.sqlite_view import Database
from toolkit.telemetry.importers.source import (
    BATCH_BYTES,
    Batch,
    Builder,
    RunSource,
    SourceInfo,
)

BYTES_PER_ROW = 256
"""What a row counts as, where a batch is limited by bytes."""
_TRIES = 6
_PAUSE_S = 0.01


class DatabaseSource(Source):
    """One run in a database."""

    tables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, info: SourceInfo, path: str) -> None:
        super().__init__(info)
        self._path = path

    @abstractmethod
    def take(self, database: Database, state: dict[str, Any], most: int, out: Builder) -> None:
        """Add at most `most` new rows, and keep in `state` how far that is."""

    @staticmethod
    def new_rows(
        database: Database, query: str, values: Sequence[Any], state: dict[str, Any], most: int
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query after the last one that was read, and count them; a row's number comes first."""
        for row, *cells in database.rows(query, (*values, state.get("row", 0), most)):
            state["row"], state["count"] = row, state["count"] + 1
            yield cells

    @abstractmethod
    def is_same(self, database: Database, state: dict[str, Any]) -> bool:
        """Return whether the rows that were read up to `state` are still there."""

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        """Return the rows that are new since `cursor`."""
        path = self.info.root / self._path
        out = Builder()
        out.batch.cursor = cursor
        try:
            signature = sqlite_view.signature_of(path)
            if cursor is not None and cursor.get("signature") == signature:
                return out.batch
            self._last_sign = max(signature[1::2]) / 1e9
            found = self._read_whole(path, cursor, max(max_bytes // BYTES_PER_ROW, 1))
            if found is None:
                if cursor is None:
                    self.info.note("the database was written all the time while it was read; try again")
                return out.batch
            out, state = found
        except OSError as error:
            out.pass_over(str(error.strerror or error)[:300])
            self.info.note(f"{Path(self._path).name}: {str(error.strerror or error)[:300]}")
            return out.batch
        batch = out.batch
        is_done = not batch.more and sqlite_view.is_settled(signature)
        state["signature"] = signature if is_done else None
        batch.cursor = state
        self._growth.take(batch, cursor)
        return batch

    def _read_whole(
        self, path: Path, kept: dict[str, Any] | None, most: int
    ) -> tuple[Builder, dict[str, Any]] | None:
        """Read new rows, again if the database was written meanwhile or seems to have lost rows.

        Nothing is locked, so a writer may be in the middle of a change. Returns None if it always was.
        """
        for attempt in range(_TRIES):
            is_last = attempt == _TRIES - 1
            out = Builder()
            state: dict[str, Any] = dict(kept or {})
            try:
                stamp = sqlite_view.stamp_of(path)
                with sqlite_view.opened(path, self.tables) as database:
                    is_gone = kept is not None and not self.is_same(database, state)
                    if is_gone:
                        state, out.batch.replaced = {}, True
                    if not is_gone or is_last:
                        before = state.setdefault("count", 0)
                        self.take(database, state, most, out)
                        out.batch.more = state["count"] - before == most
                    if database.note:
                        self.info.note(f"{path.name}: {database.note}")
                    is_whole = database.is_copy or sqlite_view.stamp_of(path) == stamp
                if is_whole and (not is_gone or is_last):
                    break
                if is_last:
                    # It is written all the time: the next read has better luck.
                    return None
            except sqlite_view.DatabaseError:
                if is_last:
                    raise
            time.sleep(_PAUSE_S)
        if kept is not None and out.batch.replaced:
            self.info.note("rows that were read before were deleted or changed: it was read again")
        return out, state


def runs_of_databases(
    folder: Folder,
    endings: tuple[str, ...],
    runs_in: Callable[[Path, str], Sequence[RunSource]],
    *,
    skipped: frozenset[str] = frozenset(),
) -> Found:
    """Return the runs of each database in a folder; `skipped` folders next to them hold no others."""
    found = Found()
    for name in sorted(folder.files):
        if name.endswith(endings) and sqlite_view.is_database(folder.head(name, 100)):
            runs = runs_in(folder.root, folder.below(name))
            if runs:
                found.sources += runs
                found.taken |= {name}
                found.skipped = skipped
    return found
