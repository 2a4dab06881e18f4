"""A file system that shows another folder and does to its files what a list of rules says.

python faulty_file_system.py SHOWN_FOLDER MOUNT_POINT RULES_FILE [mapped]

It speaks to the kernel's FUSE device itself, so nothing has to be installed for it; only root may mount it. How often a
rule was followed is in RULES_FILE.hits. With `mapped` files can be mapped into memory, as databases want to; every
write still comes here at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
import time

from fault_rules import Rules

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _MKDIR, _UNLINK, _RMDIR, _RENAME = 1, 2, 3, 4, 9, 10, 11, 12
_OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC, _FLUSH, _INIT = 14, 15, 16, 17, 18, 20, 25, 26
_OPENDIR, _READDIR, _RELEASEDIR, _FSYNCDIR, _ACCESS, _CREATE = 27, 28, 29, 30, 34, 35
_INTERRUPT, _DESTROY, _BATCH_FORGET, _RENAME2 = 36, 38, 42, 45
_NO_ANSWER = (_FORGET, _BATCH_FORGET, _INTERRUPT)

_BIG_WRITES = 1 << 5
_DIRECT_IO = 1
_MAX_WRITE = 128 * 1024
_OPS = {
    _OPEN: "open",
    _CREATE: "open",
    _WRITE: "write",
    _FSYNC: "fsync",
    _RENAME: "rename",
    _RENAME2: "rename",
}


class _Opened:
    """A file that someone has open."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.since = time.monotonic()


