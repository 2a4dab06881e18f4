"""The RUN argument: which runs it may name, and what is said where there is none."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.node_folders import describe_part, part_in
from toolkit.telemetry.runfolder.safefile import open_regular
from toolkit.telemetry.runfolder.trash import folder_bytes

if TYPE_CHECKING:
    # Every command imports this file, and few list runs.
    from toolkit.telemetry.runs.listing.run_folders import RunFolders

LOGS: Final = Path(os.environ.get("TELEMETRY_LOG_DIR") or "logs")
"""Where runs are looked for if no RUN is given."""

_MOST_ENTRIES: Final = 100_000

COULD_NOT: Final = 2
"""Exit code: it could not be done. 0 is well, 1 means that something bad was found."""


class CommandError(OSError):
    """What was asked cannot be done: the command prints the message, which says why, and exits with COULD_NOT."""


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Declare RUN."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        type=Path,
        default=LOGS,
        help=f"a run folder, a name of a run in {LOGS}, or a folder of runs to take the newest from (default: {LOGS})",
    )


def add_paths_argument(
    parser: argparse.ArgumentParser, what: str = "folders of runs, runs, or files of other tools"
) -> None:
    """Declare folders of runs; `paths` is the log directory where none is given."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        default=[LOGS],
        help=f"{what} (default: {LOGS})",
    )


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--format`."""
    from toolkit.telemetry.importers.detect import names_of

    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=names_of(),
        help="read RUN as another tool's log, in this format only",
    )


def runs_given(paths: Sequence[Path], *, only: str | None = None, deleted: bool = False) -> RunFolders:
    """Return the runs at `paths`, each of which may be the name of a run in the log directory.

    Of namesakes it is the newest, and stderr says so.
    """
    from toolkit.telemetry.core.user_folders import labels_dir
    from toolkit.telemetry.runs.listing.run_folders import runs_at

    folders = runs_at(paths, labels_dir=labels_dir(), only=only, deleted=deleted, logs=LOGS)
    for sentence in folders.namesakes:
        print_to_stderr(sentence)
    return folders


def no_run_in(path: Path, *, deleted: int = 0, near: Sequence[str] = ()) -> str:
    """Return the message for a `path` without a run.

    `deleted` is how many were deleted in the tool that wrote them, and `near` has the most similar names of runs.
    """
    part = part_in(path)
    if part is not None:
        return f"{path} is {describe_part(path, part)}; rank 0's folder has the run"
    if deleted:
        reason = "the run there is deleted" if deleted == 1 else f"all {deleted:,} runs there are deleted"
    else:
        reason = _why_none(path)
    hint = [f"did you mean {' or '.join(near)}?"] if near else []
    return "; ".join([f"no run found in {path} ({reason})", *hint])


def _why_none(path: Path) -> str:
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            os.close(open_regular(path))
            return "a file that is no log of a run" if status.st_size else "the file is empty"
        names = sorted(os.listdir(path))
        if METRICS_JSONL in names:
            os.close(open_regular(path / METRICS_JSONL))
    except FileNotFoundError:
        return "it does not exist"
    except OSError as error:
        # A link or a pipe has no number of an error.
        return error.strerror.lower() if error.strerror else str(error)
    closed = [name for name in names[:_MOST_ENTRIES] if not os.access(path / name, os.R_OK)]
    databases = [name for name in names if name.endswith((".db", ".sqlite", ".sqlite3"))]
    if closed:
        return f"permission denied: {', '.join(closed[:3])}{' …' if len(closed) > 3 else ''}"
    if databases:
        return f"no {METRICS_JSONL} there or one level below, and no run in {', '.join(databases[:3])}"
    return f"no {METRICS_JSONL} there or one level below" if names else "the folder is empty"


def size_of(path: Path) -> int:
    """Return how many bytes a file or a folder holds, of at most 100,000 entries."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    # A journal is mostly a hole.
    is_folder = stat.S_ISDIR(status.st_mode)
    return (
        folder_bytes(path, _MOST_ENTRIES)
        if is_folder
        else getattr(status, "st_blocks", status.st_size // 512) * 512
    )


def printable(text: str) -> str:
    """Return `text` without terminal control characters: names in a run folder are not trusted."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def print_to_stderr(line: str) -> None:
    """Print a line to stderr, apart from what a command answers."""
    print(printable(line), file=sys.stderr, flush=True)


def refuse(reason: str) -> int:
    """Print `reason` to stderr and return the exit code for "it could not be done"."""
    print_to_stderr(reason)
    return COULD_NOT
