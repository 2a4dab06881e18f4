"""Writes finished runs as Parquet: `records/month=YYYY-MM/RUN.parquet` with every line, `points/…` with every number.

It reads the folders and needs no engine: the file is the record. What the archive has of a run is found out from the
archive itself, so nothing is kept on the node. `records` is written last, and says which bytes of which files it has.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.core.ranks import node_name
from toolkit.telemetry.fleet.object_store import MissingError, ObjectStore, PlaceError
from toolkit.telemetry.fleet.run_folders import (
    RunFolder,
    manifest_bytes,
    read_run_folder,
    record_files,
)
from toolkit.telemetry.fleet.run_rows import is_final, status_of
from toolkit.telemetry.fleet.tail import Position, RecordTail, Rows, crc_of
from toolkit.telemetry.runfolder.folder_list import run_folders

_QUIET_S: Final = 24 * 3600.0
"""A run whose end is not certain counts as finished if its files have not changed for this long."""

_ROWS_AT_ONCE: Final = 100_000
_COMPRESSION_LEVEL: Final = 6
_ABOUT: Final = b"telemetry"
_MANIFEST: Final = b"run.json"
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DAY_S: Final = 86_400

_Contents = dict[str, list[int]]
"""Of each record file, by rank: how many bytes were archived, and their crc."""


@dataclass(slots=True)
class Archived:
    """What came of the runs."""

    written: int = 0
    unchanged: int = 0
    live: int = 0
    failed: int = 0


def archive_runs(places: Iterable[Path], store: ObjectStore, *, say: Callable[[str], None]) -> Archived:
    """Write the finished runs below `places` that `store` does not have as they are now.

    One run that fails does not hold up the others.

    Raises:
        PlaceError: pyarrow is missing.
        StoreError: the store does not answer, or refuses.
        OSError: a folder cannot be listed.
    """
    if find_spec("pyarrow") is None:
        raise PlaceError(f"--archive needs pyarrow: {install_extra('fleet')}")
    done, node = Archived(), node_name()
    names: dict[str, Path] = {}
    for folder in run_folders(places):
        run = read_run_folder(folder, node, is_waiting=False)
        if run is None or not _is_finished(run):
            done.live += 1
            continue
        other = names.setdefault(_name_of(run, node), folder)
        try:
            if other != folder:
                raise OSError(f"it is a copy of {other}, with the same run id")
            if _archive(run, _name_of(run, node), store):
                done.written += 1
            else:
                done.unchanged += 1
        except OSError as error:
            done.failed += 1
            say(f"{folder} is not archived: {error.strerror or error}")
    return done


def _is_finished(run: RunFolder) -> bool:
    if is_final(status_of(run)):
        return True
    try:
        changed = [os.lstat(path).st_mtime for path in record_files(run.folder).values()]
    except OSError:
        return False
    return time.time() - max(changed, default=0.0) > _QUIET_S


def _name_of(run: RunFolder, node: str) -> str:
    """Return the name of a run's two files: of its id, which may be anything, and for a part also of its node."""
    run_id = run.key.run_id
    name = run_id if _SAFE_ID.fullmatch(run_id) else f"run-{sha256(run_id.encode()).hexdigest()[:32]}"
    part = f".{sha256(node.encode()).hexdigest()[:8]}" if run.is_part else ""
    created = datetime.fromtimestamp(run.key.day * _DAY_S, timezone.utc)
    return f"month={created:%Y-%m}/{name}{part}.parquet"


def _archive(run: RunFolder, name: str, store: ObjectStore) -> bool:
    """Write a run unless the archive has it; return whether it was written."""
    paths = record_files(run.folder)
    if _is_archived(store, f"records/{name}", paths):
        return False
    with tempfile.TemporaryDirectory() as folder:
        records, points = Path(folder) / "records", Path(folder) / "points"
        _write(run, paths, records, points)
        store.write_file(f"points/{name}", points)
        store.write_file(f"records/{name}", records)
    return True


def _is_archived(store: ObjectStore, name: str, paths: dict[int, Path]) -> bool:
    from pyarrow import ArrowException, parquet

    try:
        with store.open(name) as file:
            about = (parquet.read_metadata(file).metadata or {}).get(_ABOUT, b"{}")
    except MissingError:
        return False
    except ArrowException:
        # Not ours, or not whole: it is replaced.
        return False
    try:
        contents: _Contents = orjson.loads(about)
        return set(contents) == {str(rank) for rank in paths} and all(
            crc_of(path, contents[str(rank)][0]) == contents[str(rank)][1]
            and os.stat(path).st_size == contents[str(rank)][2]
            for rank, path in paths.items()
        )
    except (ValueError, TypeError, LookupError):
        return False


