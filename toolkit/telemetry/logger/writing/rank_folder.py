"""Which folder a rank other than 0 writes to: rank 0's, or a part of the run on the disk of its own node."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import Rank, given_run_id, has_process_group, launch_id, node_name
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.writing.announcement import Asking
from toolkit.telemetry.logger.writing.log_directory import (
    A_FOLDER_OF_ITS_OWN,
    NOT_THE_CALLERS_FAULT,
    log_dir_of,
    manifest_of,
    names_in,
    not_ours,
    runs_called,
)
from toolkit.telemetry.logger.writing.session_folder import SessionFolder
from toolkit.telemetry.logger.writing.sessions import (
    alone_in,
    launch_fields,
    new_session,
    recover,
    still_locked,
    with_session,
)
from toolkit.telemetry.runfolder.layout import (
    Modes,
    candidate_names,
    make_folders,
    make_run_folder,
    modes_of,
    rank_file,
    safe_run_name,
)
from toolkit.telemetry.runfolder.manifest import Manifest, Session, write_manifest
from toolkit.telemetry.runfolder.node_folders import part_name
from toolkit.telemetry.runfolder.process import boot_id
from toolkit.telemetry.runfolder.reader import last_seq
from toolkit.telemetry.runfolder.records import FORMAT
from toolkit.telemetry.runfolder.status import RUNNING, STALLED, work_out_status

_WAIT_FOR_RANK_ZERO_S = 30.0
_WAIT_FOR_ANSWER_S = 5.0
"""Seconds until a rank that hears nothing from the process group's store also looks through the log directory."""
_WAIT_FOR_FOLDER_S = 5.0
"""Seconds that a rank looks for rank 0's folder if it knows the run id and could make a part."""
_WAIT_FOR_FILE_SERVER_S = 2.0
_LOOK_EVERY_S = 0.05


def announcement_of(session_folder: SessionFolder) -> Manifest:
    """Return what the other ranks have to know of rank 0's `session_folder`: which run and session it is, and where."""
    manifest = session_folder.manifest
    return Manifest(
        run_id=manifest.run_id,
        name=session_folder.folder.name,
        display_name=manifest.display_name,
        created=manifest.created,
        sessions=(session_folder.session,),
        other={"node": node_name()},
    )


