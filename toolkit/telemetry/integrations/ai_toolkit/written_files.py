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
_STEP: Final = re.compile(r"_\d{9}(?!\d)")
_WEIGHTS: Final = (".safetensors", ".pt")
_MAX_COPIED: Final = 64 * 1024 * 1024
_NOT_WEIGHTS: Final = frozenset({"optimizer.pt", "samples"})
"""Written next to the weights, with names that may begin with the job's name too."""


def lineage_folder(save_root: Path) -> Path:
    """Return the hidden folder of the file that names the weights' run: ai-toolkit would take others for weights."""
    return save_root / ".telemetry"


def saved_weights(save_root: Path, names: Sequence[str], step: int | None) -> list[Path]:
    """Return the weights that a save at `step`, or the final one if it is None, left in `save_root`.

    Their names begin with one of `names` and are sorted in that order, exact names first. The optimizer's state, which
    ai-toolkit writes after them, is not included.
    """
    suffix = "" if step is None else f"_{step:09d}"

    def place(path: Path) -> tuple[int, bool, str]:
        number = next(number for number, name in enumerate(names) if path.name.startswith(name))
        return number, _stem(path) != f"{names[number]}{suffix}", path.name

    return sorted((path for path in _entries(save_root) if _is_of_save(path, names, suffix)), key=place)


def has_weights(save_root: Path, names: Sequence[str]) -> bool:
    """Return whether `save_root` has weights that ai-toolkit would resume from."""
    return any(_is_weights(path, names) for path in _entries(save_root))


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


def _is_of_save(path: Path, names: Sequence[str], suffix: str) -> bool:
    if not _is_weights(path, names):
        return False
    stem = _stem(path)
    # A model of two parts writes each under its own name, with the step in the middle.
    return suffix in stem if suffix else _STEP.search(stem) is None


def _is_weights(path: Path, names: Sequence[str]) -> bool:
    if path.name in _NOT_WEIGHTS or not path.name.startswith(tuple(names)):
        return False
    return path.suffix in _WEIGHTS or path.is_dir()


def _stem(path: Path) -> str:
    return path.stem if path.suffix in _WEIGHTS else path.name


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
