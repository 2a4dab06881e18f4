"""The runs below some folders: who each is, what its manifest says, and which record files it has."""

from __future__ import annotations

import glob
import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.fleet.tail import RunKey
from toolkit.telemetry.runfolder.folder_list import Signature, signature_of
from toolkit.telemetry.runfolder.layout import (
    MANIFEST,
    METRICS_JSONL,
    OWN_NAMES,
    LinkedRanks,
    other_ranks,
    rank_file,
)
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.safefile import open_regular

_DAY_S: Final = 86_400
_LAST_DAY: Final = 2**16 - 1
_LONGEST_ID: Final = 6_000

MAX_BYTES: Final = 20_000_000
"""Larger files stay, unless the run wrote them itself; a page would not show them either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A run folder and its manifest."""

    folder: Path
    key: RunKey
    manifest: Manifest
    signature: Signature
    """Changes with run.json."""

    @property
    def is_part(self) -> bool:
        """Whether it has only some ranks of a run whose own folder is on another node."""
        return self.manifest.part_of is not None


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


def read_run_folder(folder: Path) -> RunFolder | None:
    """Return the run in `folder`; None without a run.json, which a run writes when it starts.

    Raises:
        ManifestError: it is invalid.
    """
    signature = signature_of(folder / MANIFEST)
    try:
        manifest = read_manifest(folder)
    except OSError:
        return None
    run_id, project = manifest.run_id, manifest.project or ""
    if not 0 < len(run_id) <= _LONGEST_ID:
        raise ManifestError(f"{folder / MANIFEST}: the run's id has {len(run_id)} characters")
    key = RunKey(run_id=run_id, project=project[:_LONGEST_ID], day=_day(manifest.created))
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
    """Return whether `name`, after the name of its run, is a file that a page shows, such as a sample.

    What a run printed, and its code, never go to an engine or what belongs to it.
    """
    parts = name.split("/")[1:]
    return size <= MAX_BYTES and parts[0] not in OWN_NAMES and not any(part.startswith(".") for part in parts)


def file_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; nothing if it is larger than `limit`.

    Raises:
        OSError: it is missing, or cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(limit + 1)
    return data if len(data) <= limit else b""


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _day(time_s: float) -> int:
    return min(max(int(time_s // _DAY_S), 0), _LAST_DAY) if math.isfinite(time_s) else 0
