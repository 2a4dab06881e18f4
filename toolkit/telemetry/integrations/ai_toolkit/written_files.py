"""What ai-toolkit has written: the weights of a save, and the pictures of a sampling."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolkit.runfolder.layout import SAMPLES

_SAMPLE: Final = re.compile(r"__(?P<step>\d{1,9})_(?P<index>\d+)\.[A-Za-z0-9]+$")
_STEP: Final = re.compile(r"_\d{9}(?!\d)")
_WEIGHTS: Final = (".safetensors", ".pt")
_MAX_COPIED: Final = 64 * 1024 * 1024
_NO_WEIGHTS: Final = frozenset({"optimizer.pt", "samples"})
"""Written beside the weights; taken for some where they begin with the job's name."""


def note_folder(save_root: Path) -> Path:
    """Return where there may be a note of the run that the weights in `save_root` are from.

    It is hidden: any other file whose name begins with the job's is one that ai-toolkit takes for weights.
    """
    return save_root / ".telemetry"


def make_note_folder(save_root: Path) -> Path:
    """Return it, and have it there."""
    folder = note_folder(save_root)
    folder.mkdir(exist_ok=True)
    return folder


def saved_weights(save_root: Path, names: Sequence[str], step: int | None) -> list[Path]:
    """Return the weights that a save at `step`, or the last one where it is None, left in `save_root`.

    They begin with one of `names`, in whose order they come; one that is called just that comes first. The optimizer's
    state, which ai-toolkit writes after them, is not among them.
    """
    suffix = "" if step is None else f"_{step:09d}"

    def place(path: Path) -> tuple[int, bool, str]:
        number = next(number for number, name in enumerate(names) if path.name.startswith(name))
        return number, _stem(path) != f"{names[number]}{suffix}", path.name

    return sorted(
        (path for path in _entries(save_root) if _is_of_save(path, names, suffix)),
        key=place,
    )


def has_weights(save_root: Path, names: Sequence[str]) -> bool:
    """Say whether `save_root` has weights that ai-toolkit would go on from."""
    return any(_is_weights(path, names) for path in _entries(save_root))


def sample_names(save_root: Path) -> set[str]:
    """Return the names of all samples there are."""
    return {path.name for path in _entries(save_root / "samples")}


def new_samples(save_root: Path, known: Collection[str]) -> list[tuple[int, Path]]:
    """Return the samples whose name is not `known`, each with the number of its prompt."""
    found = [
        (int(match["index"]), path)
        for path in _entries(save_root / "samples")
        if path.name not in known and (match := _SAMPLE.search(path.name)) is not None
    ]
    return sorted(found)


def bring_inside(path: Path, run_folder: Path) -> Path:
    """Return where a sample is within the run folder, which is all that a page may show of a disk.

    It is the same file under a second name where the disk can do that, and else a copy.
    """
    folder = run_folder / SAMPLES
    folder.mkdir(exist_ok=True, mode=0o700)
    inside = folder / path.name
    with suppress(FileExistsError):
        try:
            os.link(path, inside)
        except FileExistsError:
            raise
        except OSError:
            if path.stat().st_size > _MAX_COPIED:
                return path
            shutil.copyfile(path, inside)
    return inside


def _is_of_save(path: Path, names: Sequence[str], suffix: str) -> bool:
    if not _is_weights(path, names):
        return False
    stem = _stem(path)
    # A model of two parts writes each part under a name of its own, with the step in its middle.
    return suffix in stem if suffix else _STEP.search(stem) is None


def _is_weights(path: Path, names: Sequence[str]) -> bool:
    if path.name in _NO_WEIGHTS or not path.name.startswith(tuple(names)):
        return False
    return path.suffix in _WEIGHTS or path.is_dir()


def _stem(path: Path) -> str:
    return path.stem if path.suffix in _WEIGHTS else path.name


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
