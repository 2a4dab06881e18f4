"""A small file that holds what is acknowledged and not yet in the record file.

The caller's thread copies an encoded line into it, and the writer's thread takes it out to the record file. Its pages
belong to the kernel, so a killed process leaves them, and the next process that opens the run finds the rest here. The
layout is in `head`.

In a tmpfs the file is mapped: the copy waits for no disk. Elsewhere each line is written, by one system call, since the
pages of a mapped file on a disk that fails kill the process that touches them.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.codec import RecordError, decode
from toolkit.telemetry.runfolder.journal.head import (
    CLOSED,
    COMMITTED,
    HEADER_BYTES,
    SEGMENTS,
    WORDS,
    Head,
    Owner,
    make_head,
    read_head,
)
from toolkit.telemetry.runfolder.portable import (
    SAFELY,
    allocate,
    is_locked,
    lock_within,
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
    open_to_write,
)

SEGMENT_BYTES: Final = 1024 * 1024
PREFIX: Final = "ai-toolkit-telemetry-"
SUFFIX: Final = ".journal"

_MOST_SEGMENTS: Final = 120
"""How long a journal is, with what is left in memory as its process ends."""
_PAUSE_LINES: Final = 128
_PAUSE_S: Final = 0.0005
"""A training recovers what other runs left: its own thread gets the interpreter after every few lines."""
LOCK_PATIENCE_S: Final = 5.0
"""How long a file server may take to answer a request for a lock."""
_LOCK_WAIT_S: Final = 1.0
"""Another process that looks for abandoned journals may hold a new one until it sees that it is empty."""

_never_closed: list[mmap.mmap] = []
"""Mappings whose descriptor may be another file's by now."""
_held: dict[int, Journal | AbandonedJournal] = {}
"""The journals that this process has locked, by `id`."""
_OF_THE_FILE: Final = "path trouble _memory _words _descriptor _copy _identity _written_to".split()


