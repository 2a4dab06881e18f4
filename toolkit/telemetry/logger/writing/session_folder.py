"""Which folder a run gets: a new one, or its own again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import given_run_id
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.logger.writing.log_directory import (
    A_FOLDER_OF_ITS_OWN,
    NOT_THE_CALLERS_FAULT,
    all_runs,
    folders_in,
    log_dir_of,
    manifest_of,
    not_ours,
    runs_called,
)
from toolkit.telemetry.logger.writing.sessions import (
    alone_in,
    has_unlocked,
    launch_fields,
    new_session,
    recover,
    still_locked,
    was_before_exec,
    with_session,
)
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import (
    COPIED,
    Modes,
    candidate_names,
    claim_folder,
    modes_of,
    rank_file,
    safe_run_name,
)
from toolkit.telemetry.runfolder.manifest import Manifest, Session, write_manifest
from toolkit.telemetry.runfolder.reader import last_seq
from toolkit.telemetry.runfolder.records import FORMAT
from toolkit.telemetry.runfolder.safefile import open_to_write
from toolkit.telemetry.runfolder.status import RUNNING, STALLED, work_out_status


class SessionFolder(NamedTuple):
    """Where one session of a run is written, and what came before it there."""

    folder: Path
    manifest: Manifest
    modes: Modes
    rank: int = 0
    first_seq: int = 0
    missing: tuple[int, int] | None = None
    """The first and last `seq` that an earlier session is known to have written and that are no longer there."""
    left_behind: bytes = b""
    """Lines of an earlier session that could not be written out now and go before everything else."""
    leads_part: bool = False
    """Whether this process writes run.json although it is not rank 0: of a part, the first rank of its node does."""
    notice: str | None = None
    """A message for the user."""

    @property
    def session(self) -> Session:
        """The session that begins now."""
        latest = self.manifest.latest
        assert latest is not None
        return latest

    @property
    def writes_manifest(self) -> bool:
        """Whether this process writes run.json."""
        return self.rank == 0 or self.leads_part

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
    log_dir = log_dir_of(options)
    name = safe_run_name(display_name)
    modes = modes_of(options.share)
    notice = None
    wanted_id = options.run_id or given_run_id(display_name)
    if options.resume or wanted_id:
        for earlier in _find_earlier(log_dir, name, display_name, wanted_id):
            notice = not_ours(log_dir, earlier[0])
            if notice is not None:
                # A run that another user put there must not keep the owner from resuming the next one.
                continue
            session_folder = _resume(earlier, options, modes, now=now, guard=guard)
            if isinstance(session_folder, SessionFolder):
                return session_folder
            notice = session_folder
            break
    folder = _new_folder(log_dir, name, modes, options)
    run_id = wanted_id if wanted_id and notice is None else os.urandom(8).hex()
    # Rank 0 may have been on another node before, and this one may have a part of the run.
    earlier_sessions = _sessions_of_part(log_dir, name, run_id) if run_id == wanted_id else 0
    manifest = Manifest(
        run_id=run_id,
        name=folder.name,
        display_name=display_name,
        created=now,
        project=options.project,
        tags=options.tags,
        sessions=(new_session(earlier_sessions + 1, now),),
        other=launch_fields(),
    )
    with guard.catch("writing run.json"):
        write_manifest(folder, manifest, mode=modes.file)
        # Whoever follows the file finds it, although the first records wait for the description of the machine.
        os.close(open_to_write(rank_file(folder, 0), os.O_WRONLY | os.O_CREAT, modes.file))
    return SessionFolder(folder=folder, manifest=manifest, modes=modes, notice=notice)


def _new_folder(log_dir: Path, name: str, modes: Modes, options: TelemetryOptions) -> Path:
    try:
        return claim_folder(log_dir, name, modes)
    except OSError as error:
        if error.errno in NOT_THE_CALLERS_FAULT:
            return log_dir / next(
                free for free in candidate_names(name) if not os.path.lexists(log_dir / free)
            )
        raise OptionsError(
            f"telemetry.log_dir is {options.log_dir!r}; it must be a folder that runs can be written to: {error}"
        ) from error


def _find_earlier(
    log_dir: Path, name: str, display_name: str, run_id: str | None
) -> Iterator[tuple[Path, Manifest]]:
    """Yield the runs that may be meant, the likeliest first."""
    if run_id:
        for folder, manifest in all_runs(log_dir, name):
            if manifest.run_id == run_id and manifest.format <= FORMAT and manifest.part_of is None:
                yield folder, manifest
        return
    found = [run for run in runs_called(log_dir, name, display_name) if run[1].format <= FORMAT]
    yield from sorted(found, key=lambda run: run[1].created, reverse=True)


def _resume(
    run: tuple[Path, Manifest], options: TelemetryOptions, modes: Modes, *, now: float, guard: Guard
) -> SessionFolder | str:
    """Return the folder of a new session of an earlier run, or why it cannot be resumed."""
    folder = run[0]
    with alone_in(folder):
        # Another process may have just resumed it.
        earlier = manifest_of(folder) or run[1]
        status = work_out_status(earlier, now)
        is_running = status.name in (RUNNING, STALLED) and not was_before_exec(earlier.latest)
        if is_running and (status.sure or not has_unlocked(folder, earlier)):
            pid = earlier.latest and earlier.latest.pid
            return (
                f"{folder.name} is still being written by process {pid} ({status.why}); {A_FOLDER_OF_ITS_OWN}"
            )
        locked = still_locked(folder)
        if locked:
            # Whatever its process number says here: in another container it may be another.
            return f"another process has {locked} of {folder.name} locked; {A_FOLDER_OF_ITS_OWN}"
        left_behind = recover(folder, guard)
        if left_behind is None:
            return f"another process still holds records of {folder.name}; {A_FOLDER_OF_ITS_OWN}"
        # The end may have been in the journal.
        earlier = with_end_record(earlier, folder)
        session_folder = _new_session_of(folder, earlier, left_behind, options, modes, now)
        with guard.catch("writing run.json"):
            write_manifest(folder, session_folder.manifest, mode=modes.file)
        with suppress(OSError):
            # From now on it is no copy, and `telemetry copy` leaves it alone.
            (folder / COPIED).unlink(missing_ok=True)
        with suppress(OSError):
            # Who watches thousands of runs that have ended sees by it that one goes on.
            os.utime(folder.parent)
    return session_folder


def _new_session_of(
    folder: Path,
    earlier: Manifest,
    left_behind: list[tuple[int, bytes]],
    options: TelemetryOptions,
    modes: Modes,
    now: float,
) -> SessionFolder:
    last = left_behind[-1][0] if left_behind else last_seq(rank_file(folder, 0))
    known = earlier.heartbeat.seq if earlier.heartbeat else -1
    number = max((session.session for session in earlier.sessions), default=0) + 1
    manifest = with_session(earlier, new_session(number, now), options, folder)
    return SessionFolder(
        folder=folder,
        manifest=manifest,
        modes=modes,
        # A number that was given to a record is never given to another, even when a power cut took the record.
        first_seq=max(last, known) + 1,
        missing=(last + 1, known) if known > last else None,
        left_behind=b"".join(line for _, line in left_behind),
    )


def _sessions_of_part(log_dir: Path, name: str, run_id: str) -> int:
    """Return the number of the newest session that a part of this run in `log_dir` has; 0 without one."""
    # Imported where a run id was given.
    from toolkit.telemetry.runfolder.node_folders import part_in

    parts = (
        folder
        for folder in folders_in(log_dir)
        if folder.name.startswith(f"{name}@") and not_ours(log_dir, folder) is None
    )
    found = [part for folder in parts if (part := part_in(folder)) is not None and part.run_id == run_id]
    return max((session.session for part in found for session in part.sessions), default=0)
