"""Trackio: fragments of JSONL in an inbox, and Parquet files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.install import install_command
from toolkit.telemetry.importers.files import LinesSource, Stream, WholeSource, open_below
from toolkit.telemetry.importers.folders import Folder, Found, names_in
from toolkit.telemetry.importers.formats.parquet_rows import looks_like_a_log, rows_of
from toolkit.telemetry.importers.formats.trackio_rows import FORMAT, add_row, add_system_row
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import Builder, RunSource, SourceInfo, run_info
from toolkit.telemetry.importers.times import from_any

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
        return [
            Stream(f"{folder}/{name}")
            for folder in self._folders
            for name in names_in(self.info.root / folder)
            if name.endswith(".jsonl")
        ]

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:  # noqa: ARG002
        """Add one line, if it is of this run."""
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
        timestamp = from_any(row.get("timestamp"))
        if kind == "metric" and type(metrics) is dict:
            add_row(metrics, row.get("step"), timestamp, self.shared, self._media, out)
            if type(row.get("config")) is dict:
                self.info.keep(row["config"].items())
        elif kind == "system_metric" and type(metrics) is dict:
            add_system_row(metrics, timestamp, out)
        else:
            out.not_number(f"{kind} (of the tool)")


class TrackioParquetSource(WholeSource):
    """One run in the Parquet files of a project; they are written whole, so a change is read from the start."""

    def read_whole(self, out: Builder) -> None:
        """Add all rows."""
        try:
            out.batch.bytes_read = os.lstat(self.info.root / self.paths[0]).st_size
            table = rows_of(self.info.root, _files_of(self.paths[0]))
        except OSError as error:
            out.pass_over(f"Parquet files that cannot be read ({error.strerror or error})")
            return
        if table.problem:
            out.pass_over(table.problem)
        state: dict[str, Any] = {}
        for row in table.rows(0, self.info.run_id):
            add_row(_values(row), row.get("step"), from_any(row.get("timestamp")), state, "media", out)
        for row in table.rows(1, self.info.run_id):
            add_system_row(_values(row), from_any(row.get("timestamp")), out)
        for row in table.rows(2, self.info.run_id):
            self.info.keep(_values(row).items())


def _files_of(path: str) -> list[str]:
    """Return the file of a project's metrics, and those of the machine and of the settings next to it."""
    stem = path.removesuffix(".parquet")
    return [path, f"{stem}_system.parquet", f"{stem}_configs.parquet"]


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _OWN_COLUMNS}


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
    for writer in names_in(folder.root / inbox, of_folders=True)[:20_000]:
        below = f"{inbox}/{writer}"
        for project, run, name in _runs_of_writer(folder.root, below):
            folders = runs.setdefault((project, run), (name, []))[1]
            if below not in folders:
                folders.append(below)
    found = []
    for (project, run), (name, folders) in runs.items():
        info = run_info(FORMAT, f"{project}/{run}", name, folder.root, [f"{inbox}/{run}"])
        info.run_id, info.group = run, project
        found.append(TrackioInboxSource(info, project, folders, folder.below("media")))
    return found


def _runs_of_writer(root: Path, folder: str) -> Iterator[tuple[str, str, str]]:
    names = [name for name in names_in(root / folder) if name.endswith(".jsonl")]
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


def _unread(root: Path, relative: str, reason: str) -> TrackioParquetSource:
    """Return a run that says why the file is not read."""
    project = Path(relative).stem
    info = run_info(FORMAT, project, project, root, [relative])
    info.note(reason)
    return TrackioParquetSource(info, relative)


def _parquet_runs(root: Path, relative: str) -> list[TrackioParquetSource]:
    project = Path(relative).stem
    try:
        with open_below(root, relative) as file:
            if not looks_like_a_log(file):
                return []
        if importlib.util.find_spec("pyarrow") is None:
            return [_unread(root, relative, f"Parquet files need pyarrow: {install_command('pyarrow')}")]
        table = rows_of(root, _files_of(relative))
    except OSError:
        return []
    if table.problem:
        return [_unread(root, relative, table.problem)]
    found = []
    for run, name in list(table.runs.items())[:20_000]:
        info = run_info(FORMAT, f"{project}/{run}", name, root, [f"{relative}/{run}"])
        info.run_id, info.group = run, project
        found.append(TrackioParquetSource(info, relative))
    return found
