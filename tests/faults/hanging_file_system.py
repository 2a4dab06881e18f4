"""A file system that shows another folder, and stops taking writes for as long as a switch file exists.

python hanging_file_system.py SHOWN_FOLDER MOUNT_POINT SWITCH_FILE
"""

from __future__ import annotations

import os
import sys
import time

from fuse import FUSE, FuseOSError, Operations

_STAT_FIELDS = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
_SPACE_FIELDS = (
    *("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail"),
    *("f_ffree", "f_files", "f_flag", "f_frsize", "f_namemax"),
)


class HangingFileSystem(Operations):
    def __init__(self, shown, switch):
        self._shown = shown
        self._switch = switch

    def __call__(self, operation, *args):
        while self._hangs() in (operation, "everything"):
            time.sleep(0.02)
        try:
            return super().__call__(operation, *args)
        except OSError as error:
            raise FuseOSError(error.errno) from error

    def _hangs(self):
        try:
            with open(self._switch) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _at(self, path):
        return os.path.join(self._shown, path.lstrip("/"))

    def getattr(self, path, descriptor=None):
        status = os.lstat(self._at(path))
        return {name: getattr(status, name) for name in _STAT_FIELDS}

    def readdir(self, path, descriptor):
        return [".", "..", *os.listdir(self._at(path))]

    def create(self, path, mode, info=None):
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path, flags):
        return os.open(self._at(path), os.O_RDWR if flags & os.O_ACCMODE else os.O_RDONLY)

    def read(self, path, length, offset, descriptor):
        return os.pread(descriptor, length, offset)

    def write(self, path, data, offset, descriptor):
        return os.pwrite(descriptor, data, offset)

    def truncate(self, path, length, descriptor=None):
        os.truncate(self._at(path), length)

    def fsync(self, path, data_only, descriptor):
        os.fsync(descriptor)

    def release(self, path, descriptor):
        os.close(descriptor)

    def unlink(self, path):
        os.unlink(self._at(path))

    def rename(self, old, new):
        os.rename(self._at(old), self._at(new))

    def mkdir(self, path, mode):
        os.mkdir(self._at(path), mode)

    def rmdir(self, path):
        os.rmdir(self._at(path))

    def statfs(self, path):
        space = os.statvfs(self._at(path))
        return {name: getattr(space, name) for name in _SPACE_FIELDS}


if __name__ == "__main__":
    shown_folder, mount_point, switch_file = sys.argv[1:]
    FUSE(HangingFileSystem(shown_folder, switch_file), mount_point, foreground=True, direct_io=True)
