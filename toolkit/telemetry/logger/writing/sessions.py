"""The sessions of a run: a new one, and what is left of those before it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import launch_id
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.writing.writer_lock import lock_name
from toolkit.telemetry.runfolder.journal.journal import is_being_written
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.manifest import Manifest, Session
from toolkit.telemetry.runfolder.portable import DIRECTORY, lock_within
from toolkit.telemetry.runfolder.process import boot_id, host_name, pid_namespace, process_started
from toolkit.telemetry.runfolder.reader import last_record
from toolkit.telemetry.runfolder.safefile import identity_of
from toolkit.telemetry.runfolder.status import RUNNING

WAIT_FOR_OTHERS_S = 5.0
"""Seconds that another process may take to resume or recover the same run now."""
_MOST_SESSIONS = 500
"""A job that is restarted all day has thousands of sessions: run.json lists the newest, the records have all."""

_begun_here: set[tuple[int, float]] = set()
"""The sessions that this program began: process number and start."""


def new_session(number: int, now: float) -> Session:
    """Return the session of this process that began at `now`."""
    pid = os.getpid()
    _begun_here.add((pid, now))
    return Session(
        session=number,
        started=now,
        pid=pid,
        pid_started=process_started(pid),
        pid_namespace=pid_namespace(),
        host=host_name(),
        boot_id=boot_id(),
    )


def was_before_exec(session: Session | None) -> bool:
    """Return whether a session was this process's before it executed its program again, and so is over."""
    if session is None or session.pid != os.getpid() or (session.pid, session.started) in _begun_here:
        return False
    started, boot, namespace = process_started(session.pid), boot_id(), pid_namespace()
    known = (session.pid_started, session.boot_id, session.pid_namespace)
    return None not in (started, boot) and known == (started, boot, namespace)


def launch_fields() -> dict[str, str]:
    """Return what run.json says about the launch; nothing outside of a launcher."""
    launch = launch_id()
    return {} if launch is None else {"launch": launch}


def with_session(earlier: Manifest, session: Session, options: TelemetryOptions, folder: Path) -> Manifest:
    """Return the manifest of a run that is resumed with `session`."""
    # A session that was cut off says so from now on: only the newest one can still be alive. It ended when it gave its
    # last sign of life, as far as anybody knows.
    last_sign = _last_sign_of(folder, earlier)
    past = tuple(
        replace(before, status="lost", journal=None, ended=before.ended or last_sign)
        if before.status == RUNNING
        else replace(before, journal=None)
        for before in earlier.sessions
    )
    return replace(
        earlier,
        project=options.project or earlier.project,
        tags=options.tags or earlier.tags,
        sessions=(*past[1 - _MOST_SESSIONS :], session),
        # Another node's clock may be hours off: the last sign of life is the newest session's own.
        heartbeat=earlier.heartbeat and replace(earlier.heartbeat, time=session.started),
        other={**earlier.other, **launch_fields()},
    )


def _last_sign_of(folder: Path, manifest: Manifest) -> float | None:
    signs = [manifest.heartbeat.time] if manifest.heartbeat is not None else []
    latest = manifest.latest
    with suppress(FileNotFoundError):
        record = last_record(rank_file(folder, 0))
        if record is not None and latest is not None and record.get("session") == latest.session:
            at = record.get("time")
            signs += [at] if isinstance(at, float) else []
    return max(signs, default=None)


def still_locked(folder: Path) -> str | None:
    """Return which record file of the run in `folder` a living process has locked; None where none is."""
    # Imported where a run is resumed.
    from toolkit.telemetry.runfolder.journal.repair import rank_files

    deadline = time.monotonic() + WAIT_FOR_OTHERS_S
    while True:
        locked = next(
            (path for path in (rank_file(folder, 0), *rank_files(folder)) if is_being_written(path)), None
        )
        # A process that recovers the run has the file locked for a short time.
        if locked is None or time.monotonic() > deadline:
            return None if locked is None else locked.name
        time.sleep(0.02)


def has_unlocked(folder: Path, earlier: Manifest) -> bool:
    """Say whether a session whose process cannot be looked up has ended, since its record file is not locked any more.

    Certain only on the same boot of the same machine, and for the very file that the session says it has locked.
    """
    latest = earlier.latest
    if latest is None or latest.lock is None or latest.boot_id is None:
        return False
    try:
        there = lock_name(identity_of(os.stat(rank_file(folder, 0), follow_symlinks=False)))
    except OSError:
        return False
    return latest.boot_id == boot_id() and latest.lock == there and not is_being_written(rank_file(folder, 0))


def recover(folder: Path, guard: Guard, rank: int | None = None) -> list[tuple[int, bytes]] | None:
    """Write out what killed sessions, of one `rank` or of all, left in their journals.

    Returns the lines of that rank, else of rank 0, that the disk did not take, with their `seq`; None where it is about
    all and a living process holds a journal.
    """
    # Imported where a run is resumed.
    from toolkit.telemetry.runfolder.journal.repair import (
        adopt_journal,
        drain_journal,
        journals_of,
        remove_half_done,
    )

    left_behind = []
    own_file = rank_file(Path(os.path.realpath(folder)), rank or 0)
    for path, record_file in journals_of(folder):
        if rank is not None and record_file != own_file:
            continue
        try:
            count = drain_journal(path, record_file, wait_s=WAIT_FOR_OTHERS_S, is_gone=True)
            if count is None and rank is None:
                return None
        except OSError as error:
            guard.report("recovering a killed session", error)
            if record_file == own_file:
                left_behind += adopt_journal(path, record_file)
    if rank is None:
        remove_half_done(folder)
    return left_behind


@contextmanager
def alone_in(folder: Path, wait_s: float | None = None) -> Iterator[None]:
    """Keep other processes from resuming the run in `folder` now, where the system has locks."""
    descriptor = None
    try:
        try:
            if DIRECTORY:
                descriptor = os.open(folder, os.O_RDONLY | DIRECTORY)
                lock_within(descriptor, WAIT_FOR_OTHERS_S if wait_s is None else wait_s)
        except OSError:
            # Not every folder may be opened.
            pass
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