def _forget_in_child() -> None:
    # A lock ends when the last copy of its descriptor is closed, and a forked worker may outlive its parent.
    for held in list(_held.values()):
        held.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Journal:
    """The writing side: callers fill one of two segments while the writer empties the other.

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
        copy: int | None = None,
    ) -> None:
        self.path = path
        """Its path, or None for memory that dies with the process."""
        self.next_seq = 0
        """The number that the next new line has. Nothing comes between a commit and this, not even a signal handler."""
        self.trouble: str | None = None
        """Why writing to the file failed: later lines are only in memory."""
        self.is_closed = False
        """Whether `close` was called."""
        self._memory = memory
        self._words = memoryview(memory)[: WORDS * 8].cast("Q")
        self._segment_bytes = segment_bytes
        self._descriptor = descriptor
        self._copy = copy
        """The number of the descriptor that a mapping has of its own, and closes; None where it has none."""
        self._identity = NO_FILE if descriptor is None else identity_of(os.fstat(descriptor))
        self._written_to = None if is_mapped else descriptor
        """The descriptor that each line is written to, if the file is not mapped."""
        self._moving = threading.Lock()
        """Held while the file is emptied or replaced: not by callers, which never wait for a disk."""
        self._draining: int | None = None
        self._active = 0
        self._commit_word = COMMITTED
        self._base = HEADER_BYTES
        self._end: int = HEADER_BYTES
        self._limit = HEADER_BYTES + segment_bytes
        if descriptor is not None:
            _held[id(self)] = self

    @classmethod
    def create(
        cls, folders: list[Path], record_file: Path, owner: Owner, *, segment_bytes: int = SEGMENT_BYTES
    ) -> Journal:
        """Create a journal in the first of `folders` that allows it, else in memory that dies with the process."""
        for folder in folders:
            try:
                return cls._create_file(folder, record_file, owner, segment_bytes)
            except OSError as error:
                _raise_if_not_of_the_system(error)
        return cls(_own_memory(segment_bytes), segment_bytes, None, None)

    @classmethod
    def _create_file(cls, folder: Path, record_file: Path, owner: Owner, segment_bytes: int) -> Journal:
        is_mapped = folder in shared_memory_folders()
        path = folder / f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        descriptor, copy = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, 0o600), None
        try:
            if lock_within(descriptor, _LOCK_WAIT_S) is False:
                raise OSError(errno.EAGAIN, "another process has locked a journal that was just made")
            _write_all(
                descriptor, make_head(record_file, owner, segment_bytes=segment_bytes, is_mapped=is_mapped), 0
            )
            # Touching a page that the file system has no space for kills the process, so all pages are allocated first.
            allocate(descriptor, HEADER_BYTES, SEGMENTS * segment_bytes)
            if is_mapped:
                # What comes after that takes no memory until `keep` has to have it.
                os.ftruncate(descriptor, HEADER_BYTES + _MOST_SEGMENTS * segment_bytes)
                # The number that it will get, as far as no other thread takes it: looked at again before it is closed.
                copy = os.dup(descriptor)
                os.close(copy)
                memory = mmap.mmap(descriptor, HEADER_BYTES + _MOST_SEGMENTS * segment_bytes)
            else:
                memory = _own_memory(segment_bytes)
            descriptor = off_the_usual_numbers(descriptor)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            raise
        return cls(memory, segment_bytes, path, descriptor, is_mapped=is_mapped, copy=copy)

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
        other = 1 - self._active
        waiting = 0 if other == self._draining else self._words[COMMITTED + other]
        return self._end - self._base + waiting

    def flip(self) -> bytes | None:
        """Return the oldest lines for the writer, at most one segment; None if there are none.

        They stay in the journal until `release`, and the next ones are handed over only then.
        """
        if self._draining is not None:
            return None
        if not self._words[COMMITTED + 1 - self._active] and (
            self._end == self._base or not self._begin_segment()
        ):
            return None
        # The copy may run out of memory. Until it exists the segment counts as not handed over, and comes again.
        lines = self._lines_in(1 - self._active)
        self._draining = 1 - self._active
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
            self._draining = None

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still where it was created; True if that is unknown or no longer matters."""
        if self.path is None or self.is_closed:
            return True
        try:
            return identity_of(os.stat(self.path, follow_symlinks=False)) == self._identity
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def move_to(self, spare: Journal, callers: AbstractContextManager[object]) -> bool:
        """Continue in the file of `spare`, with all lines, and remove the old one; False if that is not possible.

        `spare` is empty, and is closed either way; `callers` is held meanwhile.
        """
        # A disk that does not answer holds the writer in `release`.
        is_free = spare.path is not None and self._moving.acquire(timeout=1.0)
        has_moved = False
        try:
            if is_free:
                with callers:
                    has_moved = not self.is_closed and all(
                        spare._put(segment, self._lines_in(segment)) for segment in range(SEGMENTS)
                    )
                    if has_moved:
                        for name in _OF_THE_FILE:
                            mine, theirs = getattr(self, name), getattr(spare, name)
                            setattr(self, name, theirs)
                            setattr(spare, name, mine)
                        if self._descriptor is not None:
                            _held[id(self)] = self
        finally:
            if is_free:
                self._moving.release()
        if has_moved:
            # Wherever the old file is now, nothing of it is written a second time.
            spare._empty()
        spare.close(remove=spare.is_in_place)
        return has_moved

    def keep(self, lines: bytes) -> None:
        """Put lines that had no room where a repair finds them, as the process ends. Only shared memory has room.

        Raises:
            OSError: the system has no memory for them.
        """
        start, descriptor = self._start_of(SEGMENTS), self._descriptor
        kept = lines[: lines.rfind(b"\n", 0, max(0, len(self._memory) - start)) + 1]
        if kept and descriptor is not None:
            allocate(descriptor, start, len(kept))
            self._memory[start : start + len(kept)] = kept
            self._words[COMMITTED + SEGMENTS] = len(kept)

    def close(self, *, remove: bool) -> None:
        """Release the memory; the file itself stays for recovery unless `remove`."""
        with self._moving:
            self.is_closed = True
        if self.path is None or self._descriptor is None:
            return
        if not remove:
            with suppress(OSError):
                _write_all(self._descriptor, struct.pack("=Q", 1), 8 * CLOSED)
        self._release_file()
        if remove:
            _unlink(self.path)

    def forget(self) -> None:
        """In a forked child: keep the parent's journal from ever being touched here, or kept locked."""
        _held.pop(id(self), None)
        if self.path is None or self._descriptor is None:
            return
        self._release_file()
        # The pages belong to the parent too: a late call in the child writes to memory of its own.
        self._memory = _own_memory(self._segment_bytes)
        self._words = memoryview(self._memory)[: WORDS * 8].cast("Q")

    def _release_file(self) -> None:
        """Close the memory and the file."""
        _held.pop(id(self), None)
        descriptor, self._descriptor, self._written_to = self._descriptor, None, None
        self._words.release()
        if self._copy is None or is_file(self._copy, self._identity):
            # A thread may have been in the middle of a copy when its process was forked.
            with suppress(BufferError):
                self._memory.close()
        else:
            # A script has closed it by its number, and may have a file of its own under that.
            _never_closed.append(self._memory)
        self._copy = None
        _close(descriptor)

    def _empty(self) -> None:
        """Leave nothing in the file that could be recovered."""
        for segment in range(SEGMENTS):
            self._words[COMMITTED + segment] = 0
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, HEADER_BYTES)

    def _write_out(self, descriptor: int, data: bytes, at: int) -> None:
        try:
            _write_all(descriptor, data, at)
        except OSError as error:
            _raise_if_not_of_the_system(error)
            # The record is written from memory. A failing disk may take long, so it is tried only once.
            self.trouble = f"{type(error).__name__}: {error}"
            self._written_to = None

    def _start_of(self, segment: int) -> int:
        return HEADER_BYTES + segment * self._segment_bytes

    def _lines_in(self, segment: int) -> bytes:
        start = self._start_of(segment)
        return self._memory[start : start + self._words[COMMITTED + segment]]

    def _put(self, segment: int, lines: bytes) -> bool:
        start = self._start_of(segment)
        if self._written_to is not None:
            self._write_out(self._written_to, lines, start)
        self._memory[start : start + len(lines)] = lines
        self._words[COMMITTED + segment] = len(lines)
        return self.trouble is None

    def _begin_segment(self) -> bool:
        """Continue in the other segment; False if it was not emptied yet."""
        other = 1 - self._active
        if self._words[COMMITTED + other]:
            return False
        start = self._start_of(other)
        # A signal handler may raise out of any call, so there are no calls from here on: all or nothing.
        self._active = other
        self._commit_word = COMMITTED + other
        self._base = self._end = start
        self._limit = start + self._segment_bytes
        return True


