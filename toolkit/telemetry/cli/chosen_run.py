"""The RUN argument: a run folder, or the newest run in a folder of runs."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.parts import another_programs_file, describe_part, part_in
from toolkit.telemetry.runfolder.safefile import open_regular
from toolkit.telemetry.runfolder.status import work_out_status
from toolkit.telemetry.runfolder.trash import folder_bytes

LOGS: Final = Path(os.environ.get("TELEMETRY_LOG_DIR") or "logs")
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
        help=f"a run folder, a name of a run in {LOGS}, or a folder of runs to take the newest from (default: {LOGS})",
    )


def chosen_run(path: Path) -> Path:
    """Return the run that `find_run` finds. Raises FileNotFoundError, whose message says why there is none."""
    folder = find_run(path)
    if folder is None:
        raise FileNotFoundError(no_run_in(path))
    return folder


def no_run_in(path: Path, notes: Sequence[str] = (), *, deleted: int = 0) -> str:
    """Return the message for a `path` without a run; `deleted` is how many were deleted in the tool that wrote them."""
    part = part_in(path)
    if part is not None:
        return f"{path} is {describe_part(path, part)}; rank 0's folder has the run"
    if deleted:
        reason = "the run there is deleted" if deleted == 1 else f"all {deleted:,} runs there are deleted"
    else:
        reason = _why_none(path)
    return "; ".join([f"no run found in {path} ({reason})", *notes])


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


def find_run(path: Path) -> Path | None:
    """Return `path` if it is a run folder, else the run below that was written last, else None; follows no links.

    Where nothing is at `path`, it may be what `telemetry ls` prints of a run in the log directory: its folder or its
    name. Of namesakes it is the one that was written last, and stderr says so.
    """
    if written_at(path) is not None:
        return path
    if not os.path.lexists(path):
        return _run_named(path)
    newest: tuple[float, Path] | None = None
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                written = written_at(path / entry.name) if entry.is_dir(follow_symlinks=False) else None
                if written is not None and (newest is None or written > newest[0]):
                    newest = (written, path / entry.name)
    except OSError:
        return None
    return newest[1] if newest is not None else None


def _run_named(path: Path) -> Path | None:
    if os.path.lexists(LOGS / path):
        return find_run(LOGS / path)
    from toolkit.telemetry.runs.listing.run_folders import run_folders
    from toolkit.telemetry.runs.store import card_labels

    name, cards = str(path), run_folders([LOGS], other_tools=False).list_runs().cards
    labels = card_labels(cards)
    named = [card for card in cards if name in (labels[card.key].text, labels[card.key].folder)]
    named = named or [card for card in cards if card.name == name]
    say_which_namesake(name, [card.path or path for card in named])
    return named[0].path if named else None


def say_which_namesake(name: str, newest_first: Sequence[Path]) -> None:
    """Say on stderr which run is taken, where several have a name."""
    if len(newest_first) > 1:
        print_to_stderr(f"{len(newest_first)} runs are called {name}: this is the newest, {newest_first[0]}")


def status_of(folder: Path) -> str:
    """Return the status of the run in `folder`, in a word."""
    try:
        return work_out_status(with_end_record(read_manifest(folder), folder), time.time()).name
    except (OSError, ManifestError):
        return f"no readable {MANIFEST}"


def written_at(folder: Path) -> float | None:
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
    """Print a line to stderr, beside what a command answers."""
    print(printable(line), file=sys.stderr, flush=True)


def refuse(reason: str) -> int:
    """Print `reason` to stderr and return the exit code for "it could not be done"."""
    print_to_stderr(reason)
    return COULD_NOT
