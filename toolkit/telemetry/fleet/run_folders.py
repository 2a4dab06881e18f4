"""The runs below some folders: who each is, what its manifest says, and which record files it has."""

from __future__ import annotations

import glob
import hashlib
import math
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.tail import RunKey
from toolkit.telemetry.runfolder.evidence.code_snapshot import CODE
from toolkit.telemetry.runfolder.folder_list import Signature, signature_of
from toolkit.telemetry.runfolder.layout import (
    CONTROL,
    LABELS,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    ONE_LOGGER_FILE,
    OUTPUT_LOG,
    OUTPUT_TIMES,
    RANKS,
    TENSORBOARD,
    LinkedRanks,
    other_ranks,
    rank_file,
)
from toolkit.telemetry.runfolder.manifest import MAX_MANIFEST_BYTES, Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.records import START, Record

_DAY_S: Final = 86_400
_LAST_DAY: Final = 2**16 - 1
_SETTLED_S: Final = 60.0
"""A run writes run.json when it starts: a folder that has none after this time gets none."""
_LONGEST_ID: Final = 6_000
_START_WITHIN_BYTES: Final = 1024 * 1024

MAX_BYTES: Final = 20_000_000
"""Larger files stay, unless the run wrote them itself; a page would not show them either."""
OWN_NAMES: Final = frozenset(
    {
        CODE,
        CONTROL,
        LABELS,
        MANIFEST,
        METRICS_CSV,
        METRICS_JSONL,
        ONE_LOGGER_FILE,
        OUTPUT_LOG,
        OUTPUT_TIMES,
        RANKS,
    }
    | {TENSORBOARD}
)
"""What a run writes itself. What it printed, and its code, never go to an engine or what belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A run folder and its manifest."""

    folder: Path
    key: RunKey
    manifest: Manifest | None
    signature: Signature
    """Changes with run.json."""

    @property
    def name(self) -> str:
        """The run's name; the folder's if there is no manifest."""
        return self.manifest.name if self.manifest is not None else self.folder.name

    @property
    def is_part(self) -> bool:
        """Whether it has only some ranks of a run whose own folder is on another node."""
        return self.manifest is not None and self.manifest.part_of is not None


def matching_folders(place: Path) -> list[Path]:
    """Return the folders that `place` means, which may be a pattern such as /scratch/*/logs."""
    # Not Path.is_dir, which fails where a file system is away for a time_s.
    if os.path.isdir(place):
        return [place]
    return sorted(Path(found) for found in glob.glob(str(place)) if os.path.isdir(found))


def existing_folders(places: Iterable[Path]) -> list[Path]:
    """Return the folders that all `places` mean.

    Raises:
        NotADirectoryError: one of them means none.
    """
    found = {place: matching_folders(place) for place in places}
    for place, folders in found.items():
        if not folders:
            raise NotADirectoryError(f"{place} is not a folder")
    return [folder for folders in found.values() for folder in folders]


def read_run_folder(folder: Path, node: str, *, is_waiting: bool = True) -> RunFolder | None:
    """Return the run in `folder`; None, if `is_waiting`, while it is too new to have a run.json."""
    signature = signature_of(folder / MANIFEST)
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(folder)
    except (OSError, ManifestError):
        if is_waiting and not signature and _is_new(folder):
            return None
    if manifest is not None and manifest.run_id:
        run_id, project, day = manifest.run_id, manifest.project or "", _day(manifest.created)
    else:
        first = _first_records(folder)
        run_id, project, day = _run_id(folder, first, node), "", _first_day(first)
    key = RunKey(run_id=_short(run_id), project=project[:_LONGEST_ID], day=day)
    return RunFolder(folder=folder, key=key, manifest=manifest, signature=signature)


def record_files(folder: Path) -> dict[int, Path]:
    """Return the record files of a run folder by rank.

    Raises:
        OSError: they cannot be listed.
    """
    try:
        ranks = other_ranks(folder)
    except (LinkedRanks, NotADirectoryError):
        ranks = []
    own = [0] if _is_file(folder / METRICS_JSONL) else []
    return {rank: rank_file(folder, rank) for rank in (*own, *ranks)}


def is_for_pages(name: str, size: int) -> bool:
    """Return whether `name`, after the name of its run, is a file that a page shows, such as a sample."""
    parts = name.split("/")[1:]
    return size <= MAX_BYTES and parts[0] not in OWN_NAMES and not any(part.startswith(".") for part in parts)


def manifest_bytes(folder: Path) -> bytes:
    """Return run.json as it is; nothing if it is missing or too large.

    Raises:
        OSError: it cannot be read.
    """
    return file_bytes(folder / MANIFEST, MAX_MANIFEST_BYTES)


def file_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; nothing if it is missing or larger than `limit`.

    Raises:
        OSError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return b""
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return b""
    return data if len(data) <= limit else b""


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_new(folder: Path) -> bool:
    try:
        return time.time() - os.lstat(folder / METRICS_JSONL).st_mtime < _SETTLED_S
    except OSError:
        return True


def _first_records(folder: Path) -> list[Record]:
    try:
        return read_from(folder / METRICS_JSONL, max_bytes=_START_WITHIN_BYTES).records
    except OSError:
        return []


def _run_id(folder: Path, records: list[Record], node: str) -> str:
    """Return the id in the first start record, else one made of where the folder is."""
    ids = (record.get("run_id") for record in records if record.get("event") == START)
    found = next((run_id for run_id in ids if isinstance(run_id, str) and run_id), None)
    place = f"{node}:{os.path.realpath(folder)}"
    return found or "folder-" + hashlib.sha256(os.fsencode(place)).hexdigest()[:32]


def _short(run_id: str) -> str:
    """Return the id, or a short one made of it: every row has it, and a folder may contain anything."""
    is_long = len(run_id) > _LONGEST_ID
    return "long-" + hashlib.sha256(run_id.encode()).hexdigest()[:32] if is_long else run_id


def _first_day(records: list[Record]) -> int:
    times = (record.get("time") for record in records)
    return _day(next((time_s for time_s in times if isinstance(time_s, (int, float))), 0.0))


def _day(time_s: float) -> int:
    return min(max(int(time_s // _DAY_S), 0), _LAST_DAY) if math.isfinite(time_s) else 0
