"""Watches folders for runs and record files that are new, have changed or are gone, and what is shipped of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.outbox import Failures
from toolkit.telemetry.fleet.commits import Commit, FileKey
from toolkit.telemetry.fleet.objects import ObjectShipper
from toolkit.telemetry.fleet.run_folders import RunFolder, matching_folders, read_run_folder, record_files
from toolkit.telemetry.fleet.run_rows import RunReport
from toolkit.telemetry.fleet.tail import RecordTail
from toolkit.telemetry.runfolder.folder_list import Signature, folders_in, is_run_folder, signature_of
from toolkit.telemetry.runfolder.layout import LABELS, MANIFEST, RANKS
from toolkit.telemetry.runfolder.manifest import ManifestError
from toolkit.telemetry.runfolder.node_folders import is_part_of
from toolkit.telemetry.runfolder.status import RUNNING

_SCAN_S: Final = 30.0
"""How often folders are listed although none has changed, and patterns expanded."""
_SETTLED_NS: Final = 10 * 10**9
"""An entry made within the same tick of the clock as a listing may be missing in it."""
_QUIET_S: Final = 60.0
"""A run that has not changed for so long, and is shipped, is only looked at."""
_LOOK_S: Final = 50.0
"""Within this time all runs are looked at, some in each round: what is new is sent within a minute."""
_HURRIED_S: Final = 15.0
"""A run that is resumed touches its log directory: so soon all runs are looked at."""
VERIFY_S: Final = 24 * 3600.0
"""How often what was written since is compared with the engine, at the latest."""
_ENDED_DAYS: Final = 30
"""Of the runs that have ended so many parts: one of them is read and compared again every day."""


@dataclass(slots=True)
class Totals(Failures):
    """What a shipper has done since it started."""

    lines: int = 0


@dataclass(slots=True, kw_only=True)
class Node:
    """What the parts of a shipper share."""

    name: str
    say: Callable[[str], None]
    objects: ObjectShipper | None
    delivers_requests: bool
    keep_days: int = 0
    totals: Totals = field(default_factory=Totals)

    def failure(self, reason: str) -> None:
        """Count a failure, and say it if it is new."""
        self.totals.add(reason, self.say)


class Watch:
    """The runs below some places, and their files."""

    def __init__(self, places: Iterable[Path], node: Node) -> None:
        self.runs: dict[Path, ShippedRun] = {}
        self.active: dict[Path, ShippedRun] = {}
        """Those of which something may have to be sent; the others are only looked at."""
        self.files: dict[FileKey, ShippedFile] = {}
        """Each file of a run once."""
        self._node = node
        self._wanted = list(places)
        self._missing: set[Path] = set()
        self._places: list[Path] = []
        self._changed: dict[Path, int] = {}
        """When each place changed."""
        self._next_expansion = self._next_listing = self._hurried_until = 0.0
        self._named: dict[Path, dict[str, Path]] = {}
        """The folders in each place by name: making so many paths again takes longer than listing them."""
        self._turns: Iterator[Path] = iter(())
        """The runs that are looked at next."""
        self._due = self._last_look = 0.0
        """How many of them are due, as of the last look."""
        self._whole: dict[str, RunFolder] = {}
        """The runs that are not parts, by id."""

    def look(self, *, is_last: bool = False) -> None:
        """Find what is new, changed or gone. What is unchanged for long is looked at once a minute, or at the end."""
        now = time.monotonic()
        self._find(now, is_last=is_last)
        for folder in list(self.runs) if is_last else self._next_runs(now):
            if folder in self.runs:
                self._look_at(folder, self.runs[folder], now)
        self._last_look = now

    def _next_runs(self, now: float) -> Iterable[Path]:
        """Return the runs of which something may have to be sent, and the next of all."""
        found = {folder: None for folder, run in self.active.items() if run.left_to is None}
        within_s = _HURRIED_S if now < self._hurried_until else _LOOK_S
        self._due = min(len(self.runs), self._due + (now - self._last_look) / within_s * len(self.runs))
        while self._due >= 1:
            folder = next(self._turns, None)
            if folder is None:
                self._turns = iter(list(self.runs))
            else:
                found[folder] = None
                self._due -= 1
        return found

    def rest(self) -> None:
        """Leave alone until they change the runs of which there is nothing to send."""
        now = time.monotonic()
        for folder, run in list(self.active.items()):
            if run.is_quiet(now):
                del self.active[folder]

    def active_files(self) -> list[ShippedFile]:
        """Return the files of active runs; those that have waited longest come first."""
        files = [file for run in self.active.values() for file in run.files.values()]
        return sorted(files, key=lambda file: file.turn)

    # ------------------------------------------------------------ folders

    def _find(self, now: float, *, is_last: bool) -> None:
        if is_last or now >= self._next_expansion:
            self._expand()
            self._next_expansion = now + _SCAN_S
        changed = {place: _changed_at(place) for place in self._places}
        if changed == self._changed and now < self._next_listing and not is_last:
            return
        if changed.keys() == self._changed.keys() and changed != self._changed:
            self._hurried_until = now + _HURRIED_S
        self._changed = changed
        is_settled = time.time_ns() - max(changed.values(), default=0) > _SETTLED_NS
        self._next_listing = now + (_SCAN_S if is_settled else 0.0)
        self._give({folder for place in self._places for folder in self._run_folders(place)})

    def _expand(self) -> None:
        """Learn which folders are meant: patterns may match others by now, and what is missing is waited for."""
        found = {wanted: matching_folders(wanted) for wanted in self._wanted}
        # What could be listed before stays: the file system may be away for a short time.
        kept = [place for place in self._places if place in self._wanted]
        missing = {wanted for wanted, folders in found.items() if not folders and wanted not in kept}
        for wanted in missing - self._missing:
            self._node.say(f"{wanted} is not there yet; it is waited for")
        self._missing = missing
        self._places = list(
            dict.fromkeys((*kept, *(folder for folders in found.values() for folder in folders)))
        )

    def _run_folders(self, place: Path) -> list[Path]:
        try:
            names = [""] if is_run_folder(place) else folders_in(place)
        except OSError as error:
            self._node.failure(f"{place} cannot be listed: {error.strerror}")
            return [folder for folder in self.runs if place in (folder, folder.parent)]
        known = self._named.get(place, {})
        folders = self._named[place] = {name: known.get(name) or place / name for name in names}
        return [folder for folder in folders.values() if folder in self.runs or is_run_folder(folder)]

    def _give(self, there: set[Path]) -> None:
        for gone in self.runs.keys() - there:
            self.drop(gone)
        new = sorted(there - self.runs.keys(), key=lambda folder: signature_of(folder)[:1], reverse=True)
        read = [self._run_in(folder) for folder in new]
        # Runs first: they say whose parts are theirs.
        for run in sorted((run for run in read if run is not None), key=lambda run: run.is_part):
            quiet_s = _quiet_for(run)
            self.runs[run.folder] = self.active[run.folder] = ShippedRun(
                found=run, changed=time.monotonic() - quiet_s, next_verify=next_verify(has_ended=quiet_s > 0)
            )
            if not run.is_part:
                self._whole.setdefault(run.key.run_id, run)

    def _run_in(self, folder: Path) -> RunFolder | None:
        try:
            return read_run_folder(folder)
        except ManifestError as error:
            self._node.failure(f"it is not shipped: {error}")
            return None

    # ------------------------------------------------------------ runs

    def _look_at(self, folder: Path, run: ShippedRun, now: float) -> None:
        if not run.seen or run.seen != tuple(map(signature_of, run.paths)):
            self._read(folder, run, now)
        if now >= run.next_verify and folder in self.runs:
            self.active[folder] = run

    def _read(self, folder: Path, run: ShippedRun, now: float) -> None:
        """Learn what has changed in a run folder."""
        try:
            paths = record_files(folder)
        except OSError as error:
            self._node.failure(f"{folder} cannot be listed: {error.strerror}")
            return
        # What is not there yet changes the folder.
        more = (path for name in (LABELS, RANKS) if os.path.lexists(path := folder / name))
        run.paths = (folder, folder / MANIFEST, *more, *paths.values())
        seen, before = tuple(map(signature_of, run.paths)), run.seen
        run.seen, run.report.has_changed, self.active[folder] = seen, True, run
        run.changed = now if before else run.changed
        if seen[1] != run.found.signature:
            found = self._run_in(folder)
            if found is not None and found.key != run.found.key:
                # Another run is in the folder now; it is found at the next look.
                self.drop(folder)
                self._next_listing = 0.0
                return
            run.found = found or run.found
        if run.left_to is not None:
            return
        if self._is_foreign(run.found):
            self.drop_files(run)
            self._node.failure(f"{folder} is not shipped: it is not a part of the run whose id it has")
            return
        for rank in run.files.keys() - paths.keys():
            del self.files[run.files.pop(rank).key]
        for (rank, path), signature in zip(paths.items(), seen[len(seen) - len(paths) :], strict=True):
            file = run.files.get(rank) or self._file(path, run, rank)
            if file is not None and signature and signature != file.signature:
                file.changed_to(signature)

    def _file(self, path: Path, run: ShippedRun, rank: int) -> ShippedFile | None:
        file = ShippedFile(path, run, rank)
        owner = self.files.setdefault(file.key, file)
        if owner is file:
            run.files[rank] = file
            run.copies.discard(rank)
            return file
        if rank not in run.copies:
            run.copies.add(rank)
            self._node.failure(
                f"{path} is not shipped: it is a copy of {owner.path}, of the same run and rank"
            )
        return None

    def _is_foreign(self, run: RunFolder) -> bool:
        """Return whether a folder says it is a part of a run here, but has another owner or name."""
        whole = self._whole.get(run.key.run_id)
        if whole is None or not run.is_part:
            return False
        return not is_part_of(run.folder, run.manifest, whole.folder, whole.manifest)

    def drop(self, folder: Path) -> None:
        """Watch a run no longer."""
        run = self.runs.pop(folder)
        self.active.pop(folder, None)
        self.drop_files(run)
        whole = self._whole.get(run.found.key.run_id)
        if whole is not None and whole.folder == folder:
            del self._whole[run.found.key.run_id]

    def drop_files(self, run: ShippedRun) -> None:
        """Forget the files of a run."""
        for file in run.files.values():
            del self.files[file.key]
        run.files.clear()


def _changed_at(place: Path) -> int:
    try:
        return os.stat(place).st_mtime_ns
    except OSError:
        return 0


def _quiet_for(run: RunFolder) -> float:
    """Return for how many seconds a run has not changed when it is found, as far as it has ended."""
    latest = run.manifest.latest
    has_ended = latest is not None and latest.status != RUNNING
    return max(0.0, time.time() - run.signature[0] / 1e9) if has_ended and run.signature else 0.0


class ShippedFile:
    """A record file and how far it is shipped."""

    def __init__(self, path: Path, run: ShippedRun, rank: int) -> None:
        self.path = path
        self.run = run
        self.rank = rank
        self.size = 0
        self.signature: Signature = ()
        self.turn = 0.0
        """When it was last read, by the monotonic clock."""
        self.read_size = -1
        """The size at which there was nothing more to read."""
        self.commit: Commit | None = None
        """How far it is shipped; None until the engine was asked."""
        self.has_begun = True
        """Whether the engine knows of the generation: an empty one has to be committed too."""
        self.tail: RecordTail | None = None
        """Reads on; None until there is something to read."""
        self.problem: str | None = None
        """Why it is not read until the engine is asked again, once a minute."""
        self.gen = 0
        """The last generation that this shipper sent or found to be the file; 0 before that."""
        self.is_superseded = False
        """Whether another node ships a newer file of the same run and rank."""

    @property
    def key(self) -> FileKey:
        """Run id and rank."""
        return self.run.found.key.run_id, self.rank

    @property
    def is_unknown(self) -> bool:
        """Whether the engine has to be asked how far it is shipped."""
        return self.commit is None and self.problem is None

    @property
    def behind(self) -> int:
        """How many bytes are not shipped, without a last line that is still being written."""
        # Once: other threads ask for this while the sender may forget what it knows.
        tail, end = self.tail, self.end
        is_read = self.size == self.read_size and tail is not None and tail.commit.end == end
        return 0 if self.is_superseded or is_read else max(0, self.size - end)

    @property
    def end(self) -> int:
        """How far it is shipped, as far as is known."""
        commit = self.commit
        return commit.end if commit is not None else 0

    @property
    def has_more(self) -> bool:
        """Whether there may be lines to read."""
        return self.size != self.read_size and self.commit is not None and self.problem is None

    def changed_to(self, signature: Signature) -> None:
        """Note that the file was written or replaced."""
        self.signature, self.size = signature, signature[1]
        self.read_size = -1

    def forget(self) -> None:
        """Ask the engine again what it has of the file."""
        self.commit = self.tail = None
        self.read_size = -1


def next_verify(*, has_ended: bool = False) -> float:
    """Return when to verify a run again; not all of them at the same time."""
    days = random.uniform(0.0, _ENDED_DAYS) if has_ended else random.uniform(0.5, 1.0)
    return time.monotonic() + VERIFY_S * days


@dataclass(slots=True, kw_only=True)
class ShippedRun:
    """A run folder, its files, and what was reported of it."""

    found: RunFolder
    report: RunReport = field(default_factory=RunReport)
    files: dict[int, ShippedFile] = field(default_factory=dict)
    changed: float = field(default_factory=time.monotonic)
    """When something in it was last seen to change, by the monotonic clock."""
    paths: tuple[Path, ...] = ()
    """What is looked at: its folder, run.json, what else may change, and last its record files."""
    seen: tuple[Signature, ...] = ()
    """Of the paths, when they were read."""
    left_to: str | None = None
    """The node whose shipper sends the run, if it is not this one."""
    since: float = field(default_factory=time.monotonic)
    """When it was found or taken, by the monotonic clock."""
    next_verify: float
    copies: set[int] = field(default_factory=set)
    """Ranks whose file is a copy of one in another folder: only that one is shipped."""

    def is_quiet(self, now: float) -> bool:
        """Return whether there is nothing to send or to compare until it changes."""
        return (
            now - self.changed > _QUIET_S
            and now < self.next_verify
            and (self.report.is_quiet(self.found) or not self.is_listed)
            and not any(
                file.behind or file.has_more or (file.commit is None and not file.is_superseded)
                for file in self.files.values()
            )
        )

    @property
    def is_listed(self) -> bool:
        """Whether this folder says what the run does: it has the rank 0 that is shipped."""
        file = self.files.get(0)
        is_another = file is not None and (file.is_superseded or file.is_unknown)
        return self.left_to is None and 0 not in self.copies and not is_another

    @property
    def behind(self) -> int:
        """How many bytes are not shipped."""
        return sum(file.behind for file in list(self.files.values()))