class FaultyFileSystem:
    """Answers the kernel's requests on `device` from the files of `shown`."""

    def __init__(
        self, device: int, shown: str, rules: Rules, hits_file: str, *, mapped: bool = False
    ) -> None:
        self._device = device
        self._open_flags = 0 if mapped else _DIRECT_IO
        self._rules = rules
        self._hits_file = hits_file
        self._lock = threading.RLock()
        self._path_of = {1: shown}
        self._node_of = {shown: 1}
        self._open: dict[int, _Opened] = {}
        self._next = 2

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _MAX_WRITE + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                os._exit(0)  # unmounted
            _, opcode, unique, node, *_ = struct.unpack_from("=IIQQIII", request)
            try:
                answer = self._answer(opcode, node, memoryview(request)[40:])
                number = 0
            except OSError as error:
                answer, number = b"", error.errno or errno.EIO
            if opcode not in _NO_ANSWER:
                try:
                    os.write(self._device, struct.pack("=IiQ", 16 + len(answer), -number, unique) + answer)
                except OSError:
                    pass  # whoever asked is gone

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes:
        path = self._path_of.get(node, "")
        is_short = False
        if opcode not in (_INIT, *_NO_ANSWER):
            opened = None
            if opcode in (_READ, _WRITE, _FSYNC):
                opened = self._open[struct.unpack_from("=Q", body)[0]]
            is_short = self._meet(opcode, self._touched(opcode, path, body, opened), opened)
        if opcode == _INIT:
            return self._init(body)
        if opcode == _LOOKUP:
            return self._entry(self._child(path, _name(body)))
        if opcode == _GETATTR:
            return self._attributes(os.lstat(path)) if path else self._attributes(self._stat_open(body))
        if opcode == _SETATTR:
            return self._set_attributes(path, body)
        if opcode == _MKDIR:
            made = self._child(path, _name(body[8:]))
            os.mkdir(made, struct.unpack_from("=I", body)[0] & 0o7777)
            return self._entry(made)
        if opcode in (_UNLINK, _RMDIR):
            return self._remove(self._child(path, _name(body)), is_folder=opcode == _RMDIR)
        if opcode in (_RENAME, _RENAME2):
            return self._rename(path, opcode, body)
        if opcode == _OPEN:
            flags = struct.unpack_from("=I", body)[0]
            return self._opened(path, flags & ~(os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW))
        if opcode == _CREATE:
            flags, mode = struct.unpack_from("=II", body)
            made = self._child(path, _name(body[16:]))
            answer = self._opened(made, (flags & ~os.O_APPEND) | os.O_CREAT, mode & 0o7777)
            return self._entry(made) + answer
        if opcode == _READ:
            handle, offset, size = struct.unpack_from("=QQI", body)
            return os.pread(self._open[handle].descriptor, size, offset)
        if opcode == _WRITE:
            handle, offset, size = struct.unpack_from("=QQI", body)
            data = body[40 : 40 + (max(1, size // 2) if is_short else size)]
            return struct.pack("=II", os.pwrite(self._open[handle].descriptor, data, offset), 0)
        if opcode == _FSYNC:
            os.fdatasync(self._open[struct.unpack_from("=Q", body)[0]].descriptor)
            return b""
        if opcode == _RELEASE:
            os.close(self._open.pop(struct.unpack_from("=Q", body)[0]).descriptor)
            return b""
        if opcode == _READDIR:
            return self._list(path, body)
        if opcode == _STATFS:
            space = os.statvfs(path)
            return struct.pack(
                "=QQQQQIIII24x",
                *(space.f_blocks, space.f_bfree, space.f_bavail, space.f_files, space.f_ffree),
                *(space.f_bsize, space.f_namemax, space.f_frsize, 0),
            )
        if opcode == _OPENDIR:
            return struct.pack("=QII", 0, 0, 0)
        if opcode in (_FLUSH, _RELEASEDIR, _FSYNCDIR, _ACCESS, _DESTROY, *_NO_ANSWER):
            return b""
        raise OSError(errno.ENOSYS, "not needed here")

    def _touched(self, opcode: int, path: str, body: memoryview, opened: _Opened | None) -> str:
        if opened is not None:
            return opened.path
        if opcode == _CREATE:
            return f"{path}/{_name(body[16:])}"
        if opcode in (_RENAME, _RENAME2):
            names = body[8 if opcode == _RENAME else 16 :].tobytes().split(b"\0")
            return f"{path}/{os.fsdecode(names[1])}"
        return path

    def _meet(self, opcode: int, path: str, opened: _Opened | None) -> bool:
        before = self._rules.hits
        try:
            return self._rules.meet(_OPS.get(opcode, "other"), path, opened.since if opened else 0.0)
        finally:
            if self._rules.hits != before:
                with open(self._hits_file, "w") as file:
                    file.write(str(self._rules.hits))

    def _init(self, body: memoryview) -> bytes:
        _, minor, readahead, _ = struct.unpack_from("=IIII", body)
        head = struct.pack("=IIII", 7, min(minor, 31), readahead, _BIG_WRITES)
        return head + struct.pack("=HHIIHHII24x", 12, 9, _MAX_WRITE, 1, 0, 0, 0, 0)

    def _child(self, folder: str, name: str) -> str:
        if not folder:
            raise OSError(errno.ENOENT, "its folder is gone")
        return os.path.join(folder, name)

    def _entry(self, path: str) -> bytes:
        status = os.lstat(path)
        with self._lock:
            node = self._node_of.get(path)
            if node is None:
                node, self._next = self._next, self._next + 1
                self._node_of[path], self._path_of[node] = node, path
        return struct.pack("=QQQQII", node, 0, 0, 0, 0, 0) + _packed(status)

    def _attributes(self, status: os.stat_result) -> bytes:
        return struct.pack("=QII", 0, 0, 0) + _packed(status)

    def _stat_open(self, body: memoryview) -> os.stat_result:
        flags, _, handle = struct.unpack_from("=IIQ", body)
        if flags & 1 and handle in self._open:
            return os.fstat(self._open[handle].descriptor)
        raise OSError(errno.ENOENT, "it was removed")

    def _set_attributes(self, path: str, body: memoryview) -> bytes:
        valid, _, handle, size = struct.unpack_from("=IIQQ", body)
        mode = struct.unpack_from("=I", body, 68)[0]
        # The file that is open, should another have taken its name.
        target = self._open[handle].descriptor if valid & 64 and handle in self._open else path
        if valid & 8:
            os.truncate(target, size)
        if valid & 1:
            os.chmod(target, mode & 0o7777)
        return self._attributes(os.stat(target))

    def _remove(self, path: str, *, is_folder: bool) -> bytes:
        (os.rmdir if is_folder else os.unlink)(path)
        with self._lock:
            node = self._node_of.pop(path, None)
            if node is not None:
                self._path_of[node] = ""
        return b""

    def _rename(self, folder: str, opcode: int, body: memoryview) -> bytes:
        into = self._path_of.get(struct.unpack_from("=Q", body)[0], "")
        names = body[8 if opcode == _RENAME else 16 :].tobytes().split(b"\0")
        old, new = self._child(folder, os.fsdecode(names[0])), self._child(into, os.fsdecode(names[1]))
        with self._lock:
            os.rename(old, new)
            replaced = self._node_of.pop(new, None)
            if replaced is not None:
                self._path_of[replaced] = ""
            for path, node in list(self._node_of.items()):
                if path == old or path.startswith(old + "/"):
                    moved = new + path[len(old) :]
                    del self._node_of[path]
                    self._node_of[moved], self._path_of[node] = node, moved
        return b""

    def _opened(self, path: str, flags: int, mode: int = 0o600) -> bytes:
        if not path:
            raise OSError(errno.ENOENT, "it was removed")
        opened = _Opened(os.open(path, flags, mode), path)
        with self._lock:
            handle, self._next = self._next, self._next + 1
            self._open[handle] = opened
        return struct.pack("=QII", handle, self._open_flags, 0)

    def _list(self, path: str, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        answer = b""
        names = [".", "..", *sorted(os.listdir(path))]
        for number, name in enumerate(names[offset:], start=offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("=QQII", number, number, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def _name(body: memoryview) -> str:
    return os.fsdecode(body.tobytes().split(b"\0", 1)[0])


def _packed(status: os.stat_result) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    return struct.pack(
        "=QQQQQQIIIIIIIIII",
        *(status.st_ino, status.st_size, status.st_blocks),
        *(time_ns // 10**9 for time_ns in times),
        *(time_ns % 10**9 for time_ns in times),
        *(status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0),
    )


def _mount(device: int, mount_point: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    data = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if libc.mount(b"faulty", os.fsencode(mount_point), b"fuse", 6, data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    shown_folder, mount_at, rules_file, *options = sys.argv[1:]
    device_file = os.open("/dev/fuse", os.O_RDWR)
    _mount(device_file, mount_at)
    served = FaultyFileSystem(
        device_file, shown_folder, Rules(rules_file), rules_file + ".hits", mapped="mapped" in options
    )
    threads = [threading.Thread(target=served.serve) for _ in range(12)]
    for thread in threads:
        thread.start()
