"""Where a run's files lie, and how its folder is named and made."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

METRICS_JSONL: Final = "metrics.jsonl"
METRICS_CSV: Final = "metrics.csv"
CONTROL: Final = "control.json"
MANIFEST: Final = "run.json"
LABELS: Final = "labels.json"
OUTPUT_LOG: Final = "output.log"
OUTPUT_TIMES: Final = "output.times"
RANKS: Final = "ranks"
TENSORBOARD: Final = "tensorboard"
ONE_LOGGER_FILE: Final = "one_logger.jsonl"
SAMPLES: Final = "samples"
TABLES: Final = "tables"
CODE: Final = "code"
OWN_NAMES: Final = frozenset(
    {
        *(METRICS_JSONL, METRICS_CSV, CONTROL, MANIFEST, LABELS, OUTPUT_LOG, OUTPUT_TIMES, RANKS),
        *(TENSORBOARD, ONE_LOGGER_FILE, CODE),
    }
)
"""What a run writes itself, without the files that its records point to."""
COPIED: Final = ".copy"
"""A file of each run that `telemetry copy` has made."""
TRASH: Final = ".trash"
"""Where the dashboard moves deleted runs, inside their log directory."""

_RANK_FILE = re.compile(r"[0-9]{5,9}\.jsonl")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,127}\Z")
_NOT_SAFE = re.compile(r"[^A-Za-z0-9._+=@-]+")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"com{i}" for i in range(10)), *(f"lpt{i}" for i in range(10))}
)

# Room for "-2", "-3", … after the name, within the 128 characters that every file system takes.
_NAME_LENGTH = 100
_MOST_OF_A_NAME = 100_000


class Modes(NamedTuple):
    """The permissions a run's files and folders are made with; the umask narrows them further."""

    folder: int
    file: int


PRIVATE: Final = Modes(folder=0o700, file=0o600)
SHARED: Final = Modes(folder=0o755, file=0o644)
GROUP: Final = Modes(folder=0o2750, file=0o640)
"""What is made in such a folder belongs to the folder's group."""


def modes_of(share: bool | str | None) -> Modes:
    """Return the permissions of a run with this `share` option."""
    return GROUP if share == "group" else SHARED if share else PRIVATE


def is_safe_name(name: str) -> bool:
    """Return whether `name` is a valid run folder: one path component that every file system accepts."""
    return (
        _SAFE_NAME.match(name) is not None
        and not name.endswith(".")
        and name.split(".")[0].lower() not in _RESERVED
    )


def safe_run_name(text: str) -> str:
    """Return a folder name for a run called `text`; it is never a path."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    name = _NOT_SAFE.sub("-", plain).strip("-._+=@ ")
    if len(name) > _NAME_LENGTH:
        # Two long names that differ only at the end stay two names.
        digest = f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
        name = f"{name[: _NAME_LENGTH - 9].rstrip('-._+=@')}-{digest}"
    if not name:
        name = "run"
    if not is_safe_name(name):
        name = f"run-{name}"
    return name


def candidate_names(name: str) -> Iterator[str]:
    """Yield the folder names to try for a run called `name`, first choice first."""
    yield name
    yield from (f"{name}-{number}" for number in range(2, _MOST_OF_A_NAME))


def claim_folder(log_dir: Path, name: str, modes: Modes) -> Path:
    """Make a new folder for a run called `name` under `log_dir` and return it.

    `mkdir` decides who gets a name, so that two runs started together never share a folder.

    Raises:
        OSError: the folder cannot be made.
    """
    # Not world-writable, whatever the umask: other users could replace runs with folders of their own.
    make_folders(log_dir, 0o775)
    for candidate in candidate_names(name):
        folder = log_dir / candidate
        try:
            make_run_folder(folder, modes)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{log_dir} has thousands of runs called {name!r}; choose another name")


def make_run_folder(folder: Path, modes: Modes) -> None:
    """Make a run's folder; one that is shared with a group belongs to that of its log directory, if the user is in it.

    Raises:
        OSError: it exists, or cannot be made.
    """
    os.mkdir(folder, modes.folder & 0o777)
    if modes.folder & stat.S_ISGID and hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(folder, -1, os.stat(folder.parent).st_gid)
        with suppress(OSError):  # some file systems and sandboxes do not let a folder pass its group on
            os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | stat.S_ISGID)


def make_folders(folder: Path, mode: int) -> None:
    """Make a folder that is missing, with those above it: all with `mode`, which os.makedirs gives only to the last."""
    if not folder.is_dir() and folder != folder.parent:
        make_folders(folder.parent, mode)
        # Another process may make it now; and a link to nothing, or a file, is an error.
        try:
            os.mkdir(folder, mode)
        except FileExistsError:
            if not folder.is_dir():
                raise


def rank_file(folder: Path, rank: int) -> Path:
    """Return the record file of one rank: rank 0's is the run's own."""
    return folder / METRICS_JSONL if rank == 0 else folder / RANKS / f"{rank:05d}.jsonl"


def output_file(folder: Path, rank: int) -> Path:
    """Return what one rank printed: rank 0's is the run's own."""
    return folder / OUTPUT_LOG if rank == 0 else folder / RANKS / f"{rank:05d}.{OUTPUT_LOG}"


class LinkedRanks(OSError):  # noqa: N818 - the name says what is wrong
    """The folder of the other ranks' files is a link, which is not followed."""


def other_ranks(folder: Path) -> list[int]:
    """Return the ranks other than rank 0 that wrote records into a run folder, in order; links are not followed.

    Raises:
        OSError: they cannot be listed.
    """
    ranks = folder / RANKS
    if ranks.is_symlink():
        raise LinkedRanks(f"{RANKS} is a link and is not followed")
    try:
        with os.scandir(ranks) as entries:
            names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except FileNotFoundError:
        return []
    found = sorted(int(name[:-6]) for name in names if _RANK_FILE.fullmatch(name))
    return [rank for rank in found if rank and rank_file(folder, rank).name in names]
