"""SQLite databases of other programs, read without changing a byte next to them.

A plain connection, and even `mode=ro`, makes or changes `-wal` and `-shm` files; `immutable=1` does not, but is blind
to what is still in the write-ahead log. So a database with a log is copied, and the copy is opened.

A rollback journal is copied too, unless it names another file: SQLite deletes that, wherever it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import struct
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from toolkit.telemetry.importers.budget import Budget
from toolkit.telemetry.runfolder.safefile import open_regular

LARGEST_COPY: Final = 256 * 1024**2
_SIGNATURE: Final = b"SQLite format 3\0"
_WAL_HEADER: Final = 32
_WAL_MAGIC: Final = frozenset({0x377F0682, 0x377F0683})
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_TRIES: Final = 5
_TICK_NS: Final = 50_000_000
_NO_LOG: Final = b""
_STEPS: Final = 2_000
_LONGEST: Final = 16 * 1024**2
_FUNCTIONS: Final = frozenset({"count", "min", "max"})
_COPIES: Final = 2
_MOST_BUDGETS: Final = 10_000
# A damaged schema makes messages that are no UTF-8.
_FAILURES: Final = (sqlite3.Error, OverflowError, MemoryError, UnicodeError)

Signature = list[int]
"""Sizes and times of a database and its logs: the same as long as nothing was written."""

_COMPUTED: Final = re.compile(r"\bAS\s*\(", re.IGNORECASE)

_lock = threading.Lock()
_budgets: dict[str, tuple[Signature, Budget]] = {}
"""What may still be read of each database, by all connections together, until it changes."""
_copies: OrderedDict[str, tuple[Signature, _Copy]] = OrderedDict()


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

    def __init__(self, connection: sqlite3.Connection, tables: Sequence[str], copy: _Copy | None) -> None:
        self._connection = connection
        self.is_copy = copy is not None
        """Whether nothing can be written into it while it is read."""
        self.note = copy.note if copy is not None else ""
        """What may be missing or incomplete in it."""
        self._columns: dict[str, list[str]] = {}
        for table in tables:
            rows = self.rows("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,))
            for kind, sql in rows:
                words = str(sql).upper().split()
                # A view, a virtual table or a computed column would run code of the database's author.
                is_plain = words[:1] == ["CREATE"] and words[1:2] in (["TABLE"], ["TEMP"])
                if kind == "table" and is_plain and not _COMPUTED.search(str(sql)):
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
    budget = _budget_of(path)
    budget.begin(before.st_size)
    # With a log, the database file alone does not show everything.
    has_log = _is_wal_of(path) or _head_of(f"{path}-journal", 8) == _JOURNAL_MAGIC
    copy = _copy_of(path) if has_log else None
    opened_path = Path(os.path.abspath(path)) if copy is None else copy.path
    # Only a log needs more, and then everything SQLite may write is in the copy's own folder.
    name = f"{opened_path.as_uri()}{'' if copy is not None else '?immutable=1'}"
    try:
        connection = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)
    except _FAILURES as error:
        raise DatabaseError(f"the database cannot be opened ({_first_line(error)})") from error
    try:
        if not os.path.samestat(before, os.lstat(path)):
            raise DatabaseError("the database was replaced while it was opened")
        _restrict(connection, tables, budget)
        yield Database(connection, tables, copy)
    except _FAILURES as error:
        raise DatabaseError(f"the database cannot be read ({_first_line(error)})") from error
    finally:
        connection.close()
        budget.end()


def _budget_of(path: Path) -> Budget:
    key, signature = os.path.abspath(path), signature_of(path)
    with _lock:
        kept = _budgets.get(key)
        if kept is None or kept[0] != signature:
            while len(_budgets) >= _MOST_BUDGETS:
                _budgets.pop(next(iter(_budgets)))
            _budgets[key] = kept = (signature, Budget(max(signature[0::2])))
    return kept[1]


def quoted(name: str) -> str:
    """Return a name of a table or column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _is_wal_of(path: Path) -> bool:
    """Return whether the write-ahead log of a database has frames, and pages of the database's size."""
    wal = _head_of(f"{path}-wal", _WAL_HEADER + 1)
    if len(wal) <= _WAL_HEADER:
        return False
    magic, _, page_size = struct.unpack_from(">3I", wal)
    return magic in _WAL_MAGIC and page_size == _page_size(_head_of(path, 18))


def _page_size(head: bytes) -> int:
    (size,) = struct.unpack(">H", head[16:18].ljust(2, b"\0"))
    return 65536 if size == 1 else int(size)


class _Copy:
    """A folder of its own with a copy of a database, and with nothing else but its logs, which SQLite applies there."""

    def __init__(self, path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="telemetry-sqlite-")
        self.path = Path(self._folder.name) / "copy.db"
        self.note = ""
        self._add(path, "")
        with contextlib.suppress(FileNotFoundError):
            self._add(path, "-journal")
            journal = f"{self.path}-journal"
            with open(journal, "rb") as file:
                file.seek(max(0, os.path.getsize(journal) - len(_JOURNAL_MAGIC)))
                names_another = file.read() == _JOURNAL_MAGIC
            if names_another:
                # SQLite would delete that file.
                os.unlink(journal)
                self.note = (
                    "its rollback journal names another file and was left alone: "
                    "the last change may be incomplete"
                )
        if _is_wal_of(path):
            self._add(path, "-wal")

    def _add(self, path: Path, ending: str) -> None:
        with _opened(f"{path}{ending}") as source, open(f"{self.path}{ending}", "xb") as target:
            # No more than was allowed, however fast it grows.
            for _ in range(LARGEST_COPY // 1024**2 + 1):
                target.write(data := source.read(1024**2))
                if not data:
                    break


def _copy_of(path: Path) -> _Copy:
    """Return a copy of the database that is as after a crash at one time.

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
                    "opening it in place would write next to it"
                )
            copy = _Copy(path)
            _, counter_after, generation_after = stamp_of(path)
            # Without a log, only an unchanged database was not written meanwhile.
            if generation == generation_after and (generation != _NO_LOG or counter == counter_after):
                if is_settled(before) and signature_of(path) == before:
                    _copies[key] = (before, copy)
                    while len(_copies) > _COPIES:
                        _copies.popitem(last=False)
                return copy
    raise DatabaseError("the database changed while it was copied; try again")


def _generation(path: Path) -> bytes:
    """Return the salts of the write-ahead log, which are new when it begins again, and the nonce of the journal."""
    journal = _head_of(f"{path}-journal", 16)[12:]
    return _head_of(f"{path}-wal", _WAL_HEADER) + (journal if any(journal) else _NO_LOG)


def _head_of(path: Path | str, count: int) -> bytes:
    try:
        with _opened(path) as file:
            return file.read(count)
    except OSError:
        return b""


def _opened(path: Path | str) -> BinaryIO:
    return os.fdopen(open_regular(Path(path)), "rb")


def _restrict(connection: sqlite3.Connection, tables: Sequence[str], budget: Budget) -> None:
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

    def text(content: bytes) -> str:
        # Rows may share one long text.
        budget.spend(0, len(content))
        return content.decode("utf-8", "replace")

    connection.text_factory = text
    connection.set_progress_handler(budget.is_over, _STEPS)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
