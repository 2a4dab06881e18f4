"""Opening and replacing files in folders whose contents are not trusted."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from toolkit.runfolder.portable import DIRECTORY, NOFOLLOW, NONBLOCK, SAFELY, this_user
from toolkit.runfolder.script_interrupts import pass_on_interrupt

NO_FILE = (-1, -1)
"""The identity of no file."""

_READ = os.O_RDONLY | NONBLOCK | SAFELY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY

# What open() answers when the name turns out to be a link (Linux and macOS, FreeBSD) or a socket.
_NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO}

# Windows: "access denied" and "sharing violation", while the old file is open elsewhere.
_SHARING_VIOLATIONS = {5, 32}
_RETRY_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


class UnsafeFile(OSError):  # noqa: N818 - the name says what it found
    """A path is not a regular file of its own; the message says what it is."""


def open_regular(path: Path, *, dir_fd: int | None = None, only_name: bool = False) -> int:
    """Open the regular file at `path` for reading and return its descriptor, which the caller closes.

    Never follows a link in the last component, never waits (a FIFO would), never opens a device.
    With `dir_fd`, `path` is relative to that open folder. A hard link is refused if the file belongs to another user
    than the folder: whoever made the link may not be able to read it. With `only_name` every hard link is refused;
    records in a backup may be hard links of one user.

    Raises:
        UnsafeFile: something other than a regular file is there, or a hard link.
        FileNotFoundError: nothing is there.
    """
    before = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    _require_regular(path, before)
    try:
        fd = os.open(path, _READ, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise UnsafeFile(f"{path.name} is not a regular file ({error.strerror})") from error
        raise
    try:
        after = os.fstat(fd)
        _require_regular(path, after)
        if after.st_nlink > 1 and (only_name or _is_from_another(after, path, dir_fd)):
            raise UnsafeFile(f"{path.name} is a hard link: the file has {after.st_nlink} names")
        # Without O_NOFOLLOW a link put there after the first look would have been followed.
        if not NOFOLLOW and not os.path.samestat(before, after):
            raise UnsafeFile(f"{path.name} was replaced while it was being opened")
    except BaseException:
        os.close(fd)
        raise
    return fd


def replace_file(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    durable: bool = False,
    name_too: bool = True,
    owner_of: Path | None = None,
) -> None:
    """Put `data` at `path` in one step: a reader sees the old file or the new one, never a part of either.

    The new file has `mode`, narrowed by the umask, and, written by root, belongs to the owner of `owner_of`.
    A link at `path` is replaced, not followed.
    With `durable` the data has reached the disk before the name points to it, and the name before this returns; after a
    power cut without `name_too` the old file may be there, whole.
    When anything fails the old file is still there, and the error is raised.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    fd = os.open(temporary, _CREATE, mode)
    try:
        try:
            if owner_of is not None:
                give_to_owner(fd, owner_of)
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        rename_over(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable and name_too:
        _sync_folder(path.parent)


def give_to_owner(descriptor: int, path: Path) -> None:
    """Where root repairs a run of another user: have a file that was made for it belong to the owner of `path`."""
    status = os.stat(path)
    if this_user() == 0 and hasattr(os, "fchown") and os.fstat(descriptor).st_uid == 0 != status.st_uid:
        with suppress(OSError):  # root in a container may not be allowed to
            os.fchown(descriptor, status.st_uid, status.st_gid)


def copy_file(source: Path, target: Path, *, mode: int = 0o600) -> None:
    """Copy a file to a new name with `mode`, which the umask narrows. Raises FileExistsError if it is taken."""
    with open(source, "rb") as data, open(os.open(target, _CREATE, mode), "wb") as copy:
        shutil.copyfileobj(data, copy, 1024 * 1024)


def is_sharing_violation(error: OSError) -> bool:
    """Return whether Windows refused an operation because a file is open."""
    return getattr(error, "winerror", None) in _SHARING_VIOLATIONS


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return what identifies an open file."""
    return status.st_dev, status.st_ino


def is_file(descriptor: int, identity: tuple[int, int]) -> bool:
    """Return whether `descriptor` still is the file of `identity`: a script may have closed it by its number."""
    try:
        return identity_of(os.fstat(descriptor)) == identity
    except OSError as error:
        pass_on_interrupt(error)
        # Its disk or its server may be gone; it is still ours to close.
        return error.errno != errno.EBADF


def _is_from_another(status: os.stat_result, path: Path, dir_fd: int | None) -> bool:
    return status.st_uid != (os.stat(path.parent) if dir_fd is None else os.fstat(dir_fd)).st_uid


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFile(f"{path.name} is {_kind(status.st_mode)}, not a regular file")


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def write_all(fd: int, data: bytes) -> None:
    """Write `data`: a nearly full disk takes part of a write and reports no error."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def rename_over(source: Path, target: Path) -> None:
    """Rename a file that is not open to `target`, replacing it; on Windows, wait a moment for its readers."""
    for pause_s in _RETRY_PAUSES_S:
        try:
            os.replace(source, target)
        except PermissionError as error:
            pass_on_interrupt(error)
            if not is_sharing_violation(error):
                raise
            time.sleep(pause_s)
        else:
            return
    os.replace(source, target)


def _sync_folder(folder: Path) -> None:
    if not DIRECTORY:  # Windows has no way to sync a folder
        return
    fd = os.open(folder, os.O_RDONLY | DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network and user-space file systems cannot sync a folder; the data itself is synced.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)
