"""Copies the files that records point to, such as sample images, into an object store: each content once.

A file is stored under its sha256, and then a row of `objects` says which path of which run it is. Killed in between,
the next try finds the content there and adds the row. This has a thread and connections of its own: however slow the
store is, records are shipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from toolkit.telemetry.core.outbox import Backoff, Failures
from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.binary_form import types_of
from toolkit.telemetry.fleet.engine import Asks, Engine, EngineError, chunks, quote
from toolkit.telemetry.fleet.schema import require_tables
from toolkit.telemetry.fleet.stores import FileError, Store, StoreError, read_at_most
from toolkit.telemetry.fleet.tail import FILE_EVENTS, RunKey, file_in
from toolkit.telemetry.runfolder.evidence.code_snapshot import CODE
from toolkit.telemetry.runfolder.layout import (
    CONTROL,
    LABELS,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    OUTPUT_LOG,
    OUTPUT_TIMES,
    RANKS,
)
from toolkit.telemetry.runfolder.safefile import NotInside, parts_inside, read_inside, too_large

MAX_BYTES: Final = 20_000_000
"""Larger files stay on their node; a page would not show them either."""

EVERY_S: Final = 2.0
_ROWS_AT_ONCE: Final = 100
_TRIES: Final = 8
"""How often a file is tried that is missing: for two minutes, then again when the run is verified."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
OWN_NAMES: Final = frozenset(
    {CODE, CONTROL, LABELS, MANIFEST, METRICS_CSV, METRICS_JSONL, OUTPUT_LOG, OUTPUT_TIMES, RANKS}
)
"""What a run writes itself. What it printed, and its code, never go to an engine, whatever its records say."""
_NOT_ON_WINDOWS: Final = re.compile(r'[\\:*?"<>|]')
_TYPES: Final = types_of(
    "project String, run_id String, path String, sha256 String, bytes UInt64, version UInt64, created Date"
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The newest content of a file that was stored."""

    sha256: str
    bytes: int
    version: int
    """When the file was last changed, in ms, or one more than the version before."""

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"objects/{self.sha256}"


def checked_path(path: str) -> tuple[str, ...]:
    """Return the parts of the path of a stored file: below the run's folder, not hidden, none of the run's own files.

    Raises:
        NotInside: it is something else.
    """
    parts = parts_inside(path)
    if parts[0] in OWN_NAMES or any(part.startswith(".") for part in parts):
        raise NotInside(f"{path[:100]!r} is not a file that records may point to")
    if os.name == "nt" and _NOT_ON_WINDOWS.search(path):
        raise NotInside(f"{path[:100]!r} is not a valid file name on this system")
    return parts


def stored_objects(engine: Asks, run_ids: Iterable[str]) -> dict[str, dict[str, StoredObject]]:
    """Return the newest content of each stored file, by run and path; a row whose hash is not one is left out.

    Raises:
        EngineError: the engine did not answer.
    """
    ids = list(run_ids)
    found: dict[str, dict[str, StoredObject]] = {run_id: {} for run_id in ids}
    for chunk in chunks(ids):
        some = ", ".join(map(quote, chunk))
        rows = engine.rows(
            f"SELECT run_id, path, sha256, bytes, version FROM objects FINAL WHERE run_id IN ({some}) ORDER BY path",
            *("String", "String", "String", "UInt64", "UInt64"),
        )
        for run_id, path, sha256, size, version in rows:
            # No other name is ever asked for.
            if _SHA256.fullmatch(sha256):
                found[run_id][path] = StoredObject(sha256, size, version)
    return found


def read_object(store: Store, wanted: StoredObject, max_bytes: int) -> bytes:
    """Return the content of a stored file, as it was shipped.

    Raises:
        StoreError: the store does not answer, has no such file, or has another content.
    """
    data = read_at_most(store, wanted.name, max_bytes)
    if hashlib.sha256(data).hexdigest() != wanted.sha256:
        raise FileError(f"{wanted.name} in {store} differs from what was shipped")
    return data


def pointed_paths(engine: Engine, run_ids: Iterable[str]) -> dict[str, dict[str, None]]:
    """Return the paths that the shipped records of each run point to.

    Raises:
        EngineError: the engine did not answer.
    """
    ids = list(run_ids)
    found: dict[str, dict[str, None]] = {run_id: {} for run_id in ids}
    events = ", ".join(quote(event) for event in sorted(FILE_EVENTS))
    for chunk in chunks(ids):
        some = ", ".join(map(quote, chunk))
        for run_id, text in engine.iterate(
            "SELECT run_id, JSONExtractString(line, 'path') FROM records "
            f"WHERE run_id IN ({some}) AND event IN ({events})",
            "String",
            "String",
        ):
            path = file_in({"path": text})
            if path is not None:
                found[run_id][path] = None
    return found


def missing_objects(engine: Engine, run_ids: Sequence[str]) -> tuple[int, int]:
    """Return how many files the shipped records of these runs point to, and how many of them are not stored.

    Raises:
        EngineError: the engine did not answer.
    """
    wanted, stored = pointed_paths(engine, run_ids), stored_objects(engine, run_ids)
    missing = sum(path not in stored[run_id] for run_id, paths in wanted.items() for path in paths)
    return sum(map(len, wanted.values())), missing


@dataclass(slots=True)
class ObjectTotals(Failures):
    """What was done since the start; `last_error` is empty once the store or the engine answers again."""

    stored: int = 0
    """Files that are in the store, with a row in the engine."""
    bytes: int = 0
    """Bytes that were sent to the store."""
    waiting: int = 0


class _Wanted(Backoff):
    """A file that waits to be stored."""

    tries = 0


@dataclass(slots=True)
class _Run:
    key: RunKey
    folder: Path
    stored: dict[str, StoredObject] | None = None
    """None until the engine was asked."""
    waiting: dict[str, _Wanted] = field(default_factory=dict)
    checks_store: bool = False
    """Whether the store is asked for files that have a row, too."""


class ObjectShipper:
    """Stores the files of the runs that were added."""

    def __init__(self, address: Address, store: Store, *, say: Callable[[str], None] | None = None) -> None:
        self.store = store
        self.totals = ObjectTotals()
        self._engine = Engine(address)
        self._is_connected = False
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._runs: dict[str, _Run] = {}
        self._rows: list[tuple[_Run, str, StoredObject]] = []
        self._backoff = Backoff()
        self._say = say

    # ------------------------------------------------------------ what the shipper calls; none of it waits

    def add_run(self, key: RunKey, folder: Path) -> None:
        """Store the files that records of the run point to, if they are not stored yet."""
        self._inbox.put(lambda: self._add(key, folder))

    def add_files(self, run_id: str, paths: Sequence[str]) -> None:
        """Store files that new records of a run point to."""
        self._inbox.put(lambda: self._want(run_id, paths))

    def verify(self, run_id: str) -> None:
        """Compare all files of a run with the engine and the store."""
        self._inbox.put(lambda: self._recheck(run_id))

    @property
    def is_behind(self) -> bool:
        """Whether files wait, or the store or the engine did not answer; refused files do not count."""
        return bool(self.totals.waiting) or self._backoff.reason is not None

    # ------------------------------------------------------------ its thread

    def run(self, stop: threading.Event) -> None:
        """Store what is added until `stop` is set, and then what waits."""
        while not stop.is_set():
            begin = time.monotonic()
            self.ship_all()
            stop.wait(max(0.0, EVERY_S - (time.monotonic() - begin)))
        self.ship_all()

    def ship_all(self) -> None:
        """Store everything that was added, once; `totals` says what is left."""
        while not self._inbox.empty():
            self._inbox.get()()
        if self._backoff.is_ready:
            try:
                self._ship_waiting()
            except (EngineError, StoreError) as error:
                self._backoff.failed(str(error))
                self._failure(str(error))
            else:
                if self._backoff.reason is not None:
                    self.totals.last_error = ""
                self._backoff.succeeded()
        self.totals.waiting = sum(len(run.waiting) for run in self._runs.values()) + len(self._rows)

    def _ship_waiting(self) -> None:
        if not self._is_connected:
            require_tables(self._engine)
            self._is_connected = True
        engine, runs = self._engine, self._runs
        new = [run_id for run_id, run in runs.items() if run.stored is None]
        if new:
            pointed, stored = pointed_paths(engine, new), stored_objects(engine, new)
            for run_id in new:
                self._want(run_id, pointed[run_id])
                runs[run_id].stored = stored[run_id]
        self._insert()
        waiting = [(run, path) for run in runs.values() for path in run.waiting]
        for run, path in waiting:
            if run.waiting[path].is_ready:
                self._ship_file(run, path)
            if len(self._rows) >= _ROWS_AT_ONCE:
                self._insert()
        self._insert()
        for run in runs.values():
            run.checks_store &= bool(run.waiting)

    def _ship_file(self, run: _Run, path: str) -> None:
        """Bring a file into the store, and its row among those to insert.

        Raises:
            StoreError: the store did not take it.
        """
        assert run.stored is not None
        known = run.stored.get(path)
        # At the back of the others, if the store does not take it.
        wanted = run.waiting[path] = run.waiting.pop(path)
        wanted.tries += 1
        try:
            found = self._store_file(run, path, known)
        except NotInside as error:
            reason = f"{run.folder}: {error}"
            wanted.failed(reason)
            if not error.is_missing or wanted.tries >= _TRIES:
                del run.waiting[path]
            self._failure(f"a file that a record points to is not stored: {reason}")
            return
        del run.waiting[path]
        if found != known:
            self._rows.append((run, path, found))

    def _store_file(self, run: _Run, path: str, known: StoredObject | None) -> StoredObject:
        parts = checked_path(path)
        size, changed = _size_and_time(run.folder.joinpath(*parts))
        is_same = known is not None and (known.bytes, known.version) == (size, changed)
        if known is not None and is_same and (not run.checks_store or self.store.size(known.name) == size):
            return known
        if size > MAX_BYTES:
            raise NotInside(too_large(path, size, MAX_BYTES))
        data = read_inside(run.folder, path, max_bytes=MAX_BYTES)
        sha256 = hashlib.sha256(data).hexdigest()
        version = max(changed, known.version + 1 if known is not None else 0)
        found = StoredObject(sha256, len(data), version)
        if self.store.size(found.name) != len(data):
            self.store.write(found.name, BytesIO(data))
            self.totals.bytes += len(data)
        return known if known is not None and known.sha256 == sha256 else found

    def _insert(self) -> None:
        if not self._rows:
            return
        values = [
            (run.key.project, run.key.run_id, path, new.sha256, new.bytes, new.version, run.key.day)
            for run, path, new in self._rows
        ]
        self._engine.insert_rows("objects", _TYPES, values)
        for run, path, found in self._rows:
            assert run.stored is not None
            run.stored[path] = found
        self.totals.stored += len(self._rows)
        self._rows.clear()

    # ------------------------------------------------------------ what is wanted

    def _add(self, key: RunKey, folder: Path) -> None:
        known = self._runs.get(key.run_id)
        if known is None or known.folder != folder:
            self._runs[key.run_id] = _Run(key, folder)

    def _want(self, run_id: str, paths: Iterable[str]) -> None:
        if run_id in self._runs:
            for path in paths:
                self._runs[run_id].waiting.setdefault(path, _Wanted())

    def _recheck(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is not None:
            run.stored, run.checks_store = None, True

    def _failure(self, reason: str) -> None:
        self.totals.add(reason, self._say)


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return size and time of change, in ms, of what is there; zeros if it cannot be looked at: reading says why."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, status.st_mtime_ns // 1_000_000
