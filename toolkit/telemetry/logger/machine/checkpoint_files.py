"""How large a checkpoint is and which folder it is in, without waiting for a disk that does not answer."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

from toolkit.telemetry.core.guard import Guard


class CheckpointFiles(NamedTuple):
    """What is known of a checkpoint on disk."""

    size: int | None = None
    """Bytes of the file, or of the files of the folder."""
    directory: str | None = None


def look_at(path: Any, timeout_s: float, guard: Guard) -> CheckpointFiles:
    """Return what is at `path`; nothing if its disk does not answer in time or `path` is not a path."""
    if not isinstance(path, (str, os.PathLike)):
        return CheckpointFiles()
    found: list[CheckpointFiles] = []

    def look() -> None:
        with guard.catch("looking up a checkpoint's size"):
            found.append(_files_at(os.fspath(path)))

    # On a thread of its own: a disk that hangs would otherwise hold up the training.
    looking = threading.Thread(target=look, name="telemetry-size", daemon=True)
    try:
        looking.start()
    except RuntimeError:
        # No more threads: the checkpoint is recorded without its size.
        return CheckpointFiles()
    looking.join(timeout_s)
    return found[0] if found else CheckpointFiles()


def _files_at(path: str | bytes) -> CheckpointFiles:
    text = os.fsdecode(path)
    try:
        if not os.path.isdir(text):
            return CheckpointFiles(size=os.stat(text).st_size, directory=os.path.dirname(text) or os.curdir)
        with os.scandir(text) as entries:
            size = sum(entry.stat().st_size for entry in entries if entry.is_file())
        return CheckpointFiles(size=size, directory=text)
    except (OSError, ValueError):
        return CheckpointFiles()
