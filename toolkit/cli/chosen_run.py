"""The RUN argument: a run folder, or the newest run in a folder of runs."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from pathlib import Path
from typing import Final

from toolkit.runfolder.end_record import with_end_record
from toolkit.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.runfolder.manifest import ManifestError, read_manifest
from toolkit.runfolder.other_programs import another_programs_file
from toolkit.runfolder.parts import describe_part, part_in
from toolkit.runfolder.status import work_out_status

LOGS: Final = Path("logs")
"""Where runs are looked for if no RUN is given."""

_MOST_ENTRIES: Final = 100_000

COULD_NOT: Final = 2
"""Exit code: it could not be done. 0 is well, 1 means that something bad was found."""


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Declare RUN."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        type=Path,
        default=LOGS,
        help=f"a run folder, or a folder of runs to take the newest from (default: {LOGS})",
    )


def chosen_run(path: Path) -> Path | None:
    """Return the run at `path`, or print why there is none and return None."""
    folder = find_run(path)
    if folder is None:
        refuse(no_run_in(path))
    return folder


def no_run_in(path: Path) -> str:
    """Return the message for a `path` without a run."""
    records = path / METRICS_JSONL
    part = part_in(path)
    if part is not None:
        return f"{path} is {describe_part(path, part)}; rank 0's folder has the run"
    if records.is_symlink():
        reason = f"its {METRICS_JSONL} is a symbolic link, which is not followed"
    elif (name := another_programs_file(path)) is not None:
        reason = f"its {name} is another program's"
    elif records.exists():
        reason = f"its {METRICS_JSONL} is not a regular file"
    else:
        reason = f"no {METRICS_JSONL} there or one level below"
    return f"no run found in {path} ({reason})"


def find_run(path: Path) -> Path | None:
    """Return `path` if it is a run folder, else the run below that was written last, else None; follows no links."""
    if _written(path) is not None:
        return path
    newest: tuple[float, Path] | None = None
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                written = _written(path / entry.name) if entry.is_dir(follow_symlinks=False) else None
                if written is not None and (newest is None or written > newest[0]):
                    newest = (written, path / entry.name)
    except OSError:
        return None
    return newest[1] if newest is not None else None


def status_of(folder: Path) -> str:
    """Return the status of the run in `folder`, in a word."""
    try:
        return work_out_status(with_end_record(read_manifest(folder), folder), time.time()).name
    except (OSError, ManifestError):
        return f"no readable {MANIFEST}"


def _written(folder: Path) -> float | None:
    """Return when the records in `folder` were last written; None if it has no regular file of ours."""
    try:
        status = os.lstat(folder / METRICS_JSONL)
    except (OSError, ValueError):
        return None
    is_ours = stat.S_ISREG(status.st_mode) and another_programs_file(folder) is None
    return status.st_mtime if is_ours else None


def size_of(path: Path) -> int:
    """Return how many bytes a file or a folder holds, of at most 100,000 entries."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            # A journal is mostly a hole.
            return getattr(status, "st_blocks", status.st_size // 512) * 512
    except OSError:
        return 0
    size = seen = 0
    for folder, _, files in os.walk(path):
        for name in files:
            seen += 1
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
        if seen > _MOST_ENTRIES:
            break
    return size


def printable(text: str) -> str:
    """Return `text` without terminal control characters: names in a run folder are not trusted."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def refuse(reason: str) -> int:
    """Print `reason` to stderr and return the exit code for "it could not be done"."""
    print(printable(reason), file=sys.stderr)
    return COULD_NOT
