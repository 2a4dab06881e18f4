"""Opening, reading and replacing files in folders whose contents are not trusted, and whose files count."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from toolkit.telemetry.runfolder.portable import (
    DIRECTORY,
    NOFOLLOW,
    NONBLOCK,
    SAFELY,
    has_dir_fd,
    pread,
    this_user,
)

NO_FILE = (-1, -1)
"""The identity of no file."""

_READ = os.O_RDONLY | NONBLOCK | SAFELY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY

# What open() answers when the name turns out to be a link (Linux and macOS, FreeBSD) or a socket.
_NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO}

_KINDS: Final = {"l": "a symbolic link", "d": "a folder", "p": "a FIFO", "s": "a socket"}
"""By the first letter of what `ls -l` shows."""

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
        _require_own(path, after, dir_fd, only_name=only_name)
        # Without O_NOFOLLOW a link put there after the first look would have been followed.
        if not NOFOLLOW and not os.path.samestat(before, after):
            raise UnsafeFile(f"{path.name} was replaced while it was being opened")
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_write(
    path: Path,
    flags: int,
    mode: int = 0o600,
    *,
    only_name: bool = True,
    known: tuple[int, int] = NO_FILE,
) -> int:
    """Open the regular file at `path` with `flags`, by which it may be made, and return its descriptor to be closed.

    Links, FIFOs and devices are refused as by `open_regular`: what is written must not go into a file elsewhere. The
    file whose identity is `known` was opened here before: since then a backup may have made a hard link to it.

    Raises:
        UnsafeFile: something other than a regular file is there, or a hard link.
        OSError: it cannot be opened, or is a symbolic link.
    """
    fd = os.open(path, flags | NONBLOCK | SAFELY, mode)
    try:
        status = os.fstat(fd)
        _require_own(path, status, None, only_name=only_name and identity_of(status) != known)
    except BaseException:
        # A sick disk is tried several times a second: what is left open would soon be all that a process may have.
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
    with new_file(path, mode=mode, durable=durable, owner_of=owner_of) as descriptor:
        write_all(descriptor, data)
    if durable and name_too:
        sync_folder(path.parent)


@contextmanager
def new_file(
    path: Path, *, mode: int = 0o600, durable: bool = False, owner_of: Path | None = None
) -> Iterator[int]:
    """Give the descriptor of a new file that takes the place of `path` when the block ends; see `replace_file`."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    fd = os.open(temporary, _CREATE, mode)
    try:
        try:
            if owner_of is not None:
                give_to_owner(fd, owner_of)
            yield fd
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        rename_over(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def give_to_owner(descriptor: int, path: Path) -> None:
    """Where root repairs a run of another user: have a file that was made for it belong to the owner of `path`."""
    status = os.stat(path)
    if this_user() == 0 and hasattr(os, "fchown") and os.fstat(descriptor).st_uid == 0 != status.st_uid:
        with suppress(OSError):  # root in a container may not be allowed to
            os.fchown(descriptor, status.st_uid, status.st_gid)


def copy_file(source: Path, target: Path, *, mode: int = 0o600) -> None:
    """Copy a file to a new name with `mode`, which the umask narrows. Raises FileExistsError if it is taken."""
    with open(source, "rb") as data, open(os.open(target, _CREATE, mode), "wb") as copy:
        while block := data.read(1024 * 1024):
            copy.write(block)


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
        # Its disk or its server may be gone; it is still ours to close.
        return error.errno != errno.EBADF


def _require_own(path: Path, status: os.stat_result, dir_fd: int | None, *, only_name: bool) -> None:
    _require_regular(path, status)
    if status.st_nlink < 2:
        return
    folder = os.stat(path.parent) if dir_fd is None else os.fstat(dir_fd)
    if only_name or status.st_uid != folder.st_uid:
        raise UnsafeFile(f"{path.name} is a hard link: the file has {status.st_nlink} names")


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.filemode(status.st_mode)[0], "a device")
        raise UnsafeFile(f"{path.name} is {kind}, not a regular file")