def join_rank_zero(
    display_name: str, options: TelemetryOptions, rank: Rank, key: str, *, now: float, guard: Guard
) -> SessionFolder | None:
    """Return the folder that another rank writes to, or None where rank 0's run is not found in time.

    That is rank 0's own folder if it is in this log directory, else the part of this node. Rank 0 is asked through the
    process group's store, under `key`. Without a process group its folder is looked for in the log directory; if it is
    not there, a part can only be made where the launcher or the options give the run id.

    Raises:
        OSError: the log directory cannot hold runs.
    """
    place = _Place(
        log_dir=log_dir_of(options),
        name=safe_run_name(display_name),
        display_name=display_name,
        modes=modes_of(options.share),
        rank=rank.rank,
        run_id=options.run_id or given_run_id(display_name),
    )
    if not has_process_group() and place.run_id is None and launch_id() is None:
        # Nothing that rank 0 and this process have in common: waiting would not find it.
        return None
    asking = Asking(key, timeout_s=_WAIT_FOR_RANK_ZERO_S, guard=guard) if has_process_group() else None
    began = time.monotonic()
    try:
        while (waited_s := time.monotonic() - began) < _WAIT_FOR_RANK_ZERO_S:
            if asking is not None and asking.wait(_LOOK_EVERY_S):
                if asking.found is not None:
                    return _join_announced(place, asking.found, options, guard)
                asking = None
            if asking is None or waited_s > _WAIT_FOR_ANSWER_S:
                # Perhaps rank 0 made its logger before there was a process group.
                joined = _join_launched(place, guard)
                if joined is not None:
                    return joined
                if asking is None and place.run_id is not None and waited_s > _WAIT_FOR_FOLDER_S:
                    break
                time.sleep(_LOOK_EVERY_S if asking is None else 10 * _LOOK_EVERY_S)
    finally:
        if asking is not None:
            asking.close()
    if place.run_id is None:
        return None
    return _open_part(place, _unannounced(place, place.run_id, now), options, guard, by_launch=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a rank other than 0 looks for its run."""

    log_dir: Path
    name: str
    display_name: str
    modes: Modes
    rank: int
    run_id: str | None


def _join_announced(place: _Place, run: Manifest, options: TelemetryOptions, guard: Guard) -> SessionFolder:
    folder = place.log_dir / run.name
    # Another machine may see a new folder on a file server a little later.
    deadline = time.monotonic() + (0.0 if _session_in(run).boot_id == boot_id() else _WAIT_FOR_FILE_SERVER_S)
    while True:
        # The same path on another disk is another folder, and so is that of an earlier session which rank 0 left.
        manifest = manifest_of(folder) if run.name in names_in(place.log_dir) else None
        is_it = manifest is not None and manifest.part_of is None and _is_session_of(manifest, run)
        if manifest is not None and is_it and not_ours(place.log_dir, folder) is None:
            return _as_rank(place, folder, manifest, guard)
        if time.monotonic() >= deadline:
            return _open_part(place, run, options, guard)
        time.sleep(_LOOK_EVERY_S)


def _join_launched(place: _Place, guard: Guard) -> SessionFolder | None:
    """Return rank 0's folder of this launch, if it is in the log directory."""
    launch = launch_id()
    if launch is None and place.run_id is None:
        return None
    for folder, manifest in runs_called(place.log_dir, place.name, place.display_name):
        is_it = manifest.run_id == place.run_id if launch is None else manifest.other.get("launch") == launch
        # Launchers use their names again: a run of an earlier launch may have been killed while it was running.
        if is_it and _seems_alive(manifest) and not_ours(place.log_dir, folder) is None:
            return _as_rank(place, folder, manifest, guard)
    return None


def _seems_alive(manifest: Manifest) -> bool:
    return work_out_status(manifest, time.time()).name in (RUNNING, STALLED)


def _is_session_of(manifest: Manifest, run: Manifest) -> bool:
    latest = manifest.latest
    return manifest.run_id == run.run_id and latest is not None and latest.started == _session_in(run).started


def _session_in(run: Manifest) -> Session:
    """Return the session of rank 0 in an announcement."""
    assert run.latest is not None, "it was looked at when it was announced"
    return run.latest


def _as_rank(
    place: _Place, folder: Path, manifest: Manifest, guard: Guard, *, leads_part: bool = False
) -> SessionFolder:
    """Return `folder` as the one that a rank other than 0 writes its file in."""
    record_file = rank_file(folder, place.rank)
    try:
        record_file.parent.mkdir(mode=place.modes.folder, exist_ok=True)
    except OSError as error:
        if error.errno not in NOT_THE_CALLERS_FAULT:
            raise
    left_behind: list[tuple[int, bytes]] = []
    if leads_part or record_file.exists() or (manifest.latest is not None and manifest.latest.session > 1):
        # Of earlier sessions of this rank: rank 0 recovers only what is on its own node.
        left_behind = recover(folder, guard, place.rank) or []
    return SessionFolder(
        folder=folder,
        manifest=manifest,
        modes=place.modes,
        rank=place.rank,
        first_seq=(left_behind[-1][0] if left_behind else last_seq(record_file)) + 1,
        left_behind=b"".join(line for _, line in left_behind),
        leads_part=leads_part,
    )


def _open_part(
    place: _Place, run: Manifest, options: TelemetryOptions, guard: Guard, *, by_launch: bool = False
) -> SessionFolder:
    """Return this node's part of `run`, which its first rank makes or resumes and the others join.

    Raises:
        OSError: the log directory cannot hold runs.
    """
    name = part_name(run.name, node_name())
    deadline = time.monotonic() + _WAIT_FOR_RANK_ZERO_S
    for candidate in candidate_names(name):
        folder = place.log_dir / candidate
        try:
            # Not world-writable, whatever the umask: other users could replace runs with folders of their own.
            make_folders(place.log_dir, 0o775)
            make_run_folder(folder, place.modes)
        except FileExistsError:
            if not place.log_dir.is_dir():
                # A file is in its place, or in that of a folder above it: no other name helps.
                raise
            if folder.is_symlink() or not folder.is_dir() or not_ours(place.log_dir, folder) is not None:
                continue
        except OSError as error:
            if error.errno not in NOT_THE_CALLERS_FAULT:
                raise
            # It is made when the disk allows.
            return _as_rank(place, folder, _new_part(folder, run, options), guard, leads_part=True)
        with alone_in(folder, wait_s=max(0.0, deadline - time.monotonic())):
            part = _enter_part(place, folder, run, options, guard, by_launch=by_launch, deadline=deadline)
        if part is not None:
            return part
    raise FileExistsError(f"{place.log_dir} has thousands of folders called {name!r}")


def _enter_part(
    place: _Place,
    folder: Path,
    run: Manifest,
    options: TelemetryOptions,
    guard: Guard,
    *,
    by_launch: bool,
    deadline: float,
) -> SessionFolder | None:
    """Return `folder` as the part of `run`, or None if it is another one's."""
    earlier = manifest_of(folder)
    if earlier is None:
        if any(not name.startswith(".") for name in names_in(folder)):
            return None
        manifest = _new_part(folder, run, options)
    elif earlier.part_of is None or earlier.run_id != run.run_id or earlier.format > FORMAT:
        return None
    elif _is_session_of(earlier, run) or (by_launch and _is_of_this_launch(earlier)):
        return _as_rank(place, folder, earlier, guard)
    elif time.monotonic() > deadline:
        # Each part that is still being written takes a while to find out.
        return None
    else:
        # Rank 0 has resumed the run, so that the session before is over; a rank of it may be left all the same.
        if still_locked(folder) is not None or recover(folder, guard) is None:
            guard.report("resuming", OSError(f"{folder.name} is still being written; {A_FOLDER_OF_ITS_OWN}"))
            return None
        manifest = with_session(earlier, _session_of(run, earlier), options, folder)
    with guard.catch("writing run.json"):
        write_manifest(folder, manifest, mode=place.modes.file)
    return _as_rank(place, folder, manifest, guard, leads_part=True)


def _is_of_this_launch(part: Manifest) -> bool:
    # Without variables of a launcher, the run id that all ranks were given is what they have in common.
    return part.other.get("launch") == launch_id() and _seems_alive(part)


def _new_part(folder: Path, run: Manifest, options: TelemetryOptions) -> Manifest:
    return Manifest(
        run_id=run.run_id,
        name=folder.name,
        display_name=run.display_name,
        created=run.created,
        project=options.project,
        tags=options.tags,
        sessions=(_session_of(run),),
        other={**launch_fields(), "part_of": run.node or "unknown", "node": node_name()},
    )


def _session_of(run: Manifest, earlier: Manifest | None = None) -> Session:
    """Return the session of `run` with this process as its own: where rank 0 is, no one here can look it up."""
    past = max((session.session for session in earlier.sessions), default=0) if earlier is not None else 0
    # In one file the sessions count up, whatever became of rank 0's folder.
    return new_session(max(_session_in(run).session, past + 1), _session_in(run).started)


def _unannounced(place: _Place, run_id: str, now: float) -> Manifest:
    """Return what is known of a run whose id the launcher gave, without a word from rank 0."""
    return Manifest(
        run_id=run_id,
        name=place.name,
        display_name=place.display_name,
        created=now,
        sessions=(Session(session=1, started=now, pid=0),),
        other={"node": os.environ.get("MASTER_ADDR") or "unknown"},
    )
