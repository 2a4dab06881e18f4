"""SQLite databases of other programs, read without changing a byte beside them.

A plain connection, and even `mode=ro`, makes or changes `-wal` and `-shm` files; `immutable=1` does not, but is blind
to what is still in the write-ahead log. So a database with a log is copied, and the copy is opened.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.runfolder.safefile import open_regular

LARGEST_COPY: Final = 256 * 1024**2
_SIGNATURE: Final = b"SQLite format 3\0"
_WAL_HEADER: Final = 32
_TRIES: Final = 5
_TICK_NS: Final = 50_000_000
_NO_LOG: Final = b""
_LIMIT_S: Final = 5.0
_STEPS: Final = 20_000
_LONGEST: Final = 16 * 1024**2
_FUNCTIONS: Final = frozenset({"count", "min", "max"})
_COPIES: Final = 2
# A damaged schema makes messages that are no UTF-8.
_FAILURES: Final = (sqlite3.Error, OverflowError, MemoryError, UnicodeError)

Signature = list[int]
"""Sizes and times of a database and its logs: the same as long as nothing was written."""

_lock = threading.Lock()
_copies: OrderedDict[str, tuple[Signature, tempfile.TemporaryDirectory[str]]] = OrderedDict()


class DatabaseError(OSError):
    """A database that cannot be read; the message says why."""


def is_database(head: bytes) -> bool:
    """Return whether a file begins like a SQLite database."""
    return head.startswith(_SIGNATURE)


def signature_of(path: Path) -> Signature:
    """Return what changes when the database is written.

    Raises:
        OSError: it is not there.
    """
    found = []
    for ending in ("", "-wal", "-journal"):
        try:
            status = os.lstat(f"{path}{ending}")
        except FileNotFoundError:
            if not ending:
                raise
            found += [-1, -1]
        else:
            found += [status.st_size, status.st_mtime_ns]
    return found


def stamp_of(path: Path) -> tuple[Signature, bytes, bytes]:
    """Return what changes with every transaction that is written into the database file, however fast they follow.

    File times alone do not: a clock tick is longer than a transaction.

    Raises:
        OSError: it is not there.
    """
    head = _head_of(path, 100)
    return signature_of(path), head[24:28] + head[92:96], _generation(path)


def is_settled(signature: Signature) -> bool:
    """Return whether the last write was long enough ago for another one to have another time."""
    return time.time_ns() - max(signature[1::2]) > _TICK_NS


class Database:
    """An open database with a few named tables."""

    def __init__(self, connection: sqlite3.Connection, tables: Sequence[str], *, is_copy: bool) -> None:
        self._connection = connection
        self.is_copy = is_copy
        """Whether nothing can be written into it while it is read."""
        self._columns: dict[str, list[str]] = {}
        for table in tables:
            rows = self.rows("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,))
            for kind, sql in rows:
                words = str(sql).upper().split()
                # A view or a virtual table would run code of the database's author.
                if kind == "table" and words[:1] == ["CREATE"] and words[1:2] in (["TABLE"], ["TEMP"]):
                    cursor = connection.execute(f"SELECT * FROM {quoted(table)} LIMIT 0")
                    self._columns[table] = [column[0] for column in cursor.description]

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table is there with these columns."""
        return table in self._columns and all(column in self._columns[table] for column in columns)

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return self._columns.get(table, [])

    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.

        Raises:
            DatabaseError: the database is damaged, or the query takes too long.
        """
        try:
            # Not `yield from`: it would close the cursor when the reader stops early, perhaps after the connection.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row
        except _FAILURES as error:
            raise DatabaseError(f"the database cannot be read ({_first_line(error)})") from error

    def one(self, query: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the first row; None if there is none."""
        for row in self.rows(query, values):
            return row[0]
        return None


