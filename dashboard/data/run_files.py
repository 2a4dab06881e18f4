"""Reads files that records point to, only if they are inside the run's folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from dashboard.data.run_store import Refused
from toolkit.runfolder.portable import DIRECTORY, SAFELY, has_dir_fd
from toolkit.runfolder.safefile import UnsafeFile, open_regular

_DIRECTORY = DIRECTORY | SAFELY


def read_inside(folder: Path, relative: str, *, max_bytes: int) -> bytes:
    """Return the contents of `relative` in `folder`, following no symbolic links.

    Raises:
        Refused: it is outside the folder, a link, not a regular file, too large, or missing.
    """
    parts = PurePosixPath(relative).parts
    if (
        not parts
        or "\0" in relative
        or relative.startswith("/")
        or any(part in ("..", ".") for part in parts)
    ):
        raise Refused(f"{relative[:100]!r} is not a path inside the run's folder")
    try:
        descriptor = _open_without_links(folder, parts)
    except UnsafeFile as error:
        raise Refused(str(error)) from error
    except UnicodeEncodeError as error:
        raise Refused(f"{relative[:100]!a} is not a valid file name") from error
    except OSError as error:
        reason = "its path contains a link or a file" if error.errno in _NOT_FOLLOWED else error.strerror
        raise Refused(f"{relative[:100]!r}: {reason}") from error
    try:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise Refused(f"{relative[:100]!r} is {size:,} bytes, more than the limit of {max_bytes:,}")
        data = b""
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
        return data
    finally:
        os.close(descriptor)


_NOT_FOLLOWED = {20, 40}
"""ENOTDIR and ELOOP."""


def _open_without_links(folder: Path, parts: tuple[str, ...]) -> int:
    if not has_dir_fd():
        path = folder.joinpath(*parts)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UnsafeFile(f"{parts[-1]} is outside the run's folder")
        return open_regular(path)
    at = os.open(folder, os.O_RDONLY | _DIRECTORY)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | _DIRECTORY, dir_fd=at)
            os.close(at)
            at = deeper
        return open_regular(Path(parts[-1]), dir_fd=at)
    finally:
        os.close(at)
