"""Which runs of other tools lie below a folder: names propose, the first bytes decide."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core import plugins
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.importers.files import HEAD_BYTES, open_below
from toolkit.telemetry.importers.folders import Finder, Folder, Found
from toolkit.telemetry.importers.formats import (
    ai_toolkit_db,
    aim,
    comet,
    dvclive,
    hf_state,
    mlflow_db,
    mlflow_files,
    neptune,
    record_file,
    rollouts,
    swanlab,
    table_file,
    text_log,
    tfevents,
    torchtitan,
    trackio_db,
    trackio_files,
    wandb_log,
)
from toolkit.telemetry.importers.source import (
    BATCH_BYTES,
    MAX_IMAGE_BYTES,
    MAX_RUNS,
    Batch,
    BlobRef,
    RunSource,
    Status,
)
from toolkit.telemetry.runfolder.folder_list import another_programs_file
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL

MAX_DEPTH: Final = 8
MAX_ENTRIES: Final = 200_000
LIMIT_S: Final = 10.0
_SLOW_S: Final = 0.2
_MOST_MORE_S: Final = 60.0
_NEVER: Final = frozenset({"node_modules", "site-packages", "__pycache__", ".git", ".venv", "venv"})
_DOT_FOLDERS: Final = frozenset({".aim", ".neptune", ".trash"})


@dataclass(frozen=True, slots=True)
class Format:
    """One format: how it is called, found, and what it needs."""

    name: str
    title: str
    files: str
    """What proposes it."""
    finders: tuple[Finder, ...] = ()
    of_file: tuple[Callable[[Path, bytes], Any], ...] = ()
    merged: Callable[[Any], Sequence[RunSource]] | None = None
    needs: str = ""
    """A package that is needed beyond the bare install."""


def _built_in(name: str, title: str, files: str, *modules: Any, needs: str = "") -> Format:
    """Return the format that these files of ours read."""
    of_file = [
        getattr(module, part, None) for module in modules for part in ("source_of_file", "sources_of_file")
    ]
    return Format(
        name,
        title,
        files,
        tuple(module.sources_in for module in modules),
        tuple(filter(None, of_file)),
        next((module.merged for module in modules if hasattr(module, "merged")), None),
        needs,
    )


FORMATS: Final = (
    _built_in(record_file.FORK, "folders of the ai-toolkit fork", "metrics.jsonl", record_file),
    _built_in("tensorboard", "TensorBoard event files", "*tfevents*", tfevents),
    _built_in("wandb", "W&B runs, offline or synced", "*.wandb", wandb_log),
    _built_in("huggingface", "Hugging Face trainer states", hf_state.NAME, hf_state),
    _built_in("ai-toolkit", "ai-toolkit's loss_log.db", "loss_log.db", ai_toolkit_db),
    _built_in("mlflow", "MLflow file stores and SQLite databases", "mlruns/, *.db", mlflow_files, mlflow_db),
    _built_in(
        "trackio",
        "Trackio databases, inboxes and Parquet files",
        "*.db, inbox/*/*.jsonl, *.parquet",
        *(trackio_db, trackio_files),
        needs="pyarrow (for Parquet)",
    ),
    _built_in("swanlab", "SwanLab run folders", "swanlog/run-*, *.swanlab", swanlab),
    _built_in("neptune", "Neptune offline queues", ".neptune/*/*/data-*.log", neptune),
    _built_in("comet", "Comet offline zips", "*.zip", comet),
    _built_in("aim", "Aim repositories", ".aim/", aim, needs="aim"),
    _built_in("dvclive", "DVCLive folders", "plots/metrics/**.tsv, scalars/**.tsv, *.tsv", dvclive),
    _built_in("rollouts", "rollouts of verl and NeMo-RL", "*.jsonl, train_data_step*.jsonl", rollouts),
    _built_in("torchtitan", "torchtitan's structured logs", "*.global_rank_*.jsonl", torchtitan),
    _built_in(
        "table",
        "tables with a column of steps: Lightning, Ultralytics, any CSV or JSONL",
        "*.csv, *.tsv, *.jsonl",
        table_file,
    ),
    Format("text", "text logs, only where one is named or asked for", "--format text"),
)
"""In the order in which they are tried; plug-ins follow."""


def formats() -> list[Format]:
    """Return the built-in formats, and those of plug-ins."""
    found = plugins.load("importers", _problem_of, taken=names_of(FORMATS))
    return [*FORMATS, *(_contained(plugin) for plugin in found)]


def _problem_of(value: Any) -> str:
    return "" if isinstance(value, Format) else f"it must be a Format, and is a {type(value).__name__}"


def _contained(plugin: plugins.Plugin) -> Format:
    """Return the format of a plug-in, whose failures name it."""
    entry: Format = plugin.value

    def find(finder: Finder, folder: Folder) -> Found:
        found = plugin.call(finder, folder)
        return Found([_PluginSource(plugin, source) for source in found.sources], found.taken, found.skipped)

    def of_file(read: Callable[[Path, bytes], Any], path: Path, head: bytes) -> list[RunSource]:
        found = Guard().call("looking at a file", plugin.call, read, path, head) or []
        return [_PluginSource(plugin, source) for source in (found if isinstance(found, list) else [found])]

    return replace(
        entry,
        name=plugin.name,
        finders=tuple(partial(find, finder) for finder in entry.finders),
        of_file=tuple(partial(of_file, read) for read in entry.of_file),
        merged=None,
    )


class _PluginSource:
    """A run that a plug-in reads; its failures name the plug-in."""

    def __init__(self, plugin: plugins.Plugin, source: RunSource) -> None:
        self._plugin, self._source = plugin, source
        self.info = source.info

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        return self._plugin.call(self._source.read, cursor, max_bytes=max_bytes)

    def status(self, now: float) -> Status:
        return self._plugin.call(self._source.status, now)

    def blob(self, ref: BlobRef, *, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        return self._plugin.call(self._source.blob, ref, max_bytes=max_bytes)


_CLEARML: Final = (
    "an offline session of ClearML, which is not supported; log to TensorBoard as well, and read that"
)


@dataclass(slots=True)
class Sources:
    """The runs below a folder."""

    runs: list[RunSource] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_sources(path: Path, *, only: str | None = None, limit_s: float = LIMIT_S) -> Sources:
    """Return the runs of other tools at `path`: a file, or everything below a folder.

    `only` is the name of one format. Links below `path` are not followed; a run folder of ours is left alone.

    Raises:
        OSError: `path` does not exist or cannot be listed.
    """
    wanted = [entry for entry in formats() if only in (None, entry.name)]
    if path.name in ("", ".."):
        # Runs are called by their folder, which `.` does not name.
        path = Path(os.path.abspath(path))
    status = os.stat(path)
    if stat.S_ISREG(status.st_mode):
        return _of_file(path, wanted, only)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{path} is neither a file nor a folder")
    return _Walk(path, wanted, limit_s).result()


def _of_file(path: Path, formats: Sequence[Format], only: str | None) -> Sources:
    path = Path(os.path.abspath(path))
    with open_below(path.parent, path.name) as file:
        head = file.read(0, HEAD_BYTES)
    if head.startswith(b"version https://git-lfs"):
        return Sources(notes=[f"{path.name} is a Git LFS pointer: its content was not downloaded"])
    for entry in formats:
        for of_file in entry.of_file:
            found = of_file(path, head)
            if found:
                return Sources(found if isinstance(found, list) else [found])
    if only == text_log.FORMAT or (only is None and path.suffix in (".txt", ".log", ".out")):
        return Sources([text_log.source_of_file(path)])
    is_clearml = path.suffix == ".zip" and path.name.startswith("offline-")
    return Sources(
        notes=[f"{path.name}: {_CLEARML}" if is_clearml else f"{path.name} is in no format that can be read"]
    )


class _Walk:
    """Looks at folders breadth first, within limits."""

    def __init__(self, root: Path, formats: Sequence[Format], limit_s: float) -> None:
        self._root = root
        self._formats = formats
        self._end = time.monotonic() + limit_s
        self._more_s = _MOST_MORE_S
        self._entries = 0
        self._found: dict[str, list[RunSource]] = {entry.name: [] for entry in formats}
        self._notes: list[str] = []
        self._guard = Guard()

    def result(self) -> Sources:
        waiting: deque[tuple[str, int]] = deque([(".", 0)])
        while waiting:
            relative, depth = waiting.popleft()
            if self._is_over():
                self._notes.append(f"not all of {self._root} was looked at: {self._is_over()}")
                break
            folder = self._listed(relative)
            if folder is None or self._is_ours(folder):
                continue
            if "task.json" in folder.files and not {"metrics.jsonl", "log.jsonl"}.isdisjoint(folder.files):
                self._notes.append(f"{folder.path}: {_CLEARML}")
                continue
            began = time.monotonic()
            skipped = self._find_in(folder)
            self._wait_for_slow(time.monotonic() - began)
            if depth < MAX_DEPTH:
                waiting += [
                    (folder.below(name), depth + 1) for name in sorted(folder.folders) if name not in skipped
                ]
        runs: list[RunSource] = []
        for entry in self._formats:
            found = self._found[entry.name]
            runs += entry.merged(found) if entry.merged is not None and found else found
        runs = _each_once(runs)
        if len(runs) > MAX_RUNS:
            self._notes.append(f"only the first {MAX_RUNS:,} of {len(runs):,} runs are shown")
        return Sources(runs[:MAX_RUNS], self._notes)

    def _wait_for_slow(self, took: float) -> None:
        """Leave the time for a folder that is slow to look at out of the limit: it must not hide the others."""
        if took > _SLOW_S:
            more = min(took, self._more_s)
            self._more_s -= more
            self._end += more

    def _is_over(self) -> str:
        """Return why the search ends; nothing while it does not."""
        if self._entries > MAX_ENTRIES:
            return f"it has more than {MAX_ENTRIES:,} files and folders"
        return "that took too long; name a folder in it" if time.monotonic() > self._end else ""

    def _listed(self, relative: str) -> Folder | None:
        folder = Folder(self._root, relative)
        try:
            with os.scandir(folder.path) as entries:
                for entry in entries:
                    self._entries += 1
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if name not in _NEVER and (not name.startswith(".") or name in _DOT_FOLDERS):
                            folder.folders.append(name)
                    elif entry.is_file(follow_symlinks=False):
                        folder.files[name] = entry.stat(follow_symlinks=False).st_size
                    if self._entries > MAX_ENTRIES:
                        break
        except OSError as error:
            self._notes.append(f"{folder.path} cannot be listed ({error.strerror})")
            return None
        return folder

    def _is_ours(self, folder: Folder) -> bool:
        """Return whether this is a run folder of ours: its mirrors are not runs of their own."""
        is_named_so = METRICS_JSONL in folder.files and MANIFEST in folder.files
        return is_named_so and another_programs_file(folder.path) is None

    def _find_in(self, folder: Folder) -> frozenset[str]:
        skipped: set[str] = set()
        for entry in self._formats:
            for finder in entry.finders:
                found = self._guard.call(f"looking for {entry.name} logs", finder, folder)
                if found is None:
                    self._notes.append(
                        f"{folder.path} could not be looked at: {', '.join(self._guard.counts)}"
                    )
                    continue
                self._found[entry.name] += found.sources
                skipped |= found.skipped
                for name in found.taken:
                    folder.files.pop(name, None)
        return frozenset(skipped)


def _each_once(runs: Sequence[RunSource]) -> list[RunSource]:
    """Return the first of each run that is in several places, with a note about the others."""
    found: dict[str, RunSource] = {}
    for run in runs:
        first = found.setdefault(run.info.source_id, run)
        if first is not run and run.info.pieces:
            first.info.note(f"the same run is also in {run.info.pieces[0].path}")
    return list(found.values())


def names_of(entries: Iterable[Format] | None = None) -> list[str]:
    """Return the names that `--format` takes."""
    return [entry.name for entry in (formats() if entries is None else entries)]
