"""A lock on the record file for as long as a session writes it, so that no other session writes it too."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from toolkit.telemetry.runfolder.portable import try_lock
from toolkit.telemetry.runfolder.safefile import NO_FILE, identity_of, is_file, open_to_write

_TRIES = 100
_PAUSE_S = 0.01

_begun = _over = 0
"""How many forks of this process have begun, and how many are over."""


def _before_fork() -> None:
    global _begun
    _begun += 1


def _after_fork() -> None:
    global _over
    _over = _begun


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class WriterLock:
    """Held on a descriptor of its own, and taken on a thread of its own.

    A file server may leave a request for a lock without an answer, and no record may wait for that. Where there are no
    locks a run is written all the same.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[tuple[int, tuple[int, int]]] = []
        """The descriptor with what file it is; taken out in one step by the thread that closes it."""
        self._held = NO_FILE
        self._without_locks = NO_FILE
        """A file that could not be locked, since its file system has no locks."""
        self._is_closed = False
        self._asking: threading.Thread | None = None

    @property
    def held(self) -> str | None:
        """Which file is locked, by device and inode; None where none is."""
        return None if self._held == NO_FILE else lock_name(self._held)

    def keep(self) -> None:
        """Take the lock where it is not held on the file that is at the path now; waits for nothing but a `stat`."""
        if self._is_closed or (self._asking is not None and self._asking.is_alive()):
            return
        try:
            there = identity_of(os.stat(self._path, follow_symlinks=False))
        except OSError:
            return
        is_held = there == self._held and any(is_file(*opened) for opened in self._open)
        if is_held or there == self._without_locks:
            return
        self._asking = threading.Thread(target=self._ask, args=(there,), name="telemetry-lock", daemon=True)
        with suppress(RuntimeError):  # a machine that starts no more threads
            self._asking.start()

    def close(self) -> None:
        """Release the lock."""
        self._is_closed = True
        self._release()

    def forget(self) -> None:
        """In a forked child: close the copy of the descriptor, which would keep the parent's lock alive."""
        self.close()

    def _ask(self, identity: tuple[int, int]) -> None:
        try:
            for _ in range(_TRIES):
                self._release()
                forks = _over
                descriptor = open_to_write(self._path, os.O_RDWR, only_name=False)
                opened = identity_of(os.fstat(descriptor))
                # Here before it is locked: a child that is forked from now on closes its copy.
                self._open.append((descriptor, opened))
                if _begun == forks:
                    break
                # A child may have a copy that it does not know of, and would keep a lock on it for as long as it lives.
                time.sleep(_PAUSE_S)
        except OSError:
            return
        answer = try_lock(descriptor) if opened == identity else False
        if answer:
            self._held = identity
        else:
            self._release()
        if answer is None:
            self._without_locks = identity
        if self._is_closed:
            self._release()

    def _release(self) -> None:
        self._held = NO_FILE
        while self._open:
            opened = self._open.pop()
            if is_file(*opened):
                os.close(opened[0])


def lock_name(identity: tuple[int, int]) -> str:
    """Return a file as `run.json` names the one that a session has locked."""
    return f"{identity[0]}:{identity[1]}"
