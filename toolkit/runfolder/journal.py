"""A small file in mapped memory that holds what is acknowledged and not yet in the record file.

The caller's thread copies an encoded line into the map, which costs a memory copy and waits for no disk; the writer's
thread takes it out to the record file. Mapped pages belong to the kernel, so a killed process leaves them behind, and
whoever opens the run next finds the rest here. It lies in a tmpfs where there is one: pages of a disk file can hold up
the thread that touches them while they are written back.

    0     magic, segment size, pid, session, then the bytes committed in each segment   (8 bytes each, native order)
    1024  the real path of the record file this belongs to, ended by a zero byte
    8192  the segments, back to back: whole lines each

Two segments are enough while the disk keeps up: one is filled while the other is emptied. While it does not, a journal
in a tmpfs takes more of them, so that a kill in the middle of a disk's troubles costs no record either.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.safefile import NO_FILE, identity_of, is_file, open_regular

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind, and no tmpfs to find a journal in
    fcntl = None  # type: ignore[assignment]

SEGMENT_BYTES: Final = 1024 * 1024
PREFIX: Final = "ai-toolkit-telemetry-"
SUFFIX: Final = ".journal"

_MAGIC: Final = 0x324C4E524A4B5441
_HEADER_BYTES: Final = 8192
_PATH_AT: Final = 1024
_ALWAYS: Final = 2
"""Segments that are never given back."""
_MAX_SEGMENTS: Final = 120
_LEFT_FREE_BYTES: Final = 1024**3
"""What a journal that grows leaves of its tmpfs to others: this much, or half of a smaller one."""
_COMMITTED: Final = 4
"""Index of the first segment's commit word; those of the others follow."""
_WORDS: Final = _COMMITTED + _MAX_SEGMENTS

_UNBEGUN_S: Final = 600.0
"""A living process takes its journal's lock and writes its head within moments; one that is this old is nobody's."""

_ours: dict[tuple[int, int], int] = {}
"""Journals this process writes, as device and inode, with their descriptors.

A lock does not keep a process out of its own files; worse, closing any other descriptor of such a file drops the lock.
"""
_never_closed: list[mmap.mmap] = []