@contextlib.contextmanager
def opened(path: Path, tables: Sequence[str]) -> Iterator[Database]:
    """Open the database at `path` for SELECT on `tables`.

    Raises:
        DatabaseError: it cannot be read.
        OSError: it is not there, or is not a regular file.
    """
    os.close(open_regular(path))
    before = os.lstat(path)
    if _has_log(path):
        folder = _copy_of(path)
        name = f"file:{_uri(Path(folder.name) / 'copy.db')}"
    else:
        folder = None
        name = f"file:{_uri(Path(os.path.abspath(path)))}?immutable=1"
    try:
        connection = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)
    except _FAILURES as error:
        raise DatabaseError(f"the database cannot be opened ({_first_line(error)})") from error
    try:
        if not os.path.samestat(before, os.lstat(path)):
            raise DatabaseError("the database was replaced while it was opened")
        _restrict(connection, tables)
        yield Database(connection, tables, is_copy=folder is not None)
    except _FAILURES as error:
        raise DatabaseError(f"the database cannot be read ({_first_line(error)})") from error
    finally:
        connection.close()


def quoted(name: str) -> str:
    """Return a name of a table or column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _has_log(path: Path) -> bool:
    """Return whether there is something that the database file alone does not show."""
    for ending, at_least in (("-wal", _WAL_HEADER), ("-journal", 0)):
        try:
            if os.lstat(f"{path}{ending}").st_size > at_least:
                return True
        except OSError:
            pass
    return False


def _copy_of(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder with a copy of the database and its logs that SQLite reads as after a crash at one moment.

    The database is copied first. As long as its log belongs to the same transaction, or was not begun again, the log
    has every page that was written into the database meanwhile.
    """
    key = os.path.abspath(path)
    with _lock:
        for _ in range(_TRIES):
            before, counter, generation = stamp_of(path)
            kept = _copies.get(key)
            if kept is not None and kept[0] == before:
                _copies.move_to_end(key)
                return kept[1]
            if max(before[0::2]) > LARGEST_COPY:
                raise DatabaseError(
                    f"its write-ahead log is in use and it has {max(before[0::2]):,} bytes: too large to copy, and "
                    "opening it in place would write beside it"
                )
            folder = tempfile.TemporaryDirectory(prefix="telemetry-sqlite-")
            for ending in ("", "-wal", "-journal"):
                try:
                    with os.fdopen(open_regular(Path(f"{path}{ending}")), "rb") as source:
                        with open(os.path.join(folder.name, f"copy.db{ending}"), "xb") as target:
                            shutil.copyfileobj(source, target, 1024**2)
                except FileNotFoundError:
                    if not ending:
                        raise
            _, counter_after, generation_after = stamp_of(path)
            is_same = generation == generation_after == _generation(Path(folder.name) / "copy.db")
            # Without a log, only an unchanged database was not written meanwhile.
            if is_same and (generation != _NO_LOG or counter == counter_after):
                if is_settled(before) and signature_of(path) == before:
                    _copies[key] = (before, folder)
                    while len(_copies) > _COPIES:
                        _copies.popitem(last=False)
                return folder
    raise DatabaseError("the database changed while it was copied; try again")


def _generation(path: Path) -> bytes:
    """Return the salts of the write-ahead log, which are new when it begins again, and the nonce of the journal."""
    journal = _head_of(f"{path}-journal", 16)[12:]
    return _head_of(f"{path}-wal", _WAL_HEADER) + (journal if any(journal) else _NO_LOG)


def _head_of(path: Path | str, count: int) -> bytes:
    try:
        with os.fdopen(open_regular(Path(path)), "rb", buffering=0) as file:
            return file.read(count)
    except OSError:
        return b""


def _restrict(connection: sqlite3.Connection, tables: Sequence[str]) -> None:
    connection.enable_load_extension(False) if hasattr(connection, "enable_load_extension") else None
    for setting in ("query_only = 1", "trusted_schema = 0", "cell_size_check = 1", "mmap_size = 0"):
        connection.execute(f"PRAGMA {setting}")
    if hasattr(connection, "setlimit"):  # from Python 3.11 on
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 20)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 2)
    allowed = frozenset({*tables, "sqlite_master"})

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and first in allowed):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    connection.text_factory = lambda content: content.decode("utf-8", "replace")
    end = time.monotonic() + _LIMIT_S
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)


def _uri(path: Path) -> str:
    return path.as_uri().removeprefix("file:")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
