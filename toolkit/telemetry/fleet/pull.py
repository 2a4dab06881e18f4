"""Brings a run folder back from the engine: its records byte for byte, and the files that they point to."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.commits import Commit, newest_commits, whole_line
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.object_store import ObjectStore, StoreError
from toolkit.telemetry.fleet.objects import MAX_BYTES, StoredObject, checked_path, read_object, stored_objects
from toolkit.telemetry.runfolder.layout import (
    LABELS,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    PRIVATE,
    RANKS,
    is_safe_name,
    make_folders,
    rank_file,
    safe_run_name,
)
from toolkit.telemetry.runfolder.safefile import NotInside, write_all
from toolkit.telemetry.runfolder.table.csv_table import build_table, table_form

_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
_MOST_NAMED: Final = 5
_BAD_NAME: Final = frozenset(
    {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
)
"""What is wrong with the name of a file, not with the disk."""


class PullError(ValueError):
    """A run cannot be pulled; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledRun:
    """A run folder that was written."""

    folder: Path
    lines: int
    files: int
    objects: int = 0
    """Files that records point to."""
    missing: tuple[str, ...] = ()
    """Why others of them were not written."""


@dataclass(frozen=True, slots=True)
class _Run:
    run_id: str
    name: str
    place: str
    manifest: bytes


def pull(engine: Engine, wanted: str, log_dir: Path, objects: ObjectStore | None = None) -> PulledRun:
    """Write the run with the id or name `wanted` into a new folder below `log_dir`.

    The folder appears once it is complete. A live run comes as far as it was shipped.
    Files that records point to come from `objects`; one that is missing there does not hold up the others.

    Raises:
        PullError: there is no such run, several have the name, its folder exists, or the engine lacks a part of it.
        EngineError: the engine did not answer.
        OSError: the folder cannot be written.
    """
    run = _find(engine, wanted)
    name = run.place.rpartition("/")[2]
    folder = log_dir / (name if is_safe_name(name) else safe_run_name(run.name))
    if os.path.lexists(folder):
        raise PullError(f"{folder} exists already; name another folder with --to")
    make_folders(log_dir, 0o775)
    half = log_dir / f".{folder.name}.{os.urandom(6).hex()}.pull"
    os.mkdir(half, PRIVATE.folder)
    try:
        lines, files = _write(engine, run, half)
        stored = stored_objects(engine, [run.run_id])[run.run_id]
        missing = _write_objects(objects, stored, half)
        os.rename(half, folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    return PulledRun(
        folder=folder, lines=lines, files=files, objects=len(stored) - len(missing), missing=missing
    )


def _find(engine: Engine, wanted: str) -> _Run:
    rows = engine.rows(
        "SELECT run_id, argMax(name, version) AS called, argMax(node, version), argMax(folder, version), "
        "argMax(manifest, version) FROM runs "
        f"WHERE run_id = {quote(wanted)} OR name = {quote(wanted)} GROUP BY run_id",
        *("String", "String", "String", "String", "Bytes"),
    )
    exact = [row for row in rows if row[0] == wanted]
    found = exact or rows
    if not found:
        raise PullError(f"the engine has no run with the id or name {wanted}")
    if len(found) > 1:
        ids = ", ".join(f"{row[0]} ({row[2]})" for row in found[:_MOST_NAMED])
        raise PullError(f"{len(found)} runs are called {wanted}; name one by its id: {ids}")
    run_id, name, _, place, manifest = found[0]
    return _Run(run_id, name, place, manifest)


def _write(engine: Engine, run: _Run, folder: Path) -> tuple[int, int]:
    commits = newest_commits(engine, [run.run_id])
    if any(rank for _, rank in commits):
        os.mkdir(folder / RANKS, PRIVATE.folder)
    lines = 0
    for commit in commits.values():
        lines += _write_records(engine, commit, rank_file(folder, commit.rank))
    if run.manifest:
        _write_file(folder / MANIFEST, run.manifest)
    labels = engine.rows(
        f"SELECT argMax(labels, version) FROM labels WHERE run_id = {quote(run.run_id)} GROUP BY run_id",
        "Bytes",
    )
    if labels and labels[0][0]:
        _write_file(folder / LABELS, labels[0][0])
    if (folder / METRICS_JSONL).exists():
        build_table(folder / METRICS_JSONL, folder / METRICS_CSV, form=table_form(folder))
    return lines, len(commits)


def _write_objects(
    store: ObjectStore | None, objects: Mapping[str, StoredObject], folder: Path
) -> tuple[str, ...]:
    """Write files into a new folder, whatever their paths say; return why some of them were not written."""
    missing = []
    for path, found in objects.items():
        if store is None:
            missing.append(f"{path[:100]!r} needs --objects")
            continue
        try:
            place = folder.joinpath(*checked_path(path))
            data = read_object(store, found, MAX_BYTES)
            make_folders(place.parent, PRIVATE.folder)
            _write_file(place, data)
        except (NotInside, StoreError) as error:
            missing.append(str(error))
        except UnicodeEncodeError:
            missing.append(f"{path[:100]!a} is not a valid file name")
        except OSError as error:
            if error.errno not in _BAD_NAME:
                raise
            missing.append(f"{path[:100]!a} cannot be written: {error.strerror}")
    return tuple(missing)


def _write_records(engine: Engine, commit: Commit, path: Path) -> int:
    """Write a record file up to its commit, line after line without a gap; return the number of lines."""
    at = crc = lines = 0
    descriptor = _create(path)
    try:
        while at < commit.end:
            rows = engine.rows(
                "SELECT at, next, line FROM records "
                f"WHERE run_id = {quote(commit.run_id)} AND rank = {commit.rank} AND gen = {commit.gen} "
                f"AND at >= {at} AND at < {min(commit.end, at + _BYTES_AT_ONCE)} ORDER BY at LIMIT 1 BY at",
                *("UInt64", "UInt64", "Bytes"),
            )
            parts = []
            for begin, after, line in rows:
                if begin != at:
                    break
                if after - begin not in (len(line), len(line) + 1) or after == begin:
                    raise PullError(
                        f"the engine has a line of {path.name} at byte {at} that does not fit its place"
                    )
                parts.append(whole_line(begin, after, line))
                at, lines = after, lines + 1
            if not parts:
                raise PullError(
                    f"the engine lacks {path.name} from byte {at} on; "
                    "`telemetry ship --verify` on the node sends it again"
                )
            data = b"".join(parts)
            crc = zlib.crc32(data, crc)
            write_all(descriptor, data)
    finally:
        os.close(descriptor)
    if at != commit.end or crc != commit.crc:
        raise PullError(
            f"{path.name} in the engine differs from the one that was shipped; `telemetry ship --verify` repairs it"
        )
    return lines


def _write_file(path: Path, data: bytes) -> None:
    descriptor = _create(path)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE.file)
