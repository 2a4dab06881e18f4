"""Runs of an engine as the files of run folders: records byte for byte, and the files that they point to."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, cast

from toolkit.telemetry.fleet.commits import Commit, lines_of, newest_commits
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.run_folders import is_for_pages
from toolkit.telemetry.fleet.stores import FileError, Store, StoredFile, StoreError
from toolkit.telemetry.fleet.tail import FILE_EVENTS
from toolkit.telemetry.runfolder.layout import LABELS, MANIFEST, is_safe_name, rank_file, safe_run_name

_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
_MOST_NAMED: Final = 5


class EngineRuns:
    """The runs with some ids, or names that only one run has; a live one as far as it was shipped. A Source."""

    def __init__(self, engine: Engine, wanted: Collection[str], objects: Store | None = None) -> None:
        """Find the runs; files that records point to come from `objects`, and are left out without it.

        Raises:
            StoreError: there is no such run, or several have the name.
            EngineError: the engine did not answer.
        """
        self.engine = engine
        self.names: list[str] = []
        """The names of the run folders."""
        self.left_out = 0
        """How many records point to files, which are in `objects`."""
        self._objects = objects
        self._files: dict[str, tuple[StoredFile, bytes | Commit | str]] = {}
        """Content, how far it was taken, or its name in `objects`."""
        for one in wanted:
            self._find(one)

    def __str__(self) -> str:
        return str(self.engine.address)

    def _find(self, wanted: str) -> None:
        rows = self.engine.rows(
            "SELECT run_id, argMax(name, version) AS called, argMax(node, version), argMax(folder, version), "
            "max(version), argMax(manifest, version) FROM runs "
            f"WHERE run_id = {quote(wanted)} OR name = {quote(wanted)} GROUP BY run_id"
        )
        found = [row for row in rows if row[0] == wanted] or rows
        if not found:
            raise StoreError(f"the engine has no run with the id or name {wanted}")
        if len(found) > 1:
            ids = ", ".join(f"{row[0]} ({row[2]})" for row in found[:_MOST_NAMED])
            raise StoreError(f"{len(found)} runs are called {wanted}; name one by its id: {ids}")
        run_id, name, _, place, version, manifest = found[0]
        last = place.rpartition("/")[2]
        folder = last if is_safe_name(last) else safe_run_name(name)
        if folder in self.names:
            raise StoreError(f"two of the runs are in folders called {folder}: copy one after the other")
        self.names.append(folder)
        for commit in newest_commits(self.engine, [run_id]).values():
            path = rank_file(Path(folder), commit.rank).as_posix()
            self._files[path] = StoredFile(commit.end, commit.received), commit
        labels = self.engine.rows(
            f"SELECT max(version), argMax(labels, version) FROM labels WHERE run_id = {quote(run_id)} GROUP BY run_id"
        )
        for path, changed, text in ((MANIFEST, version, manifest), *((LABELS, *row) for row in labels)):
            if data := text.encode():
                self._files[f"{folder}/{path}"] = StoredFile(len(data), changed / 1000), data
        for place, stored in (self._objects.files([run_id]) if self._objects is not None else {}).items():
            if is_for_pages(place, stored.size):
                self._files.setdefault(f"{folder}/{place.partition('/')[2]}", (stored, place))
        if self._objects is None:
            events = ", ".join(map(quote, sorted(FILE_EVENTS)))
            self.left_out += self.engine.rows(
                f"SELECT count() FROM records WHERE run_id = {quote(run_id)} AND event IN ({events})"
            )[0][0]

    def files(self, below: Collection[str] | None = None) -> dict[str, StoredFile]:  # noqa: ARG002 - all are wanted
        """Return all files by name."""
        return {name: stored for name, (stored, _) in self._files.items()}

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading, once all of it is known to be as it was shipped."""
        found = self._files[name][1]
        if isinstance(found, bytes):
            yield BytesIO(found)
        elif isinstance(found, str):
            assert self._objects is not None
            with self._objects.open(found) as stored:
                yield stored
        else:
            with tempfile.TemporaryFile() as file:
                self._read_records(found, name, cast(BinaryIO, file))
                file.seek(0)
                yield cast(BinaryIO, file)

    def _read_records(self, commit: Commit, name: str, file: BinaryIO) -> None:
        """Write a record file up to its commit, line after line without a gap."""
        at = crc = 0
        while data := lines_of(self.engine, commit, at, min(commit.end, at + _BYTES_AT_ONCE)):
            at, crc = at + len(data), zlib.crc32(data, crc)
            file.write(data)
        if at != commit.end or crc != commit.crc:
            raise FileError(
                f"{name} in the engine differs from the one that was shipped, from byte {at} on; "
                "`telemetry ship --verify` on the node repairs it"
            )
