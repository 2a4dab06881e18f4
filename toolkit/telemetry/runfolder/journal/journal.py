"""A small file that holds what is acknowledged and not yet in the record file.

The caller's thread copies an encoded line into it, and the writer's thread takes it out to the record file. Its pages
belong to the kernel, so a killed process leaves them behind, and the next process that opens the run finds the rest
here. The layout is in `journal_head`.

In a tmpfs the file is mapped: the copy waits for no disk. Elsewhere each line is written, by one system call, since the
pages of a mapped file on a disk that fails kill the process that touches them.

Two segments are enough while the disk keeps up: one is filled while the other is emptied. While it does not, a journal
in a tmpfs takes more of them, so that a kill in the middle of a disk's troubles costs no record either.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.codec import RecordError, decode
from toolkit.telemetry.runfolder.journal.head import (
    CLOSED,
    COMMITTED,
    HEADER_BYTES,
    MAX_SEGMENTS,
    WORDS,
    Head,
    Owner,
    make_head,
    read_head,
)
from toolkit.telemetry.runfolder.portable import (
    SAFELY,
    allocate,
    off_the_usual_numbers,
    pread,
    pwrite,
    try_lock,
)
from toolkit.telemetry.runfolder.safefile import (
    NO_FILE,
    identity_of,
    is_file,
    is_ours,
    is_sharing_violation,
    open_regular,
)
from toolkit.telemetry.runfolder.script_interrupts import pass_on_interrupt

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SEGMENT_BYTES: Final = 1024 * 1024
PREFIX: Final = "ai-toolkit-telemetry-"
SUFFIX: Final = ".journal"

_ALWAYS: Final = 2
"""Segments that are never released."""
_LEFT_FREE_BYTES: Final = 1024**3
"""What a growing journal leaves free of its tmpfs: this much, or half of a smaller one."""

_UNBEGUN_S: Final = 600.0
"""A live process locks its journal and writes its head within moments; an older file without them has no writer."""
_BREATH_LINES: Final = 128
_BREATH_S: Final = 0.0005
"""A training recovers what other runs left behind: its own thread gets the interpreter after every few lines."""
_LOCK_TRIES: Final = 100
"""Another process that looks for abandoned journals may hold a new one for a moment, until it sees that it is empty."""

_held: dict[int, Journal | AbandonedJournal] = {}
"""The journals that this process has locked, by `id`."""
_never_closed: list[mmap.mmap] = []


def _let_go_in_child() -> None:
    # A lock ends when the last copy of its descriptor is closed, and a forked worker may outlive its parent.
    for held in list(_held.values()):
        held.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


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
        is_mapped: bool = True,
        segments: int = _ALWAYS,
        in_reserve: int = 0,
    ) -> None:
        self.path = path
        """Its path, or None for memory that dies with the process."""
        self.next_seq = 0
        """The number that the next new line has. Nothing comes between a commit and this, not even a signal handler."""
        self.capacity = segments * segment_bytes
        """Bytes it may hold, if the tmpfs has room for them."""
        self.trouble: str | None = None
        """Why writing to the file failed: later lines are only in memory."""
        self._memory = memory
        self._descriptor = descriptor
        self._identity = NO_FILE if descriptor is None else identity_of(os.fstat(descriptor))
        self._is_mapped = is_mapped
        self._written_to = None if is_mapped else descriptor
        """The descriptor that each line is written to, if the file is not mapped."""
        self._words = memoryview(memory)[: WORDS * 8].cast("Q")
        self._segment_bytes = segment_bytes
        self._segments = segments, in_reserve
        self._moving = threading.Lock()
        """Held while the file is emptied or replaced: not by callers, which never wait for a disk."""
        self.is_closed = False
        """Whether `close` was called."""
        self._free = deque(range(1, _ALWAYS))
        self._unbacked = deque(range(_ALWAYS, segments))
        """Segments with a place in the file and no memory yet."""
        self._in_reserve = deque(range(segments, segments + in_reserve))
        self._filled: deque[int] = deque()
        self._draining: int | None = None
        self._active = 0
        self._commit_word = COMMITTED
        self._base: int = HEADER_BYTES
        self._end: int = self._base
        self._limit: int = self._base + segment_bytes
        if descriptor is not None:
            _held[id(self)] = self

    @classmethod
    def create(
        cls,
        folders: list[Path],
        record_file: Path,
        owner: Owner,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = 0,
        reserve_bytes: int = 0,
    ) -> Journal:
        """Create a journal in the first of `folders` that allows it, else in memory that dies with the process.

        One in shared memory grows up to `max_bytes` while its lines are not taken out, and by `reserve_bytes` more once
        `open_reserve` was called.
        """
        for folder in folders:
            segments, in_reserve = _ALWAYS, 0
            try:
                if folder in shared_memory_folders():
                    wanted = min(max_bytes, shutil.disk_usage(folder).total // 8)
                    segments = max(_ALWAYS, min(wanted // segment_bytes, MAX_SEGMENTS))
                    in_reserve = min(-(-reserve_bytes // segment_bytes), MAX_SEGMENTS - segments)
                return cls._create_file(folder, record_file, owner, segment_bytes, segments, in_reserve)
            except OSError as error:
                pass_on_interrupt(error)
                continue
        return cls(_own_memory(segment_bytes), segment_bytes, None, None)

    @classmethod
    def _create_file(
        cls, folder: Path, record_file: Path, owner: Owner, segment_bytes: int, segments: int, in_reserve: int
    ) -> Journal:
        is_mapped = folder in shared_memory_folders()
        head = make_head(record_file, owner, segment_bytes=segment_bytes, is_mapped=is_mapped)
        path = folder / f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, 0o600)
        try:
            # Touching a page that the file system has no space for kills the process, so all pages are allocated first.
            size = HEADER_BYTES + _ALWAYS * segment_bytes
            allocate(descriptor, 0, size)
            if segments + in_reserve > _ALWAYS:
                size = HEADER_BYTES + (segments + in_reserve) * segment_bytes
                os.ftruncate(descriptor, size)
            _lock_new(descriptor)
            if is_mapped:
                memory = mmap.mmap(descriptor, size)
            else:
                memory = _own_memory(segment_bytes)
                descriptor = off_the_usual_numbers(descriptor)
            # The head comes last: a file without a head is ignored.
            _write_all(descriptor, head, 0)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            raise
        more = {"segments": segments, "in_reserve": in_reserve}
        return cls(memory, segment_bytes, path, descriptor, is_mapped=is_mapped, **more)

    def append(self, line: bytes, numbers: int = 1) -> int:
        """Commit `line`, which a kill then does not lose; return the bytes in its segment, 0 if there is no room.

        `numbers` is 0 for a line that got its number before.
        """
        start = self._end
        end = start + len(line)
        if end > self._limit:
            is_possible = len(line) <= self._segment_bytes and self._begin_segment()
            return self.append(line, numbers) if is_possible else 0
        written_to = self._written_to
        if written_to is not None:
            self._write_out(written_to, line, start)
        self._end = end
        self._memory[start:end] = line
        # One aligned eight-byte store: a kill sees either the old length or the new one, never half a line.
        self._words[self._commit_word] = fill = end - self._base
        self.next_seq += numbers
        return fill

    @property
    def fill(self) -> int:
        """Bytes that were not passed to the writer yet."""
        return self._end - self._base + len(self._filled) * self._segment_bytes

    def flip(self) -> bytes | None:
        """Return the oldest lines for the writer, at most one segment; None if there are none.

        They stay in the journal until `release`, and the next ones are handed over only then.
        """
        if self._draining is not None:
            return None
        if not self._filled and (self._end == self._base or not self._begin_segment()):
            return None
        segment = self._filled[0]
        start = self._start_of(segment)
        # The copy may run out of memory. Until it exists the segment counts as not handed over, and comes again.
        lines = self._memory[start : start + self._words[COMMITTED + segment]]
        self._draining = self._filled.popleft()
        return lines

    @property
    def is_released(self) -> bool:
        """Whether the writer holds no lines that `flip` returned."""
        return self._draining is None

    def release(self) -> None:
        """Empty the segment that was handed over: its lines are in the record file."""
        segment = self._draining
        if segment is None:
            return
        with self._moving:
            written_to = self._written_to
            if written_to is not None:
                # No line that comes here later may be followed by the rest of one that was here before.
                self._write_out(written_to, bytes(self._words[COMMITTED + segment]), self._start_of(segment))
            self._words[COMMITTED + segment] = 0
            is_given_back = segment >= _ALWAYS and self._give_back(segment)
            (self._unbacked if is_given_back else self._free).append(segment)
            self._draining = None

    def open_reserve(self) -> None:
        """Grow beyond the usual limit from now on: the process is about to end and its memory with it."""
        while self._in_reserve:
            self._unbacked.append(self._in_reserve.popleft())

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still where it was created; True if that is unknown or no longer matters."""
        if self.path is None or self.is_closed:
            return True
        try:
            return identity_of(os.stat(self.path, follow_symlinks=False)) == self._identity
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def lock_again(self) -> bool:
        """Reopen and lock the file if a script closed its descriptor by number; False if it did not."""
        if self.path is None or self._descriptor is None or is_file(self._descriptor, self._identity):
            return False
        descriptor = os.open(self.path, os.O_RDWR | SAFELY)
        is_locked = try_lock(descriptor) is not False
        # A mapped file stays locked without a descriptor.
        if identity_of(os.fstat(descriptor)) != self._identity or not (is_locked or self._is_mapped):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        if self._is_mapped:
            # The descriptor of the map may be a file of the script's by now: see `_let_go`.
            _never_closed.append(self._memory)
        elif self._written_to is not None:
            self._descriptor = self._written_to = off_the_usual_numbers(descriptor)
        return True

    def spare(self, folders: list[Path], record_file: Path, owner: Owner) -> Journal | None:
        """Create an empty journal for `move_to` in the first of `folders` that allows it, or return None."""
        for folder in folders:
            if self.path is not None and (folder in shared_memory_folders()) != self._is_mapped:
                # Callers do not check which kind it is, and each kind has its own number of segments.
                continue
            try:
                return self._create_file(folder, record_file, owner, self._segment_bytes, *self._segments)
            except OSError:
                continue
        return None

    def move_to(self, spare: Journal, callers: AbstractContextManager[object]) -> bool:
        """Continue in the file of `spare` with all lines not released; `callers` is held; False if not possible."""
        if not self._moving.acquire(timeout=1.0):
            # A disk that does not answer holds the writer in `release`.
            return False
        try:
            with callers:
                if self.is_closed:
                    return False
                used = [*self._filled, self._active, *([] if self._draining is None else [self._draining])]
                if not all(self._copy(segment, spare) for segment in used):
                    return False
                left_at = self.path if self.is_in_place else None
                memory, words = self._memory, self._words
                descriptor, identity = self._descriptor, self._identity
                self._memory, self._words, self._is_mapped = spare._memory, spare._words, spare._is_mapped
                self._descriptor, self._identity = spare._descriptor, spare._identity
                self.path, self.trouble, self._written_to = spare.path, None, spare._written_to
        finally:
            self._moving.release()
        _held.pop(id(spare), None)
        _held[id(self)] = self
        _let_go(memory, words, descriptor, identity, is_emptied=True)
        if left_at is not None:
            with suppress(OSError):
                _unlink(left_at)
        return True

    def _copy(self, segment: int, spare: Journal) -> bool:
        start = self._start_of(segment)
        committed = self._words[COMMITTED + segment]
        lines = self._memory[start : start + committed]
        if segment >= _ALWAYS and not spare._back(segment):
            return False
        if spare._written_to is not None:
            spare._write_out(spare._written_to, lines, start)
        spare._memory[start : start + committed] = lines
        spare._words[COMMITTED + segment] = committed
        return spare.trouble is None

    def close(self, *, remove: bool) -> None:
        """Release the memory; the file itself stays for recovery unless `remove`."""
        with self._moving:
            self.is_closed = True
        if self.path is None or self._descriptor is None:
            return
        _held.pop(id(self), None)
        descriptor, self._descriptor, self._written_to = self._descriptor, None, None
        if not remove and is_file(descriptor, self._identity):
            with suppress(OSError):
                _write_all(descriptor, struct.pack("=Q", 1), 8 * CLOSED)
        _let_go(self._memory, self._words, descriptor, self._identity)
        if remove:
            _unlink(self.path)

    def forget(self) -> None:
        """In a forked child: keep the parent's journal from ever being touched here, or kept locked."""
        _held.pop(id(self), None)
        descriptor, self._descriptor, self._written_to = self._descriptor, None, None
        if self.path is None or descriptor is None:
            return
        memory, words = self._memory, self._words
        # The pages belong to the parent too: a late call in the child writes to memory of its own.
        self._memory = _own_memory(self._segment_bytes, len(memory))
        self._words = memoryview(self._memory)[: WORDS * 8].cast("Q")
        _let_go(memory, words, descriptor, self._identity)

    def _write_out(self, descriptor: int, data: bytes, at: int) -> None:
        try:
            written = pwrite(descriptor, data, at)
            if written != len(data):
                _write_all(descriptor, data[written:], at + written)
        except OSError as error:
            pass_on_interrupt(error)
            # The record is written from memory. A failing disk may take long, so it is tried only once.
            self.trouble = f"{type(error).__name__}: {error}"
            self._written_to = None

    def _start_of(self, segment: int) -> int:
        return HEADER_BYTES + segment * self._segment_bytes

    def _begin_segment(self) -> bool:
        """Queue the current segment and start another; False if there is no free segment."""
        source = self._free
        if not source:
            source = self._unbacked
            if not source or not self._back(source[0]):
                return False
        segment = source[0]
        start = self._start_of(segment)
        # A signal handler may raise out of any call, so there are no calls from here on: all or nothing.
        del source[0]
        self._filled += (self._active,)
        self._active = segment
        self._commit_word = COMMITTED + segment
        self._base = self._end = start
        self._limit = start + self._segment_bytes
        return True

    def _back(self, segment: int) -> bool:
        """Allocate memory for a segment if there is enough: data loaders use the tmpfs too."""
        assert self._descriptor is not None
        if not is_file(self._descriptor, self._identity):
            return False
        try:
            space = os.fstatvfs(self._descriptor)
            left_free = space.f_bavail * space.f_frsize - self._segment_bytes
            if left_free < min(space.f_blocks * space.f_frsize // 2, _LEFT_FREE_BYTES):
                return False
            allocate(self._descriptor, self._start_of(segment), self._segment_bytes)
        except OSError as error:
            pass_on_interrupt(error)
            return False
        return True

    def _give_back(self, segment: int) -> bool:
        """Return a segment's memory to the system; False if the system does not take it."""
        try:
            self._memory.madvise(mmap.MADV_REMOVE, self._start_of(segment), self._segment_bytes)
        except (AttributeError, OSError, ValueError):
            return False
        return True


def shared_memory_folders() -> list[Path]:
    """Return the folders in memory for journals; empty on systems without a tmpfs at a known path."""
    folder = Path("/dev/shm")
    return [folder] if sys.platform.startswith("linux") and os.access(folder, os.W_OK) else []


def journals_in(folder: Path, *, of_others: bool = False) -> Iterator[Path]:
    """Yield the journals in `folder`, of all writers or `of_others` only; those of a run's earlier sessions first."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        pass_on_interrupt(error)
        return
    paths = [folder / name for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    if of_others:
        ours = _held_here()
        paths = [path for path in paths if path not in ours]
    yield from sorted(paths, key=_session_of)


def _held_here() -> set[Path | None]:
    """Return the journals that this process writes or recovers."""
    return {held.path for held in list(_held.values())}


class AbandonedJournal:
    """A journal whose writer is dead, locked so that nothing else recovers it at the same time."""

    def __init__(self, path: Path, descriptor: int, head: Head, lines: list[tuple[int, bytes]]) -> None:
        self.path = path
        self.head = head
        self.lines = lines
        """The committed lines with their `seq`; some may be in the record file already."""
        self._descriptor: int | None = descriptor
        self._identity = identity_of(os.fstat(descriptor))
        _held[id(self)] = self

    def keep(self) -> None:
        """Keep the lock until this process ends, because it writes the lines later."""
        _kept.append(self)

    def close(self, *, remove: bool) -> None:
        """Unlock it; `remove` it if all its lines are in the record file."""
        try:
            if remove:
                _unlink(self.path)
        except PermissionError as error:
            if not is_sharing_violation(error):
                raise
            # Windows cannot remove an open file.
            self.forget()
            _unlink(self.path)
        finally:
            self.forget()

    def forget(self) -> None:
        """Only unlock it."""
        _held.pop(id(self), None)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_file(descriptor, self._identity):
            os.close(descriptor)


_kept: list[AbandonedJournal] = []


def hold_abandoned(path: Path, *, is_gone: bool = False) -> AbandonedJournal | None:
    """Return the journal at `path` if no live process writes it; None if one does or it is not ours to read.

    Without locks and if the process cannot be looked up, it counts as alive unless the caller knows that it
    `is_gone`.
    """
    try:
        os.close(open_regular(path))
        descriptor = os.open(path, os.O_RDWR | SAFELY)
    except OSError as error:
        pass_on_interrupt(error)
        return None
    held = None
    try:
        status = os.fstat(descriptor)
        if status.st_nlink and is_ours(status):
            is_locked_here = try_lock(descriptor)
            head = read_head(descriptor) if is_locked_here is not False else None
            if head is not None and _is_in_use(path, head, is_locked_here is True, is_gone):
                head = None
            # Another process recovered and removed it since it was opened.
            if head is not None and os.fstat(descriptor).st_nlink:
                held = AbandonedJournal(path, descriptor, head, _lines(descriptor, head, pause_s=_BREATH_S))
    except OSError as error:
        pass_on_interrupt(error)
    finally:
        if held is None:
            os.close(descriptor)
    return held


def _is_in_use(path: Path, head: Head, has_lock: bool, is_gone: bool) -> bool:
    """Return whether the writer of a journal may be alive although this process could lock it, or cannot use locks.

    A script that closes descriptors by their numbers takes the lock from its own logger, which keeps running.
    """
    if path in _held_here():
        return True
    if head.is_closed:
        return False
    lives = head.writer_lives()
    if head.pid == os.getpid() and lives and has_lock:
        # This process wrote it before it executed its program again, which holds none of it.
        return False
    if has_lock:
        return _is_mapped_by(head.pid, path) if head.is_mapped else lives is True
    return lives is True or (lives is None and not is_gone)


def remove_unbegun(path: Path) -> None:
    """Remove the journal at `path` if its process was killed some minutes ago, before anything was written to it."""
    try:
        os.close(open_regular(path))
        descriptor = os.open(path, os.O_RDWR | SAFELY)
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        is_old = time.time() - status.st_mtime > _UNBEGUN_S
        is_empty = is_ours(status) and not any(pread(descriptor, HEADER_BYTES, 0))
        if is_old and is_empty and try_lock(descriptor):
            _unlink(path)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def pending_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines of the journal at `path` without changing it, for readers of a run that may be alive."""
    with _opened(path) as descriptor:
        head = None if descriptor is None else read_head(descriptor)
        return [] if descriptor is None or head is None else _lines(descriptor, head)


def head_of(path: Path) -> Head | None:
    """Return the head of the journal at `path`; None if it is not a journal."""
    with _opened(path) as descriptor:
        return None if descriptor is None else read_head(descriptor)


def record_file_of(path: Path) -> Path | None:
    """Return the original path of the record file of the journal at `path`; None if it is not a journal."""
    head = head_of(path)
    return None if head is None else head.record_file


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = open_regular(path)
    except OSError as error:
        pass_on_interrupt(error)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _let_go(
    memory: mmap.mmap,
    words: memoryview,
    descriptor: int | None,
    identity: tuple[int, int],
    *,
    is_emptied: bool = False,
) -> None:
    """Close a journal's memory and file; with `is_emptied` nothing is left to recover."""
    if is_emptied:
        words[COMMITTED:CLOSED] = memoryview(bytes(8 * (CLOSED - COMMITTED))).cast("Q")
    words.release()
    is_open = descriptor is not None and is_file(descriptor, identity)
    if descriptor is not None and not is_open:
        # A script has closed descriptors by their numbers. The map has one of its own, whose number may be that of
        # a file of the script's by now, and would close it.
        _never_closed.append(memory)
    if not any(memory is kept for kept in _never_closed):
        with suppress(BufferError):  # a thread that was in the middle of a copy when its process was forked
            memory.close()
    if descriptor is not None and is_open:
        if is_emptied:
            with suppress(OSError):
                os.ftruncate(descriptor, HEADER_BYTES)
        os.close(descriptor)


def _own_memory(segment_bytes: int, size: int = 0) -> mmap.mmap:
    """Return private memory, which a forked child does not share."""
    size = size or HEADER_BYTES + _ALWAYS * segment_bytes
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _lock_new(descriptor: int) -> None:
    for _ in range(_LOCK_TRIES):
        if try_lock(descriptor) is not False:
            return
        time.sleep(0.01)
    raise OSError(errno.EAGAIN, "another process has locked a journal that was just made")


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    written = pwrite(descriptor, data, at)
    while written < len(data):
        if written <= 0:
            raise OSError(errno.EIO, "the disk took nothing and gave no reason")
        at, data = at + written, data[written:]
        written = pwrite(descriptor, data, at)


def _is_mapped_by(pid: int, path: Path) -> bool:
    """Return whether a process has the file mapped; its name is random, so no other file has it."""
    try:
        return path.name in Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape")
    except OSError as error:
        pass_on_interrupt(error)
        return False


def _session_of(path: Path) -> int:
    head = head_of(path)
    return 0 if head is None else head.session


def _lines(descriptor: int, head: Head, *, pause_s: float = 0.0) -> list[tuple[int, bytes]]:
    """Return the lines in a journal with their numbers; `pause_s` is slept after every few of them."""
    segment_bytes = min(head.segment_bytes, MAX_SEGMENTS * SEGMENT_BYTES)
    # A file that is not ours may contain anything; ours are no longer than this.
    left = min(os.fstat(descriptor).st_size, MAX_SEGMENTS * SEGMENT_BYTES)
    found: dict[int, bytes] = {}
    for segment, committed in enumerate(head.words[COMMITTED:CLOSED]):
        if not head.is_mapped and segment >= _ALWAYS:
            break
        start = HEADER_BYTES + segment * segment_bytes
        length = min(committed if head.is_mapped else segment_bytes, segment_bytes, left)
        left -= length
        data = pread(descriptor, length, start)
        if not head.is_mapped:
            data = data.partition(b"\0")[0]
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            if pause_s and not number % _BREATH_LINES:
                time.sleep(pause_s)
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
    except FileNotFoundError as error:
        pass_on_interrupt(error)