def write_all(fd: int, data: bytes) -> None:
    """Write `data`: a nearly full disk takes part of a write and reports no error."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def append_all(
    path: Path, data: bytes, *, mode: int, known: tuple[int, int] = NO_FILE, are_lines: bool = True
) -> tuple[tuple[int, int], int]:
    """Append `data` to a file, or nothing of it if the disk fails; return the file's identity and its new size.

    Of lines, half a one that a kill has left is ended before. `known` is as in `open_to_write`.
    """
    # Opened each time: the folder may have been moved.
    descriptor = open_to_write(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode, known=known)
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        if are_lines and size and pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            write_all(descriptor, data)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    return identity_of(status), size + len(data)


def rename_over(source: Path, target: Path) -> None:
    """Rename a file that is not open to `target`, replacing it; on Windows, wait briefly for its readers."""
    for pause_s in _RETRY_PAUSES_S:
        try:
            os.replace(source, target)
        except PermissionError as error:
            if not is_sharing_violation(error):
                raise
            time.sleep(pause_s)
        else:
            return
    os.replace(source, target)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last, such as that of a new file. Raises OSError where that failed."""
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


# ------------------------------------------------------------ owners
# In a log directory of several users each of them can make a folder, under any name and with any `run.json`.


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to the user this process acts for; always where files have no owners."""
    return this_user() in (None, status.st_uid)


def why_not_ours_alone(status: os.stat_result) -> str | None:
    """Return why another user may have written a file or folder, as the end of a sentence; None if no one else may."""
    if this_user() is None:
        return None
    if not is_ours(status):
        return f"belongs to another user (uid {status.st_uid})"
    # The mode of a symbolic link is meaningless.
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "chmod go-w makes it yours alone"
        )
    return None


def why_not_ours(log_dir: Path, path: Path) -> str | None:
    """Return why `path` in `log_dir` is another user's, who may have put anything there; None if it is not.

    The owner of the log directory could replace anything in it, so their folders are joined and written to.
    """
    user = this_user()
    if user is None:
        return None
    try:
        trusted = {user, os.stat(log_dir).st_uid}
        # The folder itself, and the link where it is one.
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid}
    except OSError:
        return None
    if owners <= trusted or owners <= {*trusted, _owner_of_what_we_make(log_dir)}:
        return None
    return f"{path.name} belongs to another user (uid {min(owners - trusted)})"


def _owner_of_what_we_make(log_dir: Path) -> int | None:
    """Return who owns a new folder in `log_dir`: a file server that does not trust root gives it to another user."""
    tried = log_dir / f".{os.urandom(8).hex()}"
    try:
        os.mkdir(tried, 0o700)
        try:
            return os.lstat(tried).st_uid
        finally:
            os.rmdir(tried)
    except OSError:
        return None


# ------------------------------------------------------------ files that records point to

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
    with open(open_inside(folder, relative), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise NotInside(too_large(relative, size, max_bytes))
        return file.read(size)


def open_inside(folder: Path, relative: str) -> int:
    """Open `relative` in `folder` for reading, following no links; the caller closes the descriptor.

    Raises:
        NotInside: it is outside the folder, a link, not a regular file, or missing.
    """
    parts = parts_inside(relative)
    try:
        return _open_without_links(folder, parts)
    except UnsafeFile as error:
        raise NotInside(str(error)) from error
    except UnicodeEncodeError as error:
        raise NotInside(f"{relative[:100]!a} is not a valid file name") from error
    except OSError as error:
        reason = "its path contains a link or a file" if error.errno in _NOT_FOLLOWED else error.strerror
        refused = NotInside(f"{relative[:100]!r}: {reason}")
        refused.is_missing = error.errno == errno.ENOENT
        raise refused from error


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
