"""Finds the runs of a log directory, and says which of them are not this user's to write to."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.runfolder import folder_list
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.safefile import UnsafeFile, open_regular, why_not_ours

NOT_THE_CALLERS_FAULT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN}
)
A_FOLDER_OF_ITS_OWN = "this run gets a folder of its own"


def log_dir_of(options: TelemetryOptions) -> Path:
    """Return the log directory."""
    # Absolute, because a script may change its working directory later.
    return Path(os.path.abspath(Path(options.log_dir).expanduser()))


def runs_called(log_dir: Path, name: str, display_name: str) -> Iterator[tuple[Path, Manifest]]:
    """Yield the runs of this name."""
    # Some of `name`, `name-2`, `name-3` may have been removed since, so all that are there are looked at.
    ours = re.compile(rf"{re.escape(name)}(-[0-9]+)?")
    for folder in folders_in(log_dir):
        manifest = manifest_of(folder) if ours.fullmatch(folder.name) else None
        if manifest is not None and manifest.display_name == display_name and manifest.part_of is None:
            yield folder, manifest


def all_runs(log_dir: Path, name: str) -> Iterator[tuple[Path, Manifest]]:
    """Yield every run of `log_dir`, those whose folder begins with `name` first."""
    for folder in sorted(folders_in(log_dir), key=lambda folder: (not folder.name.startswith(name), folder)):
        manifest = manifest_of(folder)
        if manifest is not None:
            yield folder, manifest


def folders_in(log_dir: Path) -> list[Path]:
    """Return the folders in `log_dir`, and what links lead to; nothing if it cannot be listed."""
    links: list[str] = []
    try:
        return [log_dir / name for name in (*folder_list.folders_in(log_dir, links), *links)]
    except OSError:
        return []


def names_in(folder: Path) -> list[str]:
    """Return the names in `folder`; none if it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def manifest_of(folder: Path) -> Manifest | None:
    """Return the manifest of `folder` with the end that its records have; None without a readable one."""
    try:
        return with_end_record(read_manifest(folder), folder)
    except (OSError, ManifestError):
        return None


def not_ours(log_dir: Path, folder: Path) -> str | None:
    """Return why the run in `folder` must not be resumed: where others may write, one of them may have put it there."""
    try:
        os.close(open_regular(rank_file(folder, 0), only_name=True))
    except UnsafeFile as error:
        return f"{folder.name} cannot be resumed: {error}; {A_FOLDER_OF_ITS_OWN}"
    except OSError:
        pass
    why = why_not_ours(log_dir, folder)
    return None if why is None else f"{why}; {A_FOLDER_OF_ITS_OWN}"
