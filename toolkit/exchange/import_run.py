"""Makes a run folder of one run of another tool, or continues it with what is new."""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from toolkit.core.guard import Guard, describe_error
from toolkit.exchange.imported_folder import (
    FolderError,
    ImportedFolder,
    State,
    all_records,
    discard_empty,
    free_name,
    make_half,
    put_in_place,
    read_state,
)
from toolkit.exchange.kept_files import file_keeper, keep_nothing
from toolkit.exchange.record_maker import KeepFile, Key, RecordMaker, points_of, without_points
from toolkit.importers.source import Batch, RunSource, SourceInfo, Status
from toolkit.importers.summary import plain
from toolkit.privacy.masking import mask_secrets
from toolkit.privacy.secret_shapes import mask_text
from toolkit.runfolder.layout import PRIVATE, safe_run_name
from toolkit.runfolder.manifest import (
    Heartbeat,
    Manifest,
    ManifestError,
    Session,
    read_manifest,
    write_manifest,
)
from toolkit.runfolder.records import END, STEP, Record
from toolkit.runfolder.safefile import why_not_ours
from toolkit.runfolder.status import FAILED, FINISHED, LOST, RUNNING

NEW: Final = "new"
CONTINUED: Final = "continued"
UNCHANGED: Final = "unchanged"
REPLACED: Final = "replaced"
NOT_READ: Final = "failed"

