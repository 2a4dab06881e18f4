"""Repairs a run folder after a kill: recovers records from the journal and rebuilds the table."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from toolkit.telemetry.runfolder.codec import RecordError, decode
from toolkit.telemetry.runfolder.folder_list import another_programs_file
from toolkit.telemetry.runfolder.journal.head import Head, id_key
from toolkit.telemetry.runfolder.journal.journal import (
    LOCK_PATIENCE_S,
    PREFIX,
    SUFFIX,
    head_of,
    hold_abandoned,
    is_being_written,
    journals_in,
    pending_lines,
    shared_memory_folders,
)
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL, PRIVATE, RANKS, rank_file
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.portable import lock_within, pread, this_user
from toolkit.telemetry.runfolder.reader import last_seq, read_from
from toolkit.telemetry.runfolder.records import START
from toolkit.telemetry.runfolder.safefile import give_to_owner, open_to_write, why_not_ours, write_all
from toolkit.telemetry.runfolder.status import RUNNING, STALLED, work_out_status
from toolkit.telemetry.runfolder.table.csv_table import repair_table, table_form

HALF_DONE: Final = re.compile(r"\.+(metrics\.csv|run\.json)(\.[0-9a-f]{12,16}(\.tmp)?)+")
"""Names of temporary files that were about to be renamed."""

_PATIENCE_S: Final = 1.0
"""How long to wait for another process that recovers the same run; a process that writes it takes longer."""


_NO_OWNER: Final = -1
"""The owner of a missing file."""

_START_WITHIN_BYTES: Final = 1024 * 1024
"""A start record is among the first lines of a file; of a file without one, no more than this is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The result of a repair."""

    recovered: int = 0
    """Records that were only in the journal."""
    rows: int = 0
    """Rows of the table."""
    bad_lines: int = 0
    undeclared: int = 0
    """Sequence numbers that are in no record and in no `lost` record."""
    foreign: int = 0
    """Number of records, if another program wrote all of them."""
    kept_table: Path | None = None
    """Where the old table is now, if it had more data than the records."""
    in_use: bool = False
    """A live process writes the run, so nothing was changed."""
    of_others: tuple[tuple[Path, int], ...] = ()
    """Journals of this run that belong to another user, with the user id."""


def repair_run(folder: Path) -> Repair:
    """Recover the records in the journals of `folder`'s dead sessions, and rebuild its table.

    A run that a live process writes is left alone, and so is the table of a run of another program. A table with more
    data than the records is kept next to the new one.

    Raises:
        OSError: the folder is another program's, or cannot be written.
    """
    if (name := another_programs_file(folder)) is not None:
        raise OSError(f"its {name} is another program's; nothing was changed")
    records = folder / METRICS_JSONL
    if any(is_being_written(path) for path in (records, *rank_files(folder))):
        return Repair(in_use=True)
    recovered = 0
    is_gone = _is_gone(folder)
    for path, record_file in journals_of(folder):
        count = drain_journal(path, record_file, wait_s=_PATIENCE_S, is_gone=is_gone)
        if count is None:
            return Repair(in_use=True)
        recovered += count
    remove_half_done(folder)
    of_others = tuple(_of_others(folder))
    try:
        # Same readers as the records; a table is never executable.
        mode = stat.S_IMODE(records.lstat().st_mode) & 0o666
    except FileNotFoundError:
        return Repair(recovered=recovered, of_others=of_others)
    table, kept = repair_table(records, folder / METRICS_CSV, mode=mode, form=table_form(folder))
    return Repair(
        recovered=recovered,
        rows=table.rows,
        bad_lines=table.bad_lines,
        undeclared=table.undeclared,
        foreign=table.foreign,
        kept_table=kept,
        of_others=of_others,
    )


def journals_of(folder: Path) -> list[tuple[Path, Path]]:
    """Return the journals of the run in `folder`, its ranks' included, each with the record file it belongs to.

    Those of earlier sessions come first. A journal belongs to the run whose run.json has its run id and its session,
    even if the folder was moved; of two such folders to the one it was made for. Shared memory is for all users, and a
    run folder may have been downloaded: a stranger's journal does not count, and none leads out of the folder.
    """
    real_folder = Path(os.path.realpath(folder))
    run = _run_at(real_folder)
    trusted = {_owner_of(real_folder)}
    if why_not_ours(real_folder.parent, real_folder) is None:
        # Else another user may have made the folder, with the run.json of this user's run.
        trusted.add(this_user())
    found = []
    for place in [*shared_memory_folders(), real_folder]:
        for path in journals_in(place):
            head = head_of(path) if _owner_of(path) in trusted else None
            if head is None:
                continue
            record_file = rank_file(real_folder, head.rank)
            if _is_link(record_file):
                continue
            if run.may_own(head):
                is_here = place == real_folder or _is_here(path, head, real_folder, record_file)
            else:
                # Neither run.json nor a start record names it: decide by its location.
                is_here = run.id_key is None and (
                    place == real_folder or _folder_of(head.record_file) == real_folder
                )
                is_here = is_here and _continues(pending_lines(path), record_file)
            if is_here:
                found.append((head.session, path, record_file))
    return [(path, record_file) for _, path, record_file in sorted(found, key=lambda entry: entry[0])]


def recover_killed(path: Path, near: Path) -> None:
    """Write out the journal at `path` if it is one of a killed run in the log directory of `near`, and remove it.

    The journal of a run that is not where it was is kept.

    Raises:
        OSError: the record file takes nothing now; the journal is kept.
    """
    head = head_of(path)
    # Another disk may not answer and would block the exit of this process.
    if head is None or _folder_of(head.record_file).parent != Path(os.path.realpath(near)).parent:
        return
    record_file = _record_file_of(head, near)
    if record_file is not None:
        drain_journal(path, record_file)
    elif (journal := hold_abandoned(path)) is not None:
        journal.close(remove=not journal.lines)


def discard_journals(folder: Path) -> None:
    """Remove what killed sessions of the run in `folder` left behind: the run is about to be deleted."""
    is_gone, deadline = _is_gone(folder), time.monotonic() + LOCK_PATIENCE_S
    for path, _ in journals_of(folder):
        journal = hold_abandoned(path, is_gone=is_gone, wait_s=deadline - time.monotonic())
        if journal is not None:
            journal.close(remove=True)


def _is_gone(folder: Path) -> bool:
    """Return whether the run in `folder` has ended, judging by its run.json and its age."""
    try:
        return work_out_status(read_manifest(folder), time.time()).name not in (RUNNING, STALLED)
    except (OSError, ManifestError):
        return True


class _Run(NamedTuple):
    """What identifies the run in a folder, as far as it is known."""

    id_key: str | None
    sessions: Mapping[int, float] | None
    """When each session of run.json began; None without one."""

    def may_own(self, head: Head) -> bool:
        """Return whether a journal was made by a session of this run."""
        if self.sessions is None or self.id_key != head.id_key:
            return self.id_key == head.id_key
        # run.json names the newest sessions only.
        is_older = bool(self.sessions) and head.session < min(self.sessions)
        return is_older or self.sessions.get(head.session) == head.started


def _run_at(folder: Path) -> _Run:
    """Return what run.json says of the run in `folder`, or else its first start record: the disk may have been full."""
    try:
        manifest = read_manifest(folder)
        return _Run(id_key(manifest.run_id), {one.session: one.started for one in manifest.sessions})
    except (OSError, ManifestError):
        pass
    try:
        records = read_from(folder / METRICS_JSONL, max_bytes=_START_WITHIN_BYTES).records
    except OSError:
        records = []
    ids = (record.get("run_id") for record in records if record.get("event") == START)
    return _Run(next((id_key(run_id) for run_id in ids if isinstance(run_id, str)), None), None)


def _folder_of(record_file: Path) -> Path:
    return record_file.parent.parent if record_file.parent.name == RANKS else record_file.parent


def _is_here(path: Path, head: Head, real_folder: Path, record_file: Path) -> bool:
    """Return whether a journal belongs to the run in `real_folder`, which may have been moved here."""
    made_for = _folder_of(head.record_file)
    if made_for == real_folder:
        return True
    with suppress(OSError):
        if os.path.samefile(made_for, real_folder):
            return True
    # A copy has the same id. As long as the original is there, the records are the original's.
    return not _run_at(made_for).may_own(head) and _continues(pending_lines(path), record_file)


def _record_file_of(head: Head, near: Path) -> Path | None:
    """Return the record file that a journal belongs to, where it was made; None if the run is not there any more.

    In a log directory of several users another one may have put a folder there with the same run.json: it has to belong
    to this user, or to whom the folder `near`, a run of this user's, belongs.
    """
    folder = _folder_of(head.record_file)
    record_file = rank_file(folder, head.rank)
    is_trusted = _owner_of(folder) in (this_user(), _owner_of(near)) and not _is_link(record_file)
    return record_file if is_trusted and _run_at(folder).may_own(head) else None


def _continues(lines: list[tuple[int, bytes]], record_file: Path) -> bool:
    """Return whether the lines of a journal continue the file: an earlier copy of a run has a gap."""
    return not lines or lines[0][0] <= last_seq(record_file) + 1


def rank_files(folder: Path) -> list[Path]:
    """Return the record files of the run's other ranks."""
    try:
        return [folder / RANKS / name for name in os.listdir(folder / RANKS)]
    except OSError:
        return []


