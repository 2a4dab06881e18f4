"""The run that a subcommand is about: named, or the newest in a folder of runs."""

from __future__ import annotations

import argparse
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
        refuse(f"{path} is no run folder and holds none: no {METRICS_JSONL} in it or directly below.")
    return folder


def find_run(path: Path) -> Path | None:
    """Return `path` where it is a run folder, else the run below it that was written to last, else None."""
    if (path / METRICS_JSONL).is_file():
        return path
    below = [found for found in path.glob(f"*/{METRICS_JSONL}") if found.is_file()]
    return max(below, key=lambda found: found.stat().st_mtime).parent if below else None


def printable(text: str) -> str:
    """Return `text` without what could command a terminal: names in a file are anybody's."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def refuse(reason: str) -> int:
    """Say why a command has nothing to do, and return its exit code."""
    print(printable(reason), file=sys.stderr)
    return 1
