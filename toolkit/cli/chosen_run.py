"""The run that a subcommand is about: named, or the newest in a folder of runs."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path

from toolkit.runfolder.layout import METRICS_JSONL


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Declare RUN."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        type=Path,
        default=Path("logs"),
        help="a run folder, or a folder of runs, whose newest is taken (default: logs)",
    )


def chosen_run(path: Path) -> Path | None:
    """Return the run that `path` means, else None, having said why there is none."""
    folder = find_run(path)
    if folder is None:
        refuse(f"{path} is no run folder and holds none: {_what_is_missing(path)}.")
    return folder


def _what_is_missing(path: Path) -> str:
    records = path / METRICS_JSONL
    if records.is_symlink():
        return f"its {METRICS_JSONL} is a symbolic link, which is not followed"
    if records.exists():
        return f"its {METRICS_JSONL} is no plain file"
    return f"no {METRICS_JSONL} in it or directly below"


def find_run(path: Path) -> Path | None:
    """Return `path` where it is a run folder, else the run below it that was written to last, else None.

    Links below `path` are not followed, nor is a link in the place of the records.
    """
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


def _written(folder: Path) -> float | None:
    """Return when the records in `folder` were written to last; None where it has no file of them."""
    try:
        status = os.lstat(folder / METRICS_JSONL)
    except (OSError, ValueError):
        return None
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def printable(text: str) -> str:
    """Return `text` without what could command a terminal: names in a file are anybody's."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def refuse(reason: str) -> int:
    """Say why a command has nothing to do, and return its exit code."""
    print(printable(reason), file=sys.stderr)
    return 1
