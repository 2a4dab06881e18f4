"""A small file in mapped memory that holds what is acknowledged and not yet in the record file.

The caller's thread copies an encoded line into the map, which costs a memory copy and waits for no disk; the writer's
thread takes it out to the record file. Mapped pages belong to the kernel, so a killed process leaves them behind, and
whoever opens the run next finds the rest here. It lies in a tmpfs where there is one: pages of a disk file can hold up
the thread that touches them while they are written back.

    0     magic, half size, pid, session, bytes committed in half A, in half B   (8 bytes each, native order)
    256   the record file this belongs to, as UTF-8, ended by a zero byte
    4096  half A, then half B: whole lines, back to back
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.safefile import open_regular

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind, and no tmpfs to find a journal in
    fcntl = None  # type: ignore[assignment]

HALF_BYTES: Final = 1024 * 1024
PREFIX: Final = "ai-toolkit-telemetry-"
SUFFIX: Final = ".journal"

_MAGIC: Final = 0x314C4E524A4B5441
_HEADER_BYTES: Final = 4096
_PATH_AT: Final = 256
_WORDS: Final = 6
_COMMITTED: Final = 4
"""Index of the first half's commit word; the second half's follows."""

_ours: dict[str, int] = {}
"""Journals this process writes, with their descriptors. A lock does not keep a process out of its own files."""


class Journal:
    """The writing side: two halves, one filled by callers while the other is emptied by the writer.

    Not locked: the logger makes one call at a time, except for `release`, which only the writer makes.
    """

    def __init__(self, memory: mmap.mmap, half_bytes: int, path: Path | None, descriptor: int | None) -> None:
        self.path = path
        """Where it lies, or None for memory that dies with the process."""
        self._memory = memory
        self._descriptor = descriptor
        self._words = memoryview(memory)[: _WORDS * 8].cast("Q")
        self._half_bytes = half_bytes
        self._active = 0
        self._commit_word = _COMMITTED
        self._draining: int | None = None
        self._base = _HEADER_BYTES
        self._end = self._base
        self._limit = self._base + half_bytes

    @classmethod
    def create(
        cls, folders: list[Path], record_file: Path, *, session: int, half_bytes: int = HALF_BYTES
    ) -> Journal:
        """Make a journal in the first of `folders` that takes one, else in memory that dies with the process."""
        for folder in folders:
            try:
                return cls._create_file(folder, record_file, session, half_bytes)
            except OSError:
                continue
        memory = mmap.mmap(-1, _HEADER_BYTES + 2 * half_bytes)
        return cls(memory, half_bytes, None, None)

    @classmethod
    def _create_file(cls, folder: Path, record_file: Path, session: int, half_bytes: int) -> Journal:
        path = folder / f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        size = _HEADER_BYTES + 2 * half_bytes
        flags = (
            os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        )
        descriptor = os.open(path, flags, 0o600)
        try:
            # Touching a page the file system has no room for kills the process, so all of them are had beforehand.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.write(descriptor, bytes(size))
            if fcntl is not None:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            raise
        name = os.fsencode(os.path.abspath(record_file))[: _HEADER_BYTES - _PATH_AT - 1]
        memory[_PATH_AT : _PATH_AT + len(name)] = name
        memory[: _WORDS * 8] = struct.pack(f"={_WORDS}Q", _MAGIC, half_bytes, os.getpid(), session, 0, 0)
        _ours[str(path)] = descriptor
        return cls(memory, half_bytes, path, descriptor)

    def append(self, line: bytes) -> int:
        """Commit `line`; after this a kill does not lose it. Returns the bytes in this half, 0 where it has no room."""
        start = self._end
        self._end = end = start + len(line)
        if end > self._limit:
            self._end = start
            return 0
        self._memory[start:end] = line
        # One aligned eight-byte store: a kill sees either the old length or the new one, never half a line.
        self._words[self._commit_word] = fill = end - self._base
        return fill

    @property
    def fill(self) -> int:
        """Bytes in the half that callers fill now."""
        return self._end - self._base

    def flip(self) -> bytes | None:
        """Hand the filled half to the writer and give callers the empty one; None where there is nothing to hand."""
        if self._draining is not None or self._end == self._base:
            return None
        filled = bytes(self._memory[self._base : self._end])
        self._draining = self._active
        self._active ^= 1
        self._commit_word = _COMMITTED + self._active
        self._base = _HEADER_BYTES + self._active * self._half_bytes
        self._end = self._base
        self._limit = self._base + self._half_bytes
        return filled

    def release(self) -> None:
        """Empty the half that was handed over: its lines are in the record file."""
        if self._draining is not None:
            self._words[_COMMITTED + self._draining] = 0
            self._draining = None

    def close(self, *, remove: bool) -> None:
        """Let go of the memory; the file itself stays for recovery unless `remove`."""
        if self.path is None:
            return
        _ours.pop(str(self.path), None)
        self._words.release()
        self._memory.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if remove:
            _unlink(self.path)

    def forget(self) -> None:
        """In a forked child: keep the parent's journal from ever being touched or unlocked here."""
        if self.path is not None:
            _ours.pop(str(self.path), None)


