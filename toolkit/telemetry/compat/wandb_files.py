"""Files that a script wants to find with its run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_into(folder: Path, path: Path, base_path: str | os.PathLike[str] | None) -> str:
    """Link the file at `path` into `folder` and return where it is there; one that is there already stays.

    It keeps its path relative to `base_path`, or to the working directory; of an absolute one the last two parts. A
    path that would lead out of the folder is not linked.
    """
    if base_path is not None:
        name = os.path.relpath(path, base_path)
    else:
        name = os.path.join(path.parent.name, path.name) if path.is_absolute() else os.fspath(path)
    path = path.absolute()
    target = Path(os.path.normpath(folder / name))
    if path.is_relative_to(folder) or not target.is_relative_to(folder):
        return str(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        # A link, as W&B makes: a checkpoint may be large, and is on this machine already.
        os.symlink(path, target)
    except OSError:
        shutil.copyfile(path, target)
    return str(target)