class Journal:
    """The writing side: callers fill one segment while the writer empties another.

    Not locked: the logger makes one call at a time, except for `release`, which only the writer makes.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        segment_bytes: int,
        path: Path | None,
        descriptor: int | None,
        *,
        segments: int = _ALWAYS,
        in_reserve: int = 0,
    ) -> None:
        self.path = path
        """Where it lies, or None for memory that dies with the process."""
        self.lines = 0
        """How many lines were committed. Nothing comes between a commit and its count, not even a signal handler."""
        self.capacity = segments * segment_bytes
        """Bytes it may hold, if the tmpfs has room for them."""
        self._memory = memory
        self._descriptor = descriptor
        self._identity = NO_FILE if descriptor is None else identity_of(os.fstat(descriptor))
        self._words = memoryview(memory)[: _WORDS * 8].cast("Q")
        self._segment_bytes = segment_bytes
        self._free = deque(range(1, _ALWAYS))
        self._unbacked = deque(range(_ALWAYS, segments))
        """Segments that have a place in the file and no memory yet."""
        self._in_reserve = deque(range(segments, segments + in_reserve))
        self._filled: deque[int] = deque()
        self._draining: int | None = None
        self._active = 0
        self._commit_word = _COMMITTED
        self._base: int = _HEADER_BYTES
        self._end: int = self._base
        self._limit: int = self._base + segment_bytes

    @classmethod
    def create(
        cls,
        folders: list[Path],
        record_file: Path,
        *,
        session: int,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = 0,
        reserve_bytes: int = 0,
    ) -> Journal:
        """Make a journal in the first of `folders` that takes one, else in memory that dies with the process.

        One in shared memory grows up to `max_bytes` while its lines are not taken out, and by `reserve_bytes` more once
        `open_reserve` was called.
        """
        for folder in folders:
            segments, in_reserve = _ALWAYS, 0
            try:
                if folder in shared_memory_folders():
                    wanted = min(max_bytes, _size_of(folder) // 8)
                    segments = max(_ALWAYS, min(wanted // segment_bytes, _MAX_SEGMENTS))
                    in_reserve = min(-(-reserve_bytes // segment_bytes), _MAX_SEGMENTS - segments)
                return cls._create_file(folder, record_file, session, segment_bytes, segments, in_reserve)
            except OSError:
                continue
        memory = mmap.mmap(-1, _HEADER_BYTES + _ALWAYS * segment_bytes)
        return cls(memory, segment_bytes, None, None)

    @classmethod
    def _create_file(
        cls,
        folder: Path,
        record_file: Path,
        session: int,
        segment_bytes: int,
        segments: int,
        in_reserve: int,
    ) -> Journal:
        path = folder / f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        size = _HEADER_BYTES + _ALWAYS * segment_bytes
        flags = (
            os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        )
        descriptor = os.open(path, flags, 0o600)
        # Before there is a lock on it: another thread that looks through the journals would drop it.
        identity = identity_of(os.fstat(descriptor))
        _ours[identity] = descriptor
        try:
            # Touching a page the file system has no room for kills the process, so all of them are had beforehand.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.write(descriptor, bytes(size))
            if segments + in_reserve > _ALWAYS:
                size = _HEADER_BYTES + (segments + in_reserve) * segment_bytes
                os.ftruncate(descriptor, size)
            if fcntl is not None:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory = mmap.mmap(descriptor, size)
        except OSError:
            del _ours[identity]
            os.close(descriptor)
            os.unlink(path)
            raise
        name = os.fsencode(os.path.realpath(record_file))[: _HEADER_BYTES - _PATH_AT - 1]
        memory[_PATH_AT : _PATH_AT + len(name)] = name
        head = (_MAGIC, segment_bytes, os.getpid(), session)
        memory[: _COMMITTED * 8] = struct.pack(f"={_COMMITTED}Q", *head)
        return cls(memory, segment_bytes, path, descriptor, segments=segments, in_reserve=in_reserve)

    def append(self, line: bytes) -> int:
        """Commit `line`; after this a kill does not lose it.

        Returns the bytes in its segment, 0 where there is no room for it.
        """
        start = self._end
        end = start + len(line)
        if end > self._limit:
            return self.append(line) if len(line) <= self._segment_bytes and self._begin_segment() else 0
        self._end = end
        self._memory[start:end] = line
        # One aligned eight-byte store: a kill sees either the old length or the new one, never half a line.
        self._words[self._commit_word] = fill = end - self._base
        self.lines += 1
        return fill

    @property
    def fill(self) -> int:
        """Bytes that were not handed to the writer yet."""
        return self._end - self._base + len(self._filled) * self._segment_bytes

    def flip(self) -> bytes | None:
        """Hand the oldest lines to the writer, a segment of them at most; None where there is nothing to hand.

        They stay in the journal until `release`, and the next ones are handed over only then.
        """
        if self._draining is not None:
            return None
        if not self._filled and (self._end == self._base or not self._begin_segment()):
            return None
        segment = self._filled[0]
        start = self._start_of(segment)
        # The copy may find no memory. Until it is there the segment counts as not handed over, and comes again.
        lines = self._memory[start : start + self._words[_COMMITTED + segment]]
        self._draining = self._filled.popleft()
        return lines

    def release(self) -> None:
        """Empty the segment that was handed over: its lines are in the record file."""
        segment = self._draining
        if segment is not None:
            self._words[_COMMITTED + segment] = 0
            is_given_back = segment >= _ALWAYS and self._give_back(segment)
            (self._unbacked if is_given_back else self._free).append(segment)
            self._draining = None

    def open_reserve(self) -> None:
        """Grow beyond the usual bound from now on: the process is about to end and its own memory with it."""
        while self._in_reserve:
            self._unbacked.append(self._in_reserve.popleft())

    def close(self, *, remove: bool) -> None:
        """Let go of the memory; the file itself stays for recovery unless `remove`."""
        if self.path is None or self._descriptor is None:
            return
        _ours.pop(self._identity, None)
        self._words.release()
        if is_file(self._descriptor, self._identity):
            self._memory.close()
            os.close(self._descriptor)
        else:
            # A script has closed descriptors by their numbers. The map has one of its own, whose number may be that of
            # a file of the script's by now, and would close it.
            _never_closed.append(self._memory)
        self._descriptor = None
        if remove:
            _unlink(self.path)

    def forget(self) -> None:
        """In a forked child: keep the parent's journal from ever being touched or unlocked here."""
        if self.path is None or self._descriptor is None:
            return
        _ours.pop(self._identity, None)
        # The pages are the parent's too. Whoever still gets here writes into memory of the child's own.
        self._memory = mmap.mmap(-1, len(self._memory))
        self._words = memoryview(self._memory)[: _WORDS * 8].cast("Q")

    def _start_of(self, segment: int) -> int:
        return _HEADER_BYTES + segment * self._segment_bytes

    def _begin_segment(self) -> bool:
        """Put the segment that is being filled behind the filled ones and begin another; False where there is none."""
        source = self._free
        if not source:
            source = self._unbacked
            if not source or not self._back(source[0]):
                return False
        segment = source[0]
        start = self._start_of(segment)
        # A signal handler may raise out of any call, so there is none from here on: it is done whole or not at all.
        del source[0]
        self._filled += (self._active,)
        self._active = segment
        self._commit_word = _COMMITTED + segment
        self._base = self._end = start
        self._limit = start + self._segment_bytes
        return True

    def _back(self, segment: int) -> bool:
        """Have memory for a segment, if there is enough of it: data loaders live in the tmpfs too."""
        assert self._descriptor is not None
        if not is_file(self._descriptor, self._identity):
            return False
        try:
            space = os.fstatvfs(self._descriptor)
            left_free = space.f_bavail * space.f_frsize - self._segment_bytes
            if left_free < min(space.f_blocks * space.f_frsize // 2, _LEFT_FREE_BYTES):
                return False
            os.posix_fallocate(self._descriptor, self._start_of(segment), self._segment_bytes)
        except OSError:
            return False
        return True

    def _give_back(self, segment: int) -> bool:
        """Return a segment's memory to the system; False where the system does not take it."""
        try:
            self._memory.madvise(mmap.MADV_REMOVE, self._start_of(segment), self._segment_bytes)
        except (AttributeError, OSError, ValueError):
            return False
        return True


def shared_memory_folders() -> list[Path]:
    """Return the folders in memory where a journal may lie: none on systems without a tmpfs at a known place."""
    folder = Path("/dev/shm")
    return [folder] if sys.platform.startswith("linux") and os.access(folder, os.W_OK) else []


def journals_in(folder: Path) -> Iterator[Path]:
    """Yield the journals in `folder`, whoever writes or wrote them; those of a run's earlier sessions first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    paths = [folder / name for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    yield from sorted(paths, key=_session_of)


class AbandonedJournal:
    """A journal whose writer is dead, held so that nobody else recovers it at the same time."""

    def __init__(self, path: Path, descriptor: int, head: bytes, lines: list[tuple[int, bytes]]) -> None:
        self.path = path
        self.record_file = _record_file(head)
        self.lines = lines
        """The committed lines with their `seq`; some may be in the record file already."""
        self._descriptor = descriptor

    def keep(self) -> None:
        """Hold it until this process ends, since this process writes its lines in its own time."""
        _ours[identity_of(os.fstat(self._descriptor))] = self._descriptor

    def close(self, *, remove: bool) -> None:
        """Let go of it; `remove` once all its lines are in the record file."""
        if remove:
            _unlink(self.path)
        os.close(self._descriptor)


def hold_abandoned(path: Path) -> AbandonedJournal | None:
    """Return the journal at `path` if no living process writes it; None where one does or it is not ours to read."""
    if fcntl is None or _own_descriptor(path) is not None:
        return None
    try:
        os.close(open_regular(path))
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    held = None
    try:
        # Record locks are not inherited by forked workers, so a worker that outlives its killed parent holds none.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        head = _head(descriptor)
        if head is not None and _is_mapped_by_its_writer(path, head):
            head = None
        if head is not None and status.st_uid == os.geteuid() and status.st_nlink:
            held = AbandonedJournal(path, descriptor, head, _lines(descriptor, head))
    except OSError:
        pass
    if held is None:
        os.close(descriptor)
    return held


def remove_unbegun(path: Path) -> None:
    """Remove the journal at `path` if whoever made it was killed, some minutes ago, before anything stood in it."""
    if fcntl is None or _own_descriptor(path) is not None:
        return
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        is_old = time.time() - status.st_mtime > _UNBEGUN_S
        if is_old and status.st_uid == os.geteuid() and not any(os.pread(descriptor, _HEADER_BYTES, 0)):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _unlink(path)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def pending_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return what the journal at `path` holds, without touching it: for a reader of a run that may be alive."""
    with _opened(path) as descriptor:
        head = None if descriptor is None else _head(descriptor)
        return [] if descriptor is None or head is None else _lines(descriptor, head)


def record_file_of(path: Path) -> Path | None:
    """Return the record file that the journal at `path` belongs to; None where it is no journal."""
    with _opened(path) as descriptor:
        head = None if descriptor is None else _head(descriptor)
        return None if head is None else _record_file(head)


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    own = _own_descriptor(path)
    if own is not None and _is_at(path, own):
        yield own
        return
    try:
        descriptor = open_regular(path)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _size_of(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_blocks * space.f_frsize


def _own_descriptor(path: Path) -> int | None:
    try:
        return _ours.get(identity_of(os.stat(path, follow_symlinks=False)))
    except OSError:
        return None


def _is_at(path: Path, descriptor: int) -> bool:
    """Say whether `descriptor` still names the file at `path`: a script may have closed it by its number."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def _head(descriptor: int) -> bytes | None:
    head = os.pread(descriptor, _HEADER_BYTES, 0)
    if len(head) < _HEADER_BYTES or struct.unpack_from("=Q", head)[0] != _MAGIC:
        return None
    return head


def _is_mapped_by_its_writer(path: Path, head: bytes) -> bool:
    """Say whether the process that made the journal at `path` lives and has it mapped, though it holds no lock.

    A script that closes descriptors by their numbers takes the lock from its own logger, which goes on all the same.
    """
    pid = struct.unpack_from("=4Q", head)[2]
    try:
        return path.name in Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape")
    except OSError:
        return False


def _session_of(path: Path) -> int:
    with _opened(path) as descriptor:
        head = None if descriptor is None else _head(descriptor)
        return 0 if head is None else int(struct.unpack_from("=4Q", head)[3])


def _record_file(head: bytes) -> Path | None:
    name = head[_PATH_AT:].split(b"\0", 1)[0]
    return Path(os.fsdecode(name)) if name else None


def _lines(descriptor: int, head: bytes) -> list[tuple[int, bytes]]:
    words = struct.unpack_from(f"={_WORDS}Q", head)
    segment_bytes = min(words[1], _MAX_SEGMENTS * SEGMENT_BYTES)
    # A file that is not ours may say anything; one of ours is no longer than this.
    left = min(os.fstat(descriptor).st_size, _MAX_SEGMENTS * SEGMENT_BYTES)
    found: dict[int, bytes] = {}
    for segment, committed in enumerate(words[_COMMITTED:]):
        start = _HEADER_BYTES + segment * segment_bytes
        length = min(committed, segment_bytes, left)
        left -= length
        for line in os.pread(descriptor, length, start).split(b"\n")[:-1]:
            try:
                seq = decode(line).get("seq")
            except RecordError:
                continue
            if type(seq) is int:
                found[seq] = line + b"\n"
    return sorted(found.items())


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
