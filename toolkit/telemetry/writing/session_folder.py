"""Which folder a run gets: a new one, or its own again."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.core.guard import Guard
from toolkit.core.ranks import Rank, launch_id
from toolkit.runfolder.end_record import with_end_record
from toolkit.runfolder.layout import (
    METRICS_JSONL,
    PRIVATE,
    SHARED,
    Modes,
    candidate_names,
    claim_folder,
    rank_file,
    safe_run_name,
)
from toolkit.runfolder.manifest import Manifest, ManifestError, Session, read_manifest, write_manifest
from toolkit.runfolder.portable import DIRECTORY, this_user, try_lock
from toolkit.runfolder.process import boot_id, host_name, pid_namespace, process_started
from toolkit.runfolder.reader import last_record
from toolkit.runfolder.records import FORMAT, Record
from toolkit.runfolder.repair import (
    adopt_journal,
    drain_when_free,
    is_being_written,
    journals_of,
    rank_files,
    remove_half_done,
)
from toolkit.runfolder.safefile import UnsafeFile, identity_of, open_regular
from toolkit.runfolder.status import RUNNING, STALLED, work_out_status
from toolkit.telemetry.options import OptionsError, TelemetryOptions
from toolkit.telemetry.writing.writer_lock import lock_name

_NOT_THE_CALLERS_FAULT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN}
)
_WAIT_FOR_RANK_ZERO_S = 30.0
_WAIT_FOR_OTHERS_S = 5.0
"""Seconds that another process may take to resume or recover the same run at this moment."""
_MOST_SESSIONS = 500
"""A job that is restarted all day has thousands of sessions: run.json lists the newest, the records have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFolder:
    """Where one session of a run is written, and what came before it there."""

    folder: Path
    manifest: Manifest
    modes: Modes
    rank: int = 0
    first_seq: int = 0
    missing: tuple[int, int] | None = None
    """The first and last `seq` that an earlier session is known to have written and that are no longer there."""
    recovered: int = 0
    """Records of earlier sessions found in a journal and written out now."""
    left_behind: bytes = b""
    """Lines of an earlier session that could not be written out now and go before everything else."""
    notice: str | None = None
    """A message for the user."""

    @property
    def session(self) -> Session:
        """The session that begins now."""
        latest = self.manifest.latest
        assert latest is not None
        return latest

    @property
    def record_file(self) -> Path:
        """The file this process writes its records to."""
        return rank_file(self.folder, self.rank)


def open_session(display_name: str, options: TelemetryOptions, *, now: float, guard: Guard) -> SessionFolder:
    """Return the folder of the session that begins now: of a new run, or of one that is resumed.

    Raises:
        OptionsError: `log_dir` cannot hold runs. A disk that is merely full or failing is no reason: the folder is
            named now, and made when the disk allows.
    """
    log_dir = _log_dir(options)
    name = safe_run_name(display_name)
    modes = SHARED if options.share else PRIVATE
    notice = None
    if options.resume or options.run_id:
        for earlier in _find_earlier(log_dir, name, display_name, options.run_id):
            notice = _not_ours(log_dir, earlier[0])
            if notice is not None:
                # A run that another user put there must not keep the owner from resuming the next one.
                continue
            session_folder = _resume(earlier, options, modes, now=now, guard=guard)
            if isinstance(session_folder, SessionFolder):
                return session_folder
            notice = session_folder
            break
    folder = _new_folder(log_dir, name, modes, options)
    run_id = options.run_id if options.run_id and notice is None else os.urandom(8).hex()
    manifest = Manifest(
        run_id=run_id,
        name=folder.name,
        display_name=display_name,
        created=now,
        project=options.project,
        tags=options.tags,
        sessions=(_new_session(1, now),),
        other=_other(),
    )
    with guard.catch("writing run.json"):
        write_manifest(folder, manifest, mode=modes.file)
    return SessionFolder(folder=folder, manifest=manifest, modes=modes, notice=notice)


def join_rank_zero(display_name: str, options: TelemetryOptions, rank: Rank) -> SessionFolder | None:
    """Return the session folder of rank 0 of this launch, or None where it does not appear in time."""
    launch = launch_id()
    log_dir = _log_dir(options)
    name = safe_run_name(display_name)
    modes = SHARED if options.share else PRIVATE
    deadline = time.monotonic() + _WAIT_FOR_RANK_ZERO_S
    while launch is not None and time.monotonic() < deadline:
        for folder, manifest in _runs_called(log_dir, name, display_name):
            # Launchers use their names again: a run of an earlier launch may have been killed while it was running.
            is_alive = work_out_status(manifest, time.time()).name in (RUNNING, STALLED)
            if manifest.other.get("launch") == launch and is_alive:
                record_file = rank_file(folder, rank.rank)
                record_file.parent.mkdir(mode=modes.folder, exist_ok=True)
                return SessionFolder(
                    folder=folder,
                    manifest=manifest,
                    modes=modes,
                    rank=rank.rank,
                    first_seq=_last_seq(record_file) + 1,
                )
        time.sleep(0.05)
    return None


