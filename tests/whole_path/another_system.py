"""Makes a process into one on a system that lacks what Windows lacks, as far as Linux can pretend to.

The names are gone from `os` for good, so this is for processes of their own.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import types
from pathlib import Path

NAMES = """
    pread pwrite preadv pwritev posix_fallocate posix_fadvise fdatasync
    geteuid getuid getegid getgid getgroups seteuid setuid chown fchown lchown
    fork forkpty register_at_fork getpgid killpg setsid wait3 wait4 uname getloadavg
    sched_getaffinity sched_setaffinity confstr mkfifo mknod nice getpriority
    O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK O_SYNC O_DSYNC SEEK_DATA SEEK_HOLE
""".split()
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")


def become_another_system() -> None:
    """Take everything away that Windows does not have; our own modules must not be imported yet."""
    assert not any(name.split(".")[0] in ("toolkit", "dashboard") for name in sys.modules)
    for name in NAMES:
        if hasattr(os, name):
            delattr(os, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    os.supports_dir_fd = set()
    shutil._use_fd_functions = False  # what it is there
    for name in "open stat unlink mkdir rmdir rename replace access chmod utime link".split():
        setattr(os, name, _without_dir_fd(getattr(os, name)))
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, _not_while_open(getattr(os, name)))
    plain_access = os.access
    os.access = lambda path, mode, **how: str(path) != "/dev/shm" and plain_access(path, mode, **how)
    from toolkit.telemetry.runfolder import process

    # No /proc, and no signal that asks after a process.
    process.sys = types.SimpleNamespace(platform="win32")
    process._fields_of = lambda pid: []
    process.boot_id = lambda: None
    process.pid_namespace = lambda: None


def _without_dir_fd(function):
    def call(*args, dir_fd=None, src_dir_fd=None, dst_dir_fd=None, **more):
        if not dir_fd is src_dir_fd is dst_dir_fd is None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        return function(*args, **more)

    return call


def _not_while_open(function):
    """Return a function that refuses a file that this process has open, as Windows does."""

    def call(*paths, **more):
        named = {(status.st_dev, status.st_ino) for path in paths if (status := _status(path)) is not None}
        for number in os.listdir("/proc/self/fd"):
            try:
                status = os.fstat(int(number))
            except OSError:
                continue
            if (status.st_dev, status.st_ino) in named and stat.S_ISREG(status.st_mode):
                error = PermissionError(
                    13, "The process cannot access the file because it is in use", str(paths[0])
                )
                error.winerror = 32
                raise error
        return function(*paths, **more)

    return call


def _status(path):
    try:
        return Path(path).lstat()
    except OSError:
        return None