def _write(run: RunFolder, paths: dict[int, Path], records: Path, points: Path) -> None:
    """Write both Parquet files.

    Raises:
        OSError: a record file cannot be read.
    """
    contents: _Contents = {}
    with _writer(records, _RECORDS) as to_records, _writer(points, _POINTS) as to_points:
        for rank, path in sorted(paths.items()):
            size = os.stat(path).st_size
            tail = RecordTail(path, run.key, rank, 1, Position())
            for rows in _rows_of(tail):
                to_records.write_table(_records_table(run, rank, rows))
                to_points.write_table(_points_table(run, rank, rows))
            contents[str(rank)] = [tail.position.end, tail.position.crc, size]
        to_records.add_key_value_metadata(
            {_ABOUT: orjson.dumps(contents), _MANIFEST: manifest_bytes(run.folder)}
        )


def _rows_of(tail: RecordTail) -> Iterator[Rows]:
    """Yield all complete lines of a file, many at a time."""
    rows = Rows()
    while True:
        before = tail.offset
        if not tail.read(rows):
            raise OSError(f"{tail.path.name} was replaced while it was read")
        tail.files.clear()
        if tail.offset == before:
            break
        if len(rows) >= _ROWS_AT_ONCE:
            yield rows
            rows = Rows()
    if len(rows):
        yield rows


_RECORDS: Final = (
    *(("project", "string"), ("run_id", "string"), ("rank", "uint32"), ("at", "uint64"), ("next", "uint64")),
    *(("seq", "int64"), ("session", "uint32"), ("event", "string"), ("time", "double")),
    *(
        ("elapsed", "double"),
        ("step", "double"),
        ("epoch", "double"),
        ("line", "binary"),
        ("created", "date32"),
    ),
)
_POINTS: Final = (
    *(("project", "string"), ("run_id", "string"), ("metric", "string"), ("rank", "uint32"), ("n", "uint32")),
    *(("bad", "uint32"), ("at", "uint64"), ("session", "uint32"), ("time", "double"), ("step", "double")),
    *(("value", "double"), ("created", "date32")),
)
"""Columns as those of the engine's tables, without the generation: an archived file has one."""

_ENCODINGS: Final = {
    **dict.fromkeys(("uint32", "int64", "uint64"), "DELTA_BINARY_PACKED"),
    "double": "BYTE_STREAM_SPLIT",
}
_FEW_VALUES: Final = ("project", "run_id", "event", "metric", "rank", "session", "created", "bad")


@contextmanager
def _writer(path: Path, columns: tuple[tuple[str, str], ...]) -> Iterator[Any]:
    from pyarrow import parquet

    names = [name for name, _ in columns]
    with parquet.ParquetWriter(
        path,
        _schema(columns),
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=[name for name in names if name in _FEW_VALUES],
        column_encoding={
            name: _ENCODINGS[kind] for name, kind in columns if name not in _FEW_VALUES and kind in _ENCODINGS
        },
        write_statistics=[name for name in names if name != "line"],
    ) as writer:
        yield writer


def _schema(columns: tuple[tuple[str, str], ...]) -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.type_for_alias(kind), nullable=False) for name, kind in columns])


def _records_table(run: RunFolder, rank: int, rows: Rows) -> Any:
    import pyarrow as pa

    columns = {
        **_same(run, rank, len(rows)),
        **{
            name: getattr(rows, name) for name in ("at", "next", "seq", "session", "event", "time", "elapsed")
        },
        **{name: getattr(rows, name) for name in ("step", "epoch", "line")},
    }
    return pa.table([columns[name] for name, _ in _RECORDS], schema=_schema(_RECORDS))


def _points_table(run: RunFolder, rank: int, rows: Rows) -> Any:
    import pyarrow as pa

    row_of, begin = [], 0
    for row, end in enumerate(rows.ends):
        row_of += [row] * (end - begin)
        begin = end
    # By metric, as they are read, and because values of one kind compress better next to each other.
    order = sorted(range(len(row_of)), key=rows.names.__getitem__)
    row_of = [row_of[place] for place in order]
    columns = {
        **_same(run, rank, len(order)),
        "metric": [rows.names[place].decode() for place in order],
        "n": [rows.ns[place] for place in order],
        "bad": [rows.bads[place] for place in order],
        "value": [rows.values[place] for place in order],
        **{
            name: [values[row] for row in row_of]
            for name, values in (
                *(("at", rows.at), ("session", rows.session)),
                *(("time", rows.time), ("step", rows.step)),
            )
        },
    }
    return pa.table([columns[name] for name, _ in _POINTS], schema=_schema(_POINTS))


def _same(run: RunFolder, rank: int, count: int) -> dict[str, list[Any]]:
    """Return the columns that are the same in all rows."""
    key = run.key
    return {
        "project": [key.project] * count,
        "run_id": [key.run_id] * count,
        "rank": [rank] * count,
        "created": [key.day] * count,
    }
