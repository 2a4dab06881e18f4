"""Files that ai-toolkit writes: the weights of a save, and the samples."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.layout import SAMPLES, make_folders
from toolkit.telemetry.runfolder.safefile import copy_file

_SAMPLE: Final = re.compile(r"__(?P<step>\d{1,9})_(?P<index>\d+)\.[A-Za-z0-9]+$")
_WEIGHTS: Final = (".safetensors", ".pt")
_MAX_COPIED: Final = 64 * 1024 * 1024
_NOT_WEIGHTS: Final = frozenset({"optimizer.pt", "samples"})
"""Written next to the weights, with names that may begin with the job's name too."""


def lineage_folder(save_root: Path) -> Path:
    """Return the hidden folder of the file that names the weights' run: ai-toolkit would take others for weights."""
    return save_root / ".telemetry"


def weights_in(save_root: Path, names: Sequence[str]) -> dict[Path, int]:
    """Return the weights that ai-toolkit would resume from, and when each was written; in the order of `names`.

    The optimizer's state, which ai-toolkit writes after them, is not included.
    """

    def place(path: Path) -> tuple[bool, int, str]:
        return not path.name.startswith(names[0]), len(path.stem), path.name

    found = {}
    for path in sorted(_entries(save_root), key=place):
        is_file = path.suffix in _WEIGHTS or path.is_dir()
        if is_file and path.name not in _NOT_WEIGHTS and path.name.startswith(tuple(names)):
            # A link may lead nowhere; what is saved into a folder again does not change the folder itself.
            with suppress(OSError):
                found[path] = max(one.stat().st_mtime_ns for one in (path, *path.rglob("*")))
    return found


def sample_names(save_root: Path) -> set[str]:
    """Return the names of all samples."""
    return {path.name for path in _entries(save_root / "samples")}


def new_samples(save_root: Path, known: Collection[str]) -> list[tuple[int, Path]]:
    """Return the samples whose name is not in `known`, each with the index of its prompt."""
    found = [
        (int(match["index"]), path)
        for path in _entries(save_root / "samples")
        if path.name not in known and (match := _SAMPLE.search(path.name)) is not None
    ]
    return sorted(found)


def copy_sample(path: Path, run_folder: Path) -> Path:
    """Copy a sample into the run folder, where pages can read it, and return the new path; the old one if it is large.

    Not a hard link: pages refuse those, because they may be any file of its owner.
    """
    if path.stat().st_size > _MAX_COPIED:
        return path
    mode = stat.S_IMODE(run_folder.stat().st_mode)
    inside = run_folder / SAMPLES / path.name
    make_folders(inside.parent, mode)
    with suppress(FileExistsError):
        copy_file(path, inside, mode=mode & 0o666)
    return inside


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
