"""Trackio: fragments of JSONL in an inbox, and Parquet files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.importers.files import LinesSource, Stream, open_below, read_blob
from toolkit.importers.folders import Folder, Found
from toolkit.importers.json_text import parsed
from toolkit.importers.moments import from_any
from toolkit.importers.source import (
    BATCH_BYTES,
    MAX_IMAGE_BYTES,
    NO_TIME,
    Batch,
    BlobRef,
    Builder,
    Piece,
    RunSource,
    SourceInfo,
    Status,
    decode_cursor,
    encode_cursor,
    source_id,
)
from toolkit.importers.trackio_rows import FORMAT, add_row, add_system_row

_NEEDED: Final = "Parquet files need pyarrow: pip install pyarrow"
_LARGEST_PARQUET: Final = 1024**3
_OWN_COLUMNS: Final = frozenset(
    {"id", "run_id", "timestamp", "run_name", "step", "log_id", "space_id", "created_at"}
)


class TrackioInboxSource(LinesSource):
    """One run in the fragments of an inbox."""

    def __init__(self, info: SourceInfo, project: str, folders: Sequence[str], media: str) -> None:
        super().__init__(info)
        self._project = project
        self._folders = list(folders)
        self._media = media

    def streams(self) -> Sequence[Stream]:
        """Return the fragments, oldest first."""
        found = []
        for folder in self._folders:
            try:
                names = sorted(
                    name for name in os.listdir(self.info.root / folder) if name.endswith(".jsonl")
                )
            except OSError:
                continue
            found += [Stream(f"{folder}/{name}") for name in names]
        return found

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add one line, if it is of this run."""
        if not line.strip():
            return
        row = parsed(line)
        if row is None:
            out.pass_over("lines that are no JSON object")
            return
        if (
            str(row.get("run_id") or row.get("run")) != self.info.run_id
            or row.get("project") != self._project
        ):
            return
        kind = row.get("kind")
        metrics = row.get("metrics")
        moment = from_any(row.get("timestamp"))
        if kind == "metric" and type(metrics) is dict:
            add_row(metrics, row.get("step"), moment, self.shared, self._media, out)
            if type(row.get("config")) is dict:
                self.info.keep(row["config"].items())
        elif kind == "system_metric" and type(metrics) is dict:
            add_system_row(metrics, moment, out)
        else:
            out.not_number(f"{kind} (of the tool)")


class TrackioParquetSource:
    """One run in the Parquet files of a project; they are written whole, so a change is read from the start."""

    def __init__(self, info: SourceInfo, path: str) -> None:
        self.info = info
        self._path = path
        self._last_sign = NO_TIME

    def read(self, cursor: bytes | None, *, max_bytes: int = BATCH_BYTES) -> Batch:  # noqa: ARG002
        """Return all rows if the file changed since `cursor`, else none."""
        out = Builder()
        batch = out.batch
        try:
            status = os.lstat(self.info.root / self._path)
        except OSError:
            out.pass_over("files that cannot be opened")
            return batch
        signature = [status.st_size, status.st_mtime_ns]
        self._last_sign = status.st_mtime
        kept = decode_cursor(cursor)
        batch.cursor = encode_cursor({"file": signature})
        if kept is not None and kept.get("file") == signature:
            return batch
        batch.replaced = cursor is not None
        batch.bytes_read = status.st_size
        state: dict[str, Any] = {}
        for row in _parquet_rows(self.info, self._path, out):
            metrics = {name: value for name, value in row.items() if name not in _OWN_COLUMNS}
            add_row(metrics, row.get("step"), from_any(row.get("timestamp")), state, "media", out)
        stem = self._path.removesuffix(".parquet")
        for row in _parquet_rows(self.info, f"{stem}_system.parquet", out):
            metrics = {name: value for name, value in row.items() if name not in _OWN_COLUMNS}
            add_system_row(metrics, from_any(row.get("timestamp")), out)
        for row in _parquet_rows(self.info, f"{stem}_configs.parquet", out):
            self.info.keep((name, value) for name, value in row.items() if name not in _OWN_COLUMNS)
        return batch

    def status(self, now: float) -> Status:  # noqa: ARG002
        """Return when the file was written; it says nothing about an end."""
        return Status("unknown", last_sign=self._last_sign)

    def blob(self, ref: BlobRef, *, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        """Return the bytes that an event refers to."""
        return read_blob(self.info.root, ref, max_bytes)


def _parquet_rows(info: SourceInfo, path: str, out: Builder) -> Iterator[dict[str, Any]]:
    """Yield the rows of this run."""
    if not os.path.lexists(info.root / path):
        return
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        info.note(_NEEDED)
        out.pass_over("Parquet files, which need pyarrow")
        return
    try:
        with open_below(info.root, path) as file:
            if file.size > _LARGEST_PARQUET:
                out.pass_over("Parquet files of more than 1 GB")
                return
            table = pq.ParquetFile(pa.BufferReader(file.read(0, file.size)))
        for batch in table.iter_batches(4096):
            for row in batch.to_pylist():
                if str(row.get("run_id") or row.get("run_name")) == info.run_id:
                    yield row
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        NotImplementedError,
        MemoryError,
        pa.ArrowException,
    ) as error:
        out.pass_over(f"Parquet files that cannot be read ({type(error).__name__})")