def _log_dir(options: TelemetryOptions) -> Path:
    # Absolute, because a script may change its working directory later.
    return Path(os.path.abspath(Path(options.log_dir).expanduser()))


def _new_folder(log_dir: Path, name: str, modes: Modes, options: TelemetryOptions) -> Path:
    try:
        return claim_folder(log_dir, name, modes)
    except OSError as error:
        if error.errno in _NOT_THE_CALLERS_FAULT:
            return log_dir / next(
                free for free in candidate_names(log_dir, name) if not os.path.lexists(log_dir / free)
            )
        raise OptionsError(
            f"telemetry.log_dir is {options.log_dir!r}; it must be a folder that runs can be written to: {error}"
        ) from error


def _find_earlier(
    log_dir: Path, name: str, display_name: str, run_id: str | None
) -> Iterator[tuple[Path, Manifest]]:
    """Yield the runs that may be meant, the likeliest first."""
    if run_id:
        for folder, manifest in _all_runs(log_dir, name):
            if manifest.run_id == run_id and manifest.format <= FORMAT:
                yield folder, manifest
        return
    found = [run for run in _runs_called(log_dir, name, display_name) if run[1].format <= FORMAT]
    yield from sorted(found, key=lambda run: run[1].created, reverse=True)


def _not_ours(log_dir: Path, folder: Path) -> str | None:
    """Return why the run in `folder` must not be resumed: where others may write, one of them may have put it there.

    The owner of the log directory could do anything in any case, so runs of that user are resumed.
    """
    try:
        os.close(open_regular(rank_file(folder, 0)))
    except UnsafeFile as error:
        return f"{folder.name} cannot be resumed: {error}; {_A_FOLDER_OF_ITS_OWN}"
    except OSError:
        pass
    user = this_user()
    if user is None:
        return None
    try:
        trusted = {user, os.stat(log_dir).st_uid}
        # The folder itself, and the link where it is one.
        owners = {os.lstat(folder).st_uid, os.stat(folder).st_uid}
    except OSError:
        return None
    if owners <= trusted or owners <= {*trusted, _owner_of_what_we_make(log_dir)}:
        return None
    return f"{folder.name} belongs to another user (uid {min(owners - trusted)}); {_A_FOLDER_OF_ITS_OWN}"


def _owner_of_what_we_make(log_dir: Path) -> int | None:
    """Return who owns a new folder in `log_dir`: a file server that does not trust root gives it to another user."""
    tried = log_dir / f".{os.urandom(8).hex()}"
    try:
        os.mkdir(tried, PRIVATE.folder)
        try:
            return os.lstat(tried).st_uid
        finally:
            os.rmdir(tried)
    except OSError:
        return None


def _runs_called(log_dir: Path, name: str, display_name: str) -> Iterator[tuple[Path, Manifest]]:
    # Some of `name`, `name-2`, `name-3` may have been removed since, so all that are there are looked at.
    ours = re.compile(rf"{re.escape(name)}(-[0-9]+)?")
    for folder in _folders_in(log_dir):
        manifest = _manifest_of(folder) if ours.fullmatch(folder.name) else None
        if manifest is not None and manifest.display_name == display_name:
            yield folder, manifest


def _all_runs(log_dir: Path, name: str) -> Iterator[tuple[Path, Manifest]]:
    """Yield every run of `log_dir`, those whose folder begins with `name` first."""
    for folder in sorted(_folders_in(log_dir), key=lambda folder: (not folder.name.startswith(name), folder)):
        manifest = _manifest_of(folder)
        if manifest is not None:
            yield folder, manifest


def _folders_in(log_dir: Path) -> list[Path]:
    try:
        return [log_dir / name for name in os.listdir(log_dir)]
    except OSError:
        return []


def _manifest_of(folder: Path) -> Manifest | None:
    try:
        return with_end_record(read_manifest(folder), folder)
    except (OSError, ManifestError):
        return None


def _resume(
    run: tuple[Path, Manifest], options: TelemetryOptions, modes: Modes, *, now: float, guard: Guard
) -> SessionFolder | str:
    """Return the folder of a new session of an earlier run, or why it cannot be resumed."""
    folder = run[0]
    with _alone_in(folder):
        # Another process may have resumed it a moment ago.
        earlier = _manifest_of(folder) or run[1]
        status = work_out_status(earlier, now)
        if status.name in (RUNNING, STALLED) and (status.sure or not _has_let_go(folder, earlier)):
            pid = earlier.latest and earlier.latest.pid
            return f"{folder.name} is still being written by process {pid} ({status.why}); {_A_FOLDER_OF_ITS_OWN}"
        locked = _still_locked(folder)
        if locked:
            # Whatever its process number says here: in another container it may be another.
            return f"another process has {locked} of {folder.name} locked; {_A_FOLDER_OF_ITS_OWN}"
        recovered = _recover(folder, guard)
        if recovered is None:
            return f"another process still holds records of {folder.name}; {_A_FOLDER_OF_ITS_OWN}"
        # The end may have been in the journal.
        earlier = with_end_record(earlier, folder)
        session_folder = _new_session_of(folder, earlier, recovered, options, modes, now)
        with guard.catch("writing run.json"):
            write_manifest(folder, session_folder.manifest, mode=modes.file)
    return session_folder