BATCH_BYTES: Final = 8 * 1024**2
_MAX_FILES: Final = 100
_RUN_ID: Final = re.compile(r"(?P<base>[a-z-]+-[0-9a-f]{32})(?:-(?P<number>[0-9]{1,6}))?")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was done with one source."""

    name: str
    format: str
    source_id: str
    run_id: str
    state: str = UNCHANGED
    """`new`, `continued`, `unchanged`, `replaced` (nothing was written) or `failed`."""
    folder: Path | None = None
    points: int = 0
    records: int = 0
    sessions: int = 0
    events: dict[str, int] = field(default_factory=dict)
    """Texts, samples and histograms that were added."""
    not_imported: dict[str, int] = field(default_factory=dict)
    """Everything in the source that has no place in the folder, with how many."""
    reason: str = ""
    is_open: bool = False
    """Whether the source may still grow, as far as its tool says."""

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return {
            "name": self.name,
            "format": self.format,
            "source_id": self.source_id,
            "run_id": self.run_id,
            "state": self.state,
            "folder": None if self.folder is None else os.fspath(self.folder),
            "points": self.points,
            "records": self.records,
            "sessions": self.sessions,
            "events": self.events,
            "not_imported": self.not_imported,
            "reason": self.reason or None,
        }


class _SourceError(Exception):
    """The source cannot be read."""


class Importer:
    """Imports runs into one log directory."""

    def __init__(self, log_dir: Path, *, again: bool = False, dry_run: bool = False) -> None:
        self._log_dir = log_dir
        self._again = again
        self._dry_run = dry_run
        self._folders = dict(_imported_in(log_dir))

    def run(self, source: RunSource, *, name: str | None = None) -> Outcome:
        """Bring the folder of `source` up to date; what goes wrong with it is in the outcome.

        Raises:
            OSError: the log directory cannot be written.
        """
        info = source.info
        run_id = f"{info.format}-{info.source_id}"
        number, folder = self._folders.get(run_id, (1, None))
        outcome = self._one(source, _numbered(run_id, number), folder, name)
        if outcome.state == REPLACED and self._again:
            number += 1
            outcome = self._one(source, _numbered(run_id, number), None, name)
        if outcome.folder is not None and not self._dry_run:
            self._folders[run_id] = (number, outcome.folder)
        return outcome

    def _one(self, source: RunSource, run_id: str, folder: Path | None, name: str | None) -> Outcome:
        info = source.info
        outcome = Outcome(
            name=mask_text(info.name),
            format=info.format,
            source_id=info.source_id,
            run_id=run_id,
            folder=folder,
        )
        try:
            if self._dry_run:
                _Pass(source, outcome, read_state(folder) if folder else State(), folder, keep_nothing).go()
                return outcome
            place = folder or make_half(self._log_dir, run_id)
            with ImportedFolder(place) as opened:
                work = _Pass(source, outcome, opened.state, place, file_keeper(source, place), opened)
                is_known = work.go()
                if not is_known or not (
                    work.has_written or folder is None or _is_stale(folder, opened.state)
                ):
                    return outcome
                opened.update_table()
                target = folder or self._log_dir / free_name(
                    self._log_dir, safe_run_name(name or outcome.name or info.format)
                )
                _write_manifest(place, target, source, run_id, opened.state, name)
            if folder is None:
                put_in_place(place, target)
                outcome.state = NEW
            outcome.folder = target
        except _SourceError as error:
            outcome.state, outcome.reason = NOT_READ, str(error)
            if folder is None and not self._dry_run:
                discard_empty(place)
        except FolderError as error:
            outcome.state, outcome.reason = NOT_READ, str(error)
        return outcome


class _Pass:
    """Reads a source from where an earlier pass ended."""

    def __init__(
        self,
        source: RunSource,
        outcome: Outcome,
        state: State,
        place: Path | None,
        keep_file: KeepFile,
        folder: ImportedFolder | None = None,
    ) -> None:
        self._source = source
        self._outcome = outcome
        self._state = state
        self._place = place
        self._folder = folder
        self._counts = Counter(state.not_imported)
        self._maker = RecordMaker(
            source.info,
            keep_file,
            started={int(number) for number in state.sessions},
            known=dict(state.known),
        )
        self.has_written = False

    def go(self) -> bool:
        """Add what is new; return False, with nothing written, if the source was replaced."""
        state, maker, outcome = self._state, self._maker, self._outcome
        cursor = state.cursor.encode() if state.cursor is not None else None
        has_records = self._place is not None and state.seq > 0
        is_compared = cursor is None and has_records
        while not is_compared:
            batch = self._read(cursor)
            if batch.replaced and has_records:
                is_compared = True
                break
            self._count(batch)
            records = maker.make(batch)
            # An end without a record may be an unfinished one: it is looked at, and counted, the next time again.
            if records or batch.more or self._state.cursor is None:
                self._commit(records, batch.cursor)
            is_over = not batch.more or batch.cursor == cursor
            cursor = batch.cursor
            if is_over:
                break
        if is_compared and not self._compare():
            return False
        self._finish()
        outcome.sessions = len(self._state.sessions)
        outcome.not_imported = dict(self._counts)
        return True

    def _read(self, cursor: bytes | None) -> Batch:
        guard = Guard()
        problems: list[str] = []
        guard.on_first = lambda doing, error: problems.append(describe_error(error))  # noqa: ARG005
        batch = guard.call(
            f"reading {self._source.info.format} logs", self._source.read, cursor, max_bytes=BATCH_BYTES
        )
        if batch is None:
            raise _SourceError(f"{self._source.info.name} could not be read: {'; '.join(problems)}")
        return batch

    def _count(self, batch: Batch) -> None:
        for (_, reason), count in batch.passed_over.items():
            self._counts[reason] += count

    def _commit(self, records: list[Record], cursor: bytes) -> None:
        self._counts.update(self._maker.not_kept)
        self._maker.not_kept.clear()
        text = cursor.decode("utf-8", "replace")
        state = replace(
            self._state, cursor=text, known=dict(self._maker.known), not_imported=dict(self._counts)
        )
        state.sessions = {number: dict(about) for number, about in state.sessions.items()}
        _note_sessions(state, records)
        self._add(records)
        if self._folder is not None and (records or state != self._state):
            self._folder.commit(records, state)
            self.has_written = True
        else:
            state.seq += len(records)
        self._state = state

    def _compare(self) -> bool:
        """Read the whole source, and add the points that the folder lacks; False if it has others."""
        assert self._place is not None
        known: Counter[Key] = Counter()
        for record in all_records(self._place):
            known.update(points_of(record))
        self._counts.clear()
        found: list[Record] = []
        cursor: bytes | None = None
        while True:
            batch = self._read(cursor)
            if batch.replaced:
                found.clear()
                self._counts.clear()
            self._count(batch)
            found += self._maker.make(batch)
            if not batch.more or batch.cursor == cursor:
                break
            cursor = batch.cursor
        left = [new for record in found if (new := without_points(record, known)) is not None]
        gone = sum(count for key, count in known.items() if count > 0 and len(key) == 6)
        if gone:
            self._outcome.state = REPLACED
            self._outcome.reason = (
                f"{gone:,} points that were imported are no longer in the source, which was rewritten; "
                "--again imports it into a folder of its own"
            )
            return False
        self._commit(left, batch.cursor)
        return True

    def _finish(self) -> None:
        """Write how the run ended, once; a run without any record gets its start record."""
        records = [start] if (start := self._maker.start_of_nothing()) is not None else []
        status = self._source.status(time.time())
        self._outcome.is_open = status.state not in ("finished", "failed")
        if records:
            self._commit(records, (self._state.cursor or "").encode())
        newest = max(self._state.sessions, key=int)
        if not self._outcome.is_open and not self._state.sessions[newest].get("ended"):
            self._commit([_end(int(newest), status)], (self._state.cursor or "").encode())
        elif self._state.sessions[newest].get("ended"):
            self._outcome.is_open = False
        state = "live" if status.state in ("live", "running") else "silent"
        before = self._state.sessions[newest].get("state")
        # A source of which nothing was read now knows less about the run than the pass before it.
        if self._outcome.is_open and before != state and (before is None or self._outcome.records):
            changed = replace(self._state, sessions={**self._state.sessions})
            changed.sessions[newest] = {**changed.sessions[newest], "state": state}
            if self._folder is not None:
                self._folder.commit((), changed)
                self.has_written = True
            self._state = changed

    def _add(self, records: list[Record]) -> None:
        outcome = self._outcome
        for record in records:
            event = record["event"]
            points = sum(1 for key in points_of(record) if len(key) == 6)
            outcome.points += points
            if not points and event not in (END, "start", "config"):
                outcome.events[event] = outcome.events.get(event, 0) + 1
        outcome.records += len(records)
        if records and outcome.state == UNCHANGED:
            outcome.state = CONTINUED


def _note_sessions(state: State, records: list[Record]) -> None:
    for record in records:
        about = state.sessions.setdefault(str(record["session"]), {})
        moment, step = record.get("time"), record.get("global_step")
        if moment is not None:
            about["started"] = min(about.get("started", moment), moment)
            about["last"] = max(about.get("last", moment), moment)
        if step is not None and record["event"] == STEP:
            about["step"] = max(about.get("step", step), step)
        if record["event"] == END:
            about["ended"] = record["status"]
        elif record["event"] == STEP:
            # A run that continues after its end has not ended.
            about.pop("ended", None)


def _end(session: int, status: Status) -> Record:
    moment = status.ended if math.isfinite(status.ended) else status.last_sign
    how = FINISHED if status.state == "finished" else FAILED
    when = {"time": moment} if math.isfinite(moment) else {}
    return {
        "event": END,
        **when,
        "session": session,
        "status": how,
        "reason": "recorded by the tool that wrote it",
    }


def _write_manifest(
    place: Path, target: Path, source: RunSource, run_id: str, state: State, name: str | None
) -> None:
    info = source.info
    try:
        old: Manifest | None = read_manifest(place)
    except (OSError, ManifestError):
        old = None
    newest = max(state.sessions, key=int)
    times = [about["last"] for about in state.sessions.values() if "last" in about]
    created = min(
        (about["started"] for about in state.sessions.values() if "started" in about),
        default=old.created if old is not None else time.time(),
    )
    sessions = tuple(
        _session(int(number), about, info, created, is_newest=number == newest)
        for number, about in sorted(state.sessions.items(), key=lambda item: int(item[0]))
    )
    labels = mask_secrets({"name": name or info.name, "project": info.group, "tags": info.tags[:100]})
    tags = tuple(map(str, labels["tags"])) if isinstance(labels["tags"], list) else ()
    provenance: dict[str, Any] = {
        "format": info.format,
        "source_id": info.source_id,
        "run_id": info.run_id or None,
        "parent": info.parent or None,
        "writer": info.writer or None,
        # Relative paths: a run folder may be shared.
        "files": [piece.path for piece in info.pieces[:_MAX_FILES]],
        "notes": [mask_text(note) for note in info.notes],
    }
    display_name, project = str(labels["name"]) or target.name, str(labels["project"]) or None
    if old is not None:
        # A source that is read from the middle on does not see its head again.
        display_name = name or old.display_name
        project, tags = project or old.project, tuple(dict.fromkeys((*old.tags, *tags)))
        known = old.other.get("imported_from")
        for key, value in known.items() if isinstance(known, dict) else ():
            if not provenance.get(key):
                provenance[key] = value
    provenance["not_imported"] = state.not_imported
    manifest = Manifest(
        run_id=run_id,
        name=target.name,
        display_name=display_name,
        project=project,
        tags=tags,
        created=created,
        sessions=sessions,
        heartbeat=Heartbeat(
            time=max(times, default=created),
            seq=state.seq - 1,
            global_step=state.sessions[newest].get("step"),
        ),
        table="short",
        other={**(old.other if old is not None else {}), "imported_from": plain(provenance)},
    )
    write_manifest(place, manifest, mode=PRIVATE.file, durable=True)


def _session(
    number: int, about: dict[str, Any], info: SourceInfo, created: float, *, is_newest: bool
) -> Session:
    ended = about.get("ended")
    is_live = is_newest and not ended and about.get("state") == "live"
    return Session(
        session=number,
        started=about.get("started", created),
        pid=0,
        host=info.format if is_live else "",
        ended=about.get("last") if not is_live else None,
        status=RUNNING if is_live else ended or LOST,
        reason=None
        if is_live
        else f"written by {info.format}"
        if ended
        else f"{info.format} wrote no end of this run",
    )


def _imported_in(log_dir: Path) -> Iterator[tuple[str, tuple[int, Path]]]:
    """Yield the imported runs of a log directory by the id of their source, newest import last."""
    found: list[tuple[int, str, Path]] = []
    try:
        with os.scandir(log_dir) as entries:
            folders = [log_dir / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for folder in folders:
        try:
            run_id = read_manifest(folder).run_id
        except (OSError, ManifestError):
            continue
        match = _RUN_ID.fullmatch(run_id)
        # The id follows from the source, so that another user may have made a folder with it.
        if match is not None and why_not_ours(log_dir, folder) is None:
            found.append((int(match["number"] or 1), match["base"], folder))
    for number, base, folder in sorted(found):
        yield base, (number, folder)


def _is_stale(folder: Path, state: State) -> bool:
    """Return whether an import was killed after its records and before its manifest."""
    try:
        heartbeat = read_manifest(folder).heartbeat
    except (OSError, ManifestError):
        return True
    return heartbeat is None or heartbeat.seq != state.seq - 1


def _numbered(run_id: str, number: int) -> str:
    return run_id if number == 1 else f"{run_id}-{number}"


def runs_of(sources: Iterable[RunSource], *, deleted: bool) -> Iterator[RunSource]:
    """Yield each run once, without those that their tool shows as deleted unless they are asked for."""
    seen: set[str] = set()
    for source in sources:
        if source.info.source_id not in seen and (deleted or not source.info.deleted):
            seen.add(source.info.source_id)
            yield source
