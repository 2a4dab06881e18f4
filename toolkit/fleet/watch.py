"""Watches folders for runs and record files that are new, have changed or are gone, and what is shipped of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from toolkit.fleet.commits import Commit, FileKey
from toolkit.fleet.run_folders import (
    RunFolder,
    Signature,
    read_run_folder,
    record_files,
    run_folders,
    signature_of,
)
from toolkit.fleet.run_rows import RunReport
from toolkit.fleet.tail import RecordTail
from toolkit.runfolder.layout import MANIFEST
from toolkit.runfolder.parts import is_part_of

_SCAN_S: Final = 30.0
"""How often a folder is listed although its modification time has not changed."""

_SETTLED_NS: Final = 10 * 10**9
"""An entry made within the same tick of the clock as a listing may be missing in it."""

_SLOWEST_LOOK_S: Final = 60.0
_LEFT_LOOK_S: Final = 10.0
_LOOK_SHARE: Final = 20
"""A run that has not changed for twenty minutes is looked at every minute."""

AssignShards = Callable[[list[str]], dict[str, int] | None]
"""Returns the shard of each run id, or None if that cannot be found out now."""


class Finder:
    """Finds the run folders below some places, and gives each to the watch of its shard."""

    def __init__(
        self,
        places: Iterable[Path],
        node: str,
        *,
        assign: AssignShards,
        watch_of: Callable[[int], Watch],
        failure: Callable[[str], None],
    ) -> None:
        self._waits_for_manifest = True
        """Whether a folder without run.json is left alone while it is new."""
        self._places = list(places)
        self._node = node
        self._assign = assign
        self._watch_of = watch_of
        self._failure = failure
        self._given: dict[Path, Watch] = {}
        self.given_back: SimpleQueue[Path] = SimpleQueue()
        """Folders that have another run now."""
        self._listed: dict[Path, tuple[int, float, list[Path]]] = {}

    def look(self, *, is_last: bool = False) -> None:
        """Find folders that are new or gone; at the last look, also one that has no run.json yet."""
        now = time.monotonic()
        if is_last:
            self._waits_for_manifest = False
            self._listed.clear()
        there = {folder for place in self._places for folder in self._list(place, now)}
        while not self.given_back.empty():
            self._given.pop(self.given_back.get(), None)
        for gone in self._given.keys() - there:
            self._given.pop(gone).drop(gone)
        new = there - self._given.keys()
        if new:
            self._add(sorted(new, key=_changed_last, reverse=True))

    def _list(self, place: Path, now: float) -> list[Path]:
        known = self._listed.get(place)
        try:
            changed = os.stat(place).st_mtime_ns
            if known is not None and known[0] == changed and now < known[1]:
                return known[2]
            found = run_folders([place])
        except OSError as error:
            self._failure(f"{place} cannot be listed: {error.strerror}")
            return known[2] if known is not None else []
        is_settled = time.time_ns() - changed > _SETTLED_NS
        self._listed[place] = (changed, now + (_SCAN_S if is_settled else 0.0), found)
        return found

    def _add(self, folders: list[Path]) -> None:
        found = [
            run
            for folder in folders
            if (run := read_run_folder(folder, self._node, is_waiting=self._waits_for_manifest)) is not None
        ]
        shards = self._assign([run.key.run_id for run in found]) if found else None
        if shards is not None:
            # Runs first: they say whose parts are theirs.
            for run in sorted(found, key=lambda run: run.is_part):
                self._given[run.folder] = self._watch_of(shards[run.key.run_id])
                self._given[run.folder].add(run)


class Watch:
    """Some runs and their files; all folders of a run are in the same watch.

    Another thread may call `add` and `drop`.
    """

    def __init__(self, node: str, *, given_back: SimpleQueue[Path], failure: Callable[[str], None]) -> None:
        self.runs: dict[Path, ShippedRun] = {}
        self.files: dict[FileKey, ShippedFile] = {}
        """Each file of a run once, whoever's turn it is first."""
        self._node = node
        self._failure = failure
        self._whole: dict[str, RunFolder] = {}
        """The runs that are not parts, by id."""
        self._inbox: SimpleQueue[ShippedRun | Path] = SimpleQueue()
        """What to add, and the folders to drop."""
        self._given_back = given_back

    def add(self, run: RunFolder) -> None:
        """Watch a run from the next look on."""
        self._inbox.put(ShippedRun(found=run))

    def drop(self, folder: Path) -> None:
        """Watch a run no longer, from the next look on."""
        self._inbox.put(folder)

    def look(self) -> None:
        """Find what is new, changed or gone. What has not changed for long is looked at less often."""
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, Path):
                self._drop(item)
                continue
            self.runs[item.found.folder] = item
            if not item.found.is_part:
                self._whole.setdefault(item.found.key.run_id, item.found)
        now = time.monotonic()
        for folder, run in list(self.runs.items()):
            if now >= run.next_look:
                self._look_at(folder, run, now)

    def to_the_back(self, file: ShippedFile) -> None:
        """Let the other files have their turn first next time."""
        self.files[file.key] = self.files.pop(file.key)

    def _look_at(self, folder: Path, run: ShippedRun, now: float) -> None:
        if signature_of(folder / MANIFEST) != run.found.signature:
            found = read_run_folder(folder, self._node)
            if found is not None and found.key != run.found.key:
                # Another run is in the folder now; it is found at the next look.
                self._drop(folder)
                self._given_back.put(folder)
                return
            if found is not None:
                run.found, run.changed = found, now
        if run.left_to is not None:
            run.next_look = now + max(_LEFT_LOOK_S, min((now - run.changed) / _LOOK_SHARE, _SLOWEST_LOOK_S))
            return
        if self._is_foreign(run.found):
            self.drop_files(run)
            self._failure(f"{folder} is not shipped: it is not a part of the run whose id it has")
            return
        try:
            paths = record_files(folder)
        except OSError as error:
            self._failure(f"{folder} cannot be listed: {error.strerror}")
            return
        for rank in run.files.keys() - paths.keys():
            del self.files[run.files.pop(rank).key]
        for rank, path in paths.items():
            file = run.files.get(rank) or self._file(path, run, rank)
            signature = signature_of(path)
            if file is not None and signature and signature != file.signature:
                file.changed_to(signature)
                run.changed = now
        run.next_look = now + min((now - run.changed) / _LOOK_SHARE, _SLOWEST_LOOK_S)

    def _file(self, path: Path, run: ShippedRun, rank: int) -> ShippedFile | None:
        file = ShippedFile(path, run, rank)
        owner = self.files.setdefault(file.key, file)
        if owner is file:
            run.files[rank] = file
            run.copies.discard(rank)
            return file
        if rank not in run.copies:
            run.copies.add(rank)
            self._failure(f"{path} is not shipped: it is a copy of {owner.path}, of the same run and rank")
        return None

    def _is_foreign(self, run: RunFolder) -> bool:
        """Return whether a folder says it is a part of a run here, but has another owner or name."""
        whole = self._whole.get(run.key.run_id)
        if whole is None or whole.manifest is None or run.manifest is None or not run.is_part:
            return False
        return not is_part_of(run.folder, run.manifest, whole.folder, whole.manifest)

    def _drop(self, folder: Path) -> None:
        run = self.runs.pop(folder, None)
        if run is None:
            return
        self.drop_files(run)
        whole = self._whole.get(run.found.key.run_id)
        if whole is not None and whole.folder == folder:
            del self._whole[run.found.key.run_id]

    def drop_files(self, run: ShippedRun) -> None:
        """Forget the files of a run."""
        for file in run.files.values():
            del self.files[file.key]
        run.files.clear()