_A_FOLDER_OF_ITS_OWN = "this run gets a folder of its own"


def _still_locked(folder: Path) -> str | None:
    """Return which record file of the run in `folder` a living process has locked; None where none is."""
    deadline = time.monotonic() + _WAIT_FOR_OTHERS_S
    while True:
        locked = next(
            (path for path in (rank_file(folder, 0), *rank_files(folder)) if is_being_written(path)), None
        )
        # A process that recovers the run has the file locked for a moment.
        if locked is None or time.monotonic() > deadline:
            return None if locked is None else locked.name
        time.sleep(0.02)


def _has_let_go(folder: Path, earlier: Manifest) -> bool:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recovered:
    count: int
    left_behind: list[tuple[int, bytes]]


def _recover(folder: Path, guard: Guard) -> _Recovered | None:
    """Write out what killed sessions left in their journals; None where a living process holds one."""
    recovered, left_behind = 0, []
    for path, record_file in journals_of(folder):
        try:
            count = drain_when_free(path, record_file, wait_s=_WAIT_FOR_OTHERS_S, is_gone=True)
            if count is None:
                return None
            recovered += count
        except OSError as error:
            guard.report("recovering a killed session", error)
            if record_file.name == METRICS_JSONL:
                left_behind += adopt_journal(path, record_file, is_gone=True)
    remove_half_done(folder)
    return _Recovered(count=recovered, left_behind=left_behind)


def _new_session_of(
    folder: Path,
    earlier: Manifest,
    recovered: _Recovered,
    options: TelemetryOptions,
    modes: Modes,
    now: float,
) -> SessionFolder:
    last = recovered.left_behind[-1][0] if recovered.left_behind else _last_seq(rank_file(folder, 0))
    known = earlier.heartbeat.seq if earlier.heartbeat else -1
    number = max((session.session for session in earlier.sessions), default=0) + 1
    # A session that was cut off says so from now on: only the newest one can still be alive. It ended when it gave its
    # last sign of life, as far as anybody knows.
    last_sign = _last_sign_of(folder, earlier)
    past = tuple(
        replace(session, status="lost", journal=None, ended=session.ended or last_sign)
        if session.status == RUNNING
        else replace(session, journal=None)
        for session in earlier.sessions
    )
    manifest = replace(
        earlier,
        project=options.project or earlier.project,
        tags=options.tags or earlier.tags,
        sessions=(*past[1 - _MOST_SESSIONS :], _new_session(number, now)),
        other={**earlier.other, **_other()},
    )
    return SessionFolder(
        folder=folder,
        manifest=manifest,
        modes=modes,
        # A number that was given to a record is never given to another, even when a power cut took the record.
        first_seq=max(last, known) + 1,
        missing=(last + 1, known) if known > last else None,
        recovered=recovered.count,
        left_behind=b"".join(line for _, line in recovered.left_behind),
    )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from resuming the run in `folder` at this moment, where the system has locks."""
    descriptor = None
    try:
        if DIRECTORY:
            descriptor = os.open(folder, os.O_RDONLY | DIRECTORY)
            deadline = time.monotonic() + _WAIT_FOR_OTHERS_S
            while try_lock(descriptor) is False and time.monotonic() < deadline:
                time.sleep(0.02)
    except OSError:
        # Not every folder may be opened.
        pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _last_sign_of(folder: Path, manifest: Manifest) -> float | None:
    signs = [manifest.heartbeat.time] if manifest.heartbeat is not None else []
    record = _last_record(rank_file(folder, 0))
    latest = manifest.latest
    if record is not None and latest is not None and record.get("session") == latest.session:
        moment = record.get("time")
        signs += [moment] if isinstance(moment, float) else []
    return max(signs, default=None)


def _last_seq(record_file: Path) -> int:
    record = _last_record(record_file)
    return record["seq"] if record is not None else -1


def _last_record(record_file: Path) -> Record | None:
    try:
        return last_record(record_file)
    except FileNotFoundError:
        return None


def _new_session(number: int, now: float) -> Session:
    pid = os.getpid()
    return Session(
        session=number,
        started=now,
        pid=pid,
        pid_started=process_started(pid),
        pid_namespace=pid_namespace(),
        host=host_name(),
        boot_id=boot_id(),
    )


def _other() -> dict[str, str]:
    launch = launch_id()
    return {} if launch is None else {"launch": launch}