# ---------------------------------------------------------------- detection


def sources_in(folder: Folder) -> Found:
    """Return the runs of an inbox, and of Parquet files."""
    found: list[RunSource] = []
    if "inbox" in folder.folders:
        found += _inbox_runs(folder)
    skipped = frozenset({"inbox", "media"}) if found else frozenset()
    taken = set()
    for name in sorted(folder.files):
        if name.endswith(".parquet") and not name.endswith(
            ("_system.parquet", "_configs.parquet", "_traces.parquet")
        ):
            runs = _parquet_runs(folder.root, folder.below(name))
            stem = name.removesuffix(".parquet")
            is_trackio = f"{stem}_configs.parquet" in folder.files or f"{stem}_system.parquet" in folder.files
            if not runs and is_trackio and importlib.util.find_spec("pyarrow") is None:
                runs = [_unread(folder.root, folder.below(name))]
            if runs:
                taken.add(name)
                found += runs
    return Found(found, frozenset(taken), skipped)


def sources_of_file(path: Path, head: bytes) -> list[TrackioParquetSource]:
    """Return the runs of one Parquet file that was named."""
    return _parquet_runs(path.parent, path.name) if head.startswith(b"PAR1") else []


def _inbox_runs(folder: Folder) -> list[TrackioInboxSource]:
    runs: dict[tuple[str, str], tuple[str, list[str]]] = {}
    inbox = folder.below("inbox")
    try:
        writers = sorted(
            entry.name for entry in os.scandir(folder.root / inbox) if entry.is_dir(follow_symlinks=False)
        )
    except OSError:
        return []
    for writer in writers[:20_000]:
        below = f"{inbox}/{writer}"
        for project, run, name in _runs_of_writer(folder.root, below):
            folders = runs.setdefault((project, run), (name, []))[1]
            if below not in folders:
                folders.append(below)
    found = []
    for (project, run), (name, folders) in runs.items():
        info = SourceInfo(
            format=FORMAT,
            source_id=source_id(FORMAT, f"{project}/{run}"),
            name=name,
            root=folder.root,
            run_id=run,
            group=project,
            pieces=[Piece(f"{inbox}/{run}")],
        )
        found.append(TrackioInboxSource(info, project, folders, folder.below("media")))
    return found


def _runs_of_writer(root: Path, folder: str) -> Iterator[tuple[str, str, str]]:
    try:
        names = sorted(name for name in os.listdir(root / folder) if name.endswith(".jsonl"))
    except OSError:
        return
    for name in names[:10_000]:
        try:
            with open_below(root, f"{folder}/{name}") as file:
                lines = file.read(0, 64 * 1024).split(b"\n")
        except OSError:
            continue
        for line in lines[:-1] if len(lines) > 1 else lines:
            row = parsed(line)
            if (
                row is not None
                and "kind" in row
                and type(row.get("project")) is str
                and type(row.get("run")) is str
            ):
                yield row["project"], str(row.get("run_id") or row["run"]), row["run"][:1000]


def _unread(root: Path, relative: str) -> TrackioParquetSource:
    """Return a run that says what is needed to read the file."""
    project = Path(relative).stem
    info = SourceInfo(
        format=FORMAT, source_id=source_id(FORMAT, project), name=project, root=root, pieces=[Piece(relative)]
    )
    info.note(_NEEDED)
    return TrackioParquetSource(info, relative)


def _parquet_runs(root: Path, relative: str) -> list[TrackioParquetSource]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return []
    project = Path(relative).stem
    runs: dict[str, str] = {}
    try:
        with open_below(root, relative) as file:
            if file.size > _LARGEST_PARQUET or file.read(0, 4) != b"PAR1":
                return []
            table = pq.ParquetFile(pa.BufferReader(file.read(0, file.size)))
        names = set(table.schema_arrow.names)
        if not {"run_name", "step"} <= names:
            return []
        wanted = [name for name in ("run_id", "run_name") if name in names]
        for batch in table.iter_batches(65_536, columns=wanted):
            for row in batch.to_pylist():
                runs.setdefault(str(row.get("run_id") or row.get("run_name")), str(row.get("run_name")))
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError, pa.ArrowException):
        return []
    found = []
    for run, name in list(runs.items())[:20_000]:
        info = SourceInfo(
            format=FORMAT,
            source_id=source_id(FORMAT, f"{project}/{run}"),
            name=name[:1000],
            root=root,
            run_id=run,
            group=project,
            pieces=[Piece(f"{relative}/{run}")],
        )
        found.append(TrackioParquetSource(info, relative))
    return found