def shared_memory_folders() -> list[Path]:
    """Return the folders in memory for journals; empty on systems without a tmpfs at a known path."""
    folder = Path("/dev/shm")
    return [folder] if sys.platform.startswith("linux") and os.access(folder, os.W_OK) else []


def journals_in(folder: Path, *, of_others: bool = False) -> Iterator[Path]:
    """Yield the journals in `folder`, of all writers or `of_others` only; those of a run's earlier sessions first."""
    try:
        names = os.listdir(folder)
    except OSError:
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
        _held[id(self)] = self

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
        _close(descriptor)


def hold_abandoned(path: Path, *, is_gone: bool = False, wait_s: float = 0.0) -> AbandonedJournal | None:
    """Return the journal at `path` if no live process writes it; None if one does or it is not ours to read.

    Without locks and if the process cannot be looked up, it counts as alive unless the caller knows that it
    `is_gone`. Every run recovers the journals of others: it is waited for up to `wait_s`, as long as it is there.
    """
    deadline = time.monotonic() + wait_s
    while (held := _hold(path, is_gone)) is None and path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def _hold(path: Path, is_gone: bool) -> AbandonedJournal | None:
    try:
        descriptor = open_to_write(path, os.O_RDWR)
    except OSError:
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
                held = AbandonedJournal(path, descriptor, head, _lines(descriptor, head, pause_s=_PAUSE_S))
    except OSError:
        pass
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
        # A mapped file stays locked without a descriptor.
        return not head.is_mapped and lives is True
    return lives is True or (lives is None and not is_gone)


def pending_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines of the journal at `path` without changing it, for readers of a run that may be alive."""
    with suppress(OSError), open(open_regular(path), "rb") as file:
        head = read_head(file.fileno())
        return [] if head is None else _lines(file.fileno(), head)
    return []


def head_of(path: Path) -> Head | None:
    """Return the head of the journal at `path`; None if it is not a journal."""
    with suppress(OSError), open(open_regular(path), "rb") as file:
        return read_head(file.fileno())
    return None


def _own_memory(segment_bytes: int) -> mmap.mmap:
    """Return private memory, which a forked child does not share."""
    size = HEADER_BYTES + SEGMENTS * segment_bytes
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    written = pwrite(descriptor, data, at)
    while written < len(data):
        if written <= 0:
            raise OSError(errno.EIO, "the disk took nothing and gave no reason")
        at, data = at + written, data[written:]
        written = pwrite(descriptor, data, at)


def _raise_if_not_of_the_system(error: OSError) -> None:
    """Raise what a signal handler of the script has raised on its thread, such as a `TimeoutError` without a number."""
    if error.errno is None:
        raise error


def _session_of(path: Path) -> int:
    head = head_of(path)
    return 0 if head is None else head.session


def _lines(descriptor: int, head: Head, *, pause_s: float = 0.0) -> list[tuple[int, bytes]]:
    """Return the lines in a journal with their numbers; `pause_s` is slept after every few of them."""
    # A file that is not ours may say and contain anything; ours are no longer than this.
    left = min(os.fstat(descriptor).st_size, _MOST_SEGMENTS * SEGMENT_BYTES)
    segment_bytes = min(head.segment_bytes, left)
    found: dict[int, bytes] = {}
    for segment, committed in enumerate(head.committed):
        if not head.is_mapped:
            committed = segment_bytes if segment < SEGMENTS else 0
        elif segment < SEGMENTS:
            committed = min(committed, segment_bytes)
        length = min(committed, left)
        left -= length
        data = pread(descriptor, length, HEADER_BYTES + segment * segment_bytes)
        if not head.is_mapped:
            data = data.partition(b"\0")[0]
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            if pause_s and not number % _PAUSE_LINES:
                time.sleep(pause_s)
            try:
                seq = decode(line).get("seq")
            except RecordError:
                continue
            if type(seq) is int:
                found[seq] = line + b"\n"
    return sorted(found.items())


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):  # a script has closed it by its number
            os.close(descriptor)


def _unlink(path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def is_being_written(record_file: Path, *, within_s: float = LOCK_PATIENCE_S) -> bool:
    """Return whether a live session, in any container of this machine, has `record_file` locked."""
    try:
        descriptor = open_regular(record_file)
    except OSError:
        return False
    try:
        return is_locked(descriptor, within_s=within_s) is True
    finally:
        os.close(descriptor)