def _of_others(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the journals that run.json names and that are another user's."""
    try:
        named = [session.journal for session in read_manifest(folder).sessions if session.journal]
    except (OSError, ManifestError):
        return
    for path in map(Path, named):
        # run.json is not trusted: look only where a journal can be.
        is_journal = path.name.startswith(PREFIX) and path.name.endswith(SUFFIX)
        if is_journal and path.parent in (*shared_memory_folders(), Path(os.path.realpath(folder))):
            owner = _owner_of(path)
            if owner not in (None, _NO_OWNER, this_user()):
                yield path, int(owner or 0)


def _owner_of(path: Path) -> int | None:
    """Return the number of the user that owns a file; None if files have no owners."""
    try:
        return os.lstat(path).st_uid if this_user() is not None else None
    except OSError:
        return _NO_OWNER


def _is_link(record_file: Path) -> bool:
    """Return whether a link, of the file or of a folder, leads from a record file to another place."""
    return os.path.realpath(record_file) != str(record_file)


def drain_journal(path: Path, record_file: Path, *, is_gone: bool = False, wait_s: float = 0.0) -> int | None:
    """Append to `record_file` the lines of a dead session's journal that it lacks, and remove the journal.

    Returns how many there were, or None if a live process writes the journal or the file. A line that the kill
    cut in the middle is completed where its beginning matches; nothing is ever rewritten. `is_gone` and `wait_s` as in
    `hold_abandoned`; what another process does meanwhile is not counted.

    Raises:
        OSError: the record file takes nothing now; the journal is kept.
    """
    journal = hold_abandoned(path, is_gone=is_gone, wait_s=wait_s)
    if journal is None:
        return None if path.exists() else 0
    count = None
    try:
        count = _append_missing(journal.lines, record_file, wait_s) if journal.lines else 0
    finally:
        journal.close(remove=count is not None)
    return count


def adopt_journal(path: Path, record_file: Path) -> list[tuple[int, bytes]]:
    """Return the lines of a journal of a session that is gone which its record file lacks, for this process to write.

    The journal is held until the process ends, and then removed by the process that finds nothing missing.
    """
    journal = hold_abandoned(path, is_gone=True)
    if journal is None:
        return []
    newest = last_seq(record_file)
    return [(seq, line) for seq, line in journal.lines if seq > newest]


def remove_half_done(folder: Path) -> None:
    """Remove what a kill left of files that were about to be renamed into their place."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if HALF_DONE.fullmatch(name):
            try:
                os.unlink(folder / name)
            except OSError:
                continue


def _append_missing(lines: list[tuple[int, bytes]], record_file: Path, wait_s: float = 0.0) -> int | None:
    """Append the lines that the file lacks and return how many; None if a live session writes the file."""
    descriptor = open_to_write(
        record_file, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE.file, only_name=False
    )
    try:
        if lock_within(descriptor, wait_s, within_s=LOCK_PATIENCE_S) is False:
            return None
        give_to_owner(descriptor, record_file.parent)
        newest = last_seq(record_file)
        torn = _torn_tail(descriptor)
        if _seq_of(torn) == newest:
            # It lacks nothing but its newline, and no reader takes it for a record before it has one.
            newest -= 1
        missing = [line for seq, line in lines if seq > newest]
        data = b"".join(missing)
        if torn:
            data = data[len(torn) :] if data.startswith(torn) else b"\n" + data
        if data:
            write_all(descriptor, data)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(missing)


def _torn_tail(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    start = max(0, size - 128 * 1024)
    return pread(descriptor, size - start, start).rpartition(b"\n")[2]


def _seq_of(line: bytes) -> int | None:
    try:
        seq = decode(line).get("seq")
    except RecordError:
        return None
    return seq if type(seq) is int else None