def _changed_last(folder: Path) -> int:
    try:
        return os.lstat(folder).st_mtime_ns
    except OSError:
        return 0


VERIFY_S: Final = 24 * 3600.0
"""How often everything is compared with the engine, at the latest."""


class ShippedFile:
    """A record file and how far it is shipped."""

    def __init__(self, path: Path, run: ShippedRun, rank: int) -> None:
        self.path = path
        self.run = run
        self.rank = rank
        self.size = 0
        self.signature: Signature = ()
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
        self.missed = 0
        """How often what is known of its metrics was not to be had at its commit."""
        self.rivals = 0
        """How often another shipper began a generation behind that one."""
        self.verified: Signature = ()
        """Of the file, when it was last found to be in the engine as it is."""
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
        is_read = self.size == self.read_size and tail is not None and tail.position.end == end
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
        if self.tail is not None and signature[1] <= self.size:
            # It did not just grow: what was read may have been changed.
            self.tail.sums = None
        self.signature, self.size = signature, signature[1]
        self.read_size = -1

    def forget(self) -> None:
        """Ask the engine again what it has of the file."""
        self.commit = self.tail = None
        self.read_size = -1


def next_verify() -> float:
    """Return when to verify a run again; not all of them at the same time."""
    return time.monotonic() + VERIFY_S * random.uniform(0.5, 1.0)


@dataclass(slots=True, kw_only=True)
class ShippedRun:
    """A run folder, its files, and what was reported of it."""

    found: RunFolder
    report: RunReport = field(default_factory=RunReport)
    files: dict[int, ShippedFile] = field(default_factory=dict)
    changed: float = field(default_factory=time.monotonic)
    """When something in it was last seen to change, by the monotonic clock."""
    next_look: float = 0.0
    left_to: str | None = None
    """The node whose shipper sends the run, if it is not this one."""
    since: float = field(default_factory=time.monotonic)
    """When it was found or taken, by the monotonic clock."""
    next_verify: float = field(default_factory=next_verify)
    copies: set[int] = field(default_factory=set)
    """Ranks whose file is a copy of one in another folder: only that one is shipped."""

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
