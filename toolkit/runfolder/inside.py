"""Reads files that records point to, only if they are inside the run's folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath
from typing import Final

from toolkit.runfolder.portable import DIRECTORY, SAFELY, has_dir_fd
from toolkit.runfolder.safefile import UnsafeFile, open_regular

_DIRECTORY: Final = DIRECTORY | SAFELY
_NOT_FOLLOWED: Final = (errno.ENOTDIR, errno.ELOOP)


class NotInside(ValueError):  # noqa: N818 - the name says what it found
    """A file is outside the folder, a link, not a regular file, too large, or missing; the message says which."""

    is_missing = False
    """Whether there is no such file, so that it may still come."""


def parts_inside(relative: str) -> tuple[str, ...]:
    """Return the parts of a path that stays inside its folder, whatever is there.

    Raises:
        NotInside: it is absolute, empty, or leads out.
    """
    parts = PurePosixPath(relative).parts
    if (
        not parts
        or "\0" in relative
        or relative.startswith("/")
        or any(part in ("..", ".") for part in parts)
    ):
        raise NotInside(f"{relative[:100]!r} is not a path inside the run's folder")
    return parts


def read_inside(folder: Path, relative: str, *, max_bytes: int) -> bytes:
    """Return the contents of `relative` in `folder`, following no links, symbolic or hard.

    Raises:
        NotInside: it is outside the folder, a link, not a regular file, too large, or missing.
    """
    parts = parts_inside(relative)
    try:
        descriptor = _open_without_links(folder, parts)
    except UnsafeFile as error:
        raise NotInside(str(error)) from error
    except UnicodeEncodeError as error:
        raise NotInside(f"{relative[:100]!a} is not a valid file name") from error
    except OSError as error:
        reason = "its path contains a link or a file" if error.errno in _NOT_FOLLOWED else error.strerror
        refused = NotInside(f"{relative[:100]!r}: {reason}")
        refused.is_missing = error.errno == errno.ENOENT
        raise refused from error
    try:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise NotInside(too_large(relative, size, max_bytes))
        data = b""
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
        return data
    finally:
        os.close(descriptor)


def too_large(relative: str, size: int, max_bytes: int) -> str:
    """Return the sentence for a file above the limit."""
    return f"{relative[:100]!r} is {size:,} bytes, more than the limit of {max_bytes:,}"


def _open_without_links(folder: Path, parts: tuple[str, ...]) -> int:
    if not has_dir_fd():
        path = folder.joinpath(*parts)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UnsafeFile(f"{parts[-1]} is outside the run's folder")
        return open_regular(path, only_name=True)
    at = os.open(folder, os.O_RDONLY | _DIRECTORY)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | _DIRECTORY, dir_fd=at)
            os.close(at)
            at = deeper
        return open_regular(Path(parts[-1]), dir_fd=at, only_name=True)
    finally:
        os.close(at)
