"""System calls that some systems lack, and what takes their place there."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HAS_LOCKS: Final = fcntl is not None

NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: Final[int] = getattr(os, "O_DIRECTORY", 0)
NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)
# Without O_BINARY Windows writes another byte before each newline, and every offset would be wrong.
SAFELY: Final[int] = NOFOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""How every file of a run is opened: no link followed, not inherited by programs, its bytes as they are."""

_one_at_a_time = threading.Lock()


def pread(descriptor: int, length: int, offset: int) -> bytes:
    """Read from `offset` on; the descriptor's own position does not matter."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    with _one_at_a_time:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def _seek_and_write(descriptor: int, data: bytes | memoryview, offset: int, /) -> int:
    with _one_at_a_time:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


# The function itself where there is one: some callers count microseconds.
pwrite = os.pwrite if hasattr(os, "pwrite") else _seek_and_write
"""Write at an offset and return how many bytes were written."""


def allocate(descriptor: int, offset: int, length: int) -> None:
    """Have room for `length` bytes at `offset`, never written before. Raises OSError if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, offset, length)
            return
        except OSError as error:
            # Not every file system can, and not every C library then does it by writing.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    while length > 0:
        written = pwrite(descriptor, bytes(min(length, 1024 * 1024)), offset)
        offset, length = offset + written, length - written


def has_dir_fd() -> bool:
    """Return whether a file can be opened by its name inside of an open folder."""
    return bool(DIRECTORY) and os.open in os.supports_dir_fd


def this_user() -> int | None:
    """Return the number of the user this process acts for, or None if files have no owners."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def try_lock(descriptor: int, *, within_s: float = 0.0) -> bool | None:
    """Lock an open file; False if it is locked already, None if this system or file system has no locks.

    The lock belongs to this opening of the file: it excludes other processes and other threads alike, and ends when
    the descriptor and its copies are closed, in forked children too. Some file servers do not answer a request for a
    lock: with `within_s` that counts as having none.
    """
    return _flock(descriptor, "LOCK_EX", within_s)


def lock_within(descriptor: int, wait_s: float, *, within_s: float = 0.0) -> bool | None:
    """Lock an open file as `try_lock` does; wait, at most `wait_s`, for whoever has it locked now."""
    deadline = time.monotonic() + wait_s
    while (
        is_locked_here := try_lock(descriptor, within_s=within_s)
    ) is False and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_locked_here


def unlock(descriptor: int) -> None:
    """Unlock an open file that `try_lock` locked, also for copies of the descriptor in forked children."""
    if _HAS_LOCKS:
        with suppress(OSError):  # there was no lock on this file system
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(descriptor: int, *, within_s: float = 0.0) -> bool | None:
    """Return whether another opening of the file has it locked; None if that cannot be known."""
    is_free = _flock(descriptor, "LOCK_SH", within_s)
    if is_free:
        unlock(descriptor)
    return None if is_free is None else not is_free


def _flock(descriptor: int, kind: str, within_s: float) -> bool | None:
    if not _HAS_LOCKS:
        return None
    answers: list[bool | None] = []

    def ask() -> None:
        try:
            fcntl.flock(descriptor, getattr(fcntl, kind) | fcntl.LOCK_NB)
        except OSError as error:
            answers.append(False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN) else None)
        else:
            answers.append(True)

    if within_s > 0:
        asking = threading.Thread(target=ask, name="telemetry-lock", daemon=True)
        try:
            asking.start()
        except RuntimeError:  # the machine starts no more threads
            ask()
        else:
            asking.join(within_s)
    else:
        ask()
    return answers[0] if answers else None


def off_the_usual_numbers(descriptor: int) -> int:
    """Return `descriptor` under a number that nothing else gets, where the system can do that.

    A script that closes descriptors by their numbers and then opens a file of its own gets the lowest free one: what
    is written without another look at the descriptor must not have such a number.
    """
    if not _HAS_LOCKS:
        return descriptor
    for lowest in (_HIGH, _HIGH // 4):
        try:
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(descriptor)
        return high
    return descriptor


_HIGH: Final = 900
"""Below the usual limit of 1024; a table of descriptors that is this long costs a fork nothing."""