def shared_memory_folders() -> list[Path]:
    """Return the folders in memory where a journal may lie: none on systems without a tmpfs at a known place."""
    folder = Path("/dev/shm")
    return [folder] if sys.platform.startswith("linux") and os.access(folder, os.W_OK) else []


def journals_in(folder: Path) -> Iterator[Path]:
    """Yield the journals in `folder`, whoever writes or wrote them."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from (folder / name for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX))


class AbandonedJournal:
    """A journal whose writer is dead, held so that nobody else recovers it at the same time."""

    def __init__(self, path: Path, descriptor: int, data: bytes) -> None:
        self.path = path
        self.record_file = _record_file(data)
        self.lines = _lines(data)
        """The committed lines with their `seq`; some may be in the record file already."""
        self._descriptor = descriptor

    def close(self, *, remove: bool) -> None:
        """Let go of it; `remove` once all its lines are in the record file."""
        if remove:
            _unlink(self.path)
        os.close(self._descriptor)


def hold_abandoned(path: Path) -> AbandonedJournal | None:
    """Return the journal at `path` if no living process writes it; None where one does or it is not ours to read."""
    if str(path) in _ours or fcntl is None:
        return None
    try:
        os.close(open_regular(path))
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        # Record locks are not inherited by forked workers, so a worker that outlives its killed parent holds none.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        data = _contents(descriptor) if status.st_uid == os.geteuid() and status.st_nlink else None
    except OSError:
        data = None
    if data is None:
        os.close(descriptor)
        return None
    return AbandonedJournal(path, descriptor, data)


def pending_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return what the journal at `path` holds, without touching it: for a reader of a run that may be alive."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return []
    try:
        data = _contents(descriptor)
    finally:
        os.close(descriptor)
        if fcntl is not None and str(path) in _ours:
            # Closing any descriptor of a file drops all record locks this process has on it: take ours again.
            fcntl.lockf(_ours[str(path)], fcntl.LOCK_EX | fcntl.LOCK_NB)
    return [] if data is None else _lines(data)


def record_file_of(path: Path) -> Path | None:
    """Return the record file that the journal at `path` belongs to; None where it is no journal."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    try:
        head = os.read(descriptor, _HEADER_BYTES)
    finally:
        os.close(descriptor)
        if fcntl is not None and str(path) in _ours:
            fcntl.lockf(_ours[str(path)], fcntl.LOCK_EX | fcntl.LOCK_NB)
    return _record_file(head)


def _record_file(data: bytes) -> Path | None:
    if len(data) < _HEADER_BYTES or struct.unpack_from("=Q", data)[0] != _MAGIC:
        return None
    name = data[_PATH_AT:_HEADER_BYTES].split(b"\0", 1)[0]
    return Path(os.fsdecode(name)) if name else None


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    _, half_bytes, _, _, in_a, in_b = struct.unpack_from(f"={_WORDS}Q", data)
    found: dict[int, bytes] = {}
    for half, committed in ((0, in_a), (1, in_b)):
        start = _HEADER_BYTES + half * half_bytes
        for line in data[start : start + min(committed, half_bytes)].split(b"\n")[:-1]:
            try:
                seq = decode(line).get("seq")
            except RecordError:
                continue
            if type(seq) is int:
                found[seq] = line + b"\n"
    return sorted(found.items())


def _contents(descriptor: int) -> bytes | None:
    size = os.fstat(descriptor).st_size
    if not _HEADER_BYTES < size <= _HEADER_BYTES + 64 * HALF_BYTES:
        return None
    data = os.pread(descriptor, size, 0)
    if len(data) < size or struct.unpack_from("=Q", data)[0] != _MAGIC:
        return None
    return data


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
