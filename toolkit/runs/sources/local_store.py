"""The RunStore for run folders on local disks."""

from __future__ import annotations

import difflib
import functools
import math
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.diagnostics.finding import Finding
from toolkit.diagnostics.policy import Policy
from toolkit.runfolder import trash
from toolkit.runfolder.control import ControlRefused, write_request
from toolkit.runfolder.key_values import KeyValues, trend_of
from toolkit.runfolder.labels import (
    PROJECTS,
    Labels,
    LabelsError,
    ProjectSettings,
    ProjectSettingsError,
    read_labels,
    read_project,
    write_labels,
    write_project,
)
from toolkit.runfolder.layout import METRICS_JSONL, RANKS, rank_file
from toolkit.runfolder.manifest import Manifest
from toolkit.runfolder.parts import record_files
from toolkit.runfolder.records import START
from toolkit.runfolder.safefile import NotInside, read_inside
from toolkit.runfolder.status import FAILED, FINISHED, STOPPED
from toolkit.runs.columns.column_cache import ColumnCache
from toolkit.runs.columns.column_queries import ColumnQueries
from toolkit.runs.columns.run_log import RunLog
from toolkit.runs.findings.rank_signs import RankSigns
from toolkit.runs.findings.run_analysis import SavedFindings
from toolkit.runs.formatting import clean
from toolkit.runs.listing.run_listing import (
    FoundRun,
    OldRuns,
    RootListing,
    Signature,
    card_of,
    now,
    read_start,
)
from toolkit.runs.listing.search import list_of
from toolkit.runs.record_source import FileSource, RecordSource
from toolkit.runs.sources.rank_grid import RankReader
from toolkit.runs.sources.store_queries import StoreQueries, evict
from toolkit.runs.store import (
    CacheState,
    Health,
    RankGrid,
    RankSign,
    Refused,
    RunCard,
    RunList,
    RunMeta,
    RunQuery,
    StoreState,
    Trashed,
    UnknownRun,
)

_SCAN_EVERY_S: Final = 0.5
_MAX_NOT_FOUND: Final = 100
_MOST_NEAR: Final = 10
"""Unknown runs that are searched for between two scans; each search checks every name."""
_RANKS_EVERY_S: Final = 2.0
_MOST_SIGNS: Final = 50
"""Runs of several ranks whose last signs are kept."""
_TREND_BUDGET_S: Final = 0.2
_OLD_RUNS_BUDGET_S: Final = 0.2
_RANKS_BUDGET: Final = 100_000_000
"""Above this, the ranks of runs looked at before are read again when needed; 1,024 ranks take 16 MB."""


class LocalStore(StoreQueries):
    """One per process: pages share it, so that each byte is read once."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        cache_dir: Path | None,
        read_only: bool = False,
        read_only_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Show the runs in `roots`; `read_only_reason` returns why the current visitor is read-only, or None."""
        super().__init__(read_only=read_only, read_only_reason=read_only_reason)
        self.roots = tuple(Path(os.path.abspath(root)) for root in roots)
        self._places = tuple(clean(str(root)) for root in self.roots)
        self.cache = ColumnCache(cache_dir) if cache_dir is not None else None
        self._listings = [RootListing(root) for root in self.roots]
        self._tags = _tags_of(self.roots)
        self._keys: dict[tuple[int, str], str] = {}
        """The key of each run, by the position of its log directory and the name of its folder."""
        self._runs: dict[str, FoundRun] = {}
        self._problems: tuple[str, ...] = ()
        self._not_found: set[str] = set()
        self._scanned_at = -1.0
        self._scan_ms = 0.0
        self._logs: dict[tuple[str, int], RunLog] = {}
        self._rank_readers: dict[str, tuple[Path, RankReader]] = {}
        self._rank_files: dict[str, tuple[float, dict[int, Path]]] = {}
        """The record files of runs with parts, and when they were listed."""
        self._rank_signs: dict[str, RankSigns] = {}
        self._trends: dict[str, tuple[int, list[float]]] = {}
        self._old_runs = OldRuns()
        self._cards: dict[str, tuple[Signature, KeyValues | None, RunCard]] = {}

    def _saved_findings(self, source: RecordSource, policy: Policy) -> SavedFindings | None:
        if self.cache is None or not isinstance(source, FileSource):
            return None
        return SavedFindings(self.cache, source.path, policy)

    # ------------------------------------------------------------ listing

    def list_runs(self, query: RunQuery | None = None) -> RunList:
        """Return the runs that `query` finds, without one all of them."""
        query = query or RunQuery()
        with self._lock:
            self._scan()
            moment = now()
            cards = [self._card(found, moment) for found in self._runs.values()]
            problems, read_ms = self._problems, self._scan_ms
            truncated = tuple(clean(str(listing.root)) for listing in self._listings if listing.is_truncated)
        others, notes = self._others(moment)
        listed = list_of([*cards, *others], query, moment, self._places)
        return replace(listed, problems=(*problems, *notes), truncated=truncated, read_ms=read_ms)

    def _others(self, moment: float) -> tuple[Sequence[RunCard], Sequence[str]]:  # noqa: ARG002
        """Return the cards of runs that are not run folders, and what was skipped."""
        return (), ()

    def _scan(self, *, again: bool = False) -> None:
        began = time.perf_counter()
        # On a slow file system at most a tenth of the time goes into listing.
        pause_s = max(_SCAN_EVERY_S, self._scan_ms / 100)
        if not again and time.monotonic() - self._scanned_at < pause_s:
            return
        runs: dict[str, FoundRun] = {}
        problems: list[str] = []
        scanned: list[Sequence[FoundRun]] = []
        for listing in self._listings:
            found, skipped = listing.scan()
            scanned.append(found)
            problems.extend(skipped)
        names = Counter(name for found in scanned for name in {run.key for run in found})
        self._keys = {}
        for number, listed in enumerate(scanned):
            for run in listed:
                name = run.key
                if names[name] > 1:
                    # Whatever the order of the log directories: an address stays that of its run.
                    run = replace(run, key=f"{self._tags[number]}~{name}")
                if runs.setdefault(run.key, run) is run:
                    self._keys[number, name] = run.key
                else:
                    problems.append(f"two folders have the name {run.key}; only one of them is shown")
        complete = self._old_runs.complete(runs.values(), budget_s=_OLD_RUNS_BUDGET_S)
        before, self._runs, self._problems = self._runs, {run.key: run for run in complete}, tuple(problems)
        for key, old in before.items() if len(self.roots) > 1 else ():
            if key in self._runs and self._runs[key].folder != old.folder:
                self._forget(key)
        if len(self._cards) > 2 * len(self._runs) + 100:
            self._cards.clear()
        self._not_found.clear()
        self._scanned_at = time.monotonic()
        self._scan_ms = (time.perf_counter() - began) * 1000

    def _find(self, key: str) -> FoundRun:
        with self._lock:
            self._scan()
            found = self._runs.get(key)
            if found is None and time.monotonic() - self._scanned_at > self._scan_ms / 1000:
                # It may have started since the last scan. Searches for missing runs get at most half of the time:
                # with ten thousand runs a scan takes a while, and every other tab waits for it.
                self._scan(again=True)
                found = self._runs.get(key)
            if found is None:
                near = {self._keys[place]: None for place in self._addressed(key) if place in self._keys}
                if len(near) == 1:
                    return self._runs[next(iter(near))]
                if near:
                    raise UnknownRun(key, list(near)[:_MOST_NEAR])
                found = self._find_unlisted(key)
            if found is None:
                raise UnknownRun(key, difflib.get_close_matches(key, self._runs, n=3, cutoff=0.3))
            return found

    def _addressed(self, key: str) -> list[tuple[int, str]]:
        """Return the log directories and folders that an address may mean: of all that have it, or of the one it names.

        It may be of a time with other log directories, in which the name was unique, or was not.
        """
        tag, _, name = key.partition("~")
        name = name if tag else ""
        named = [(number, name) for number, one in enumerate(self._tags) if name and tag == one]
        return named or [
            (number, text) for text in (key, name) if text for number in range(len(self._listings))
        ]

    def _find_unlisted(self, key: str) -> FoundRun | None:
        """Return a run that is not listed because there are too many; None if it does not exist."""
        if key in self._not_found or len(self._not_found) >= _MAX_NOT_FOUND:
            return None
        for number, name in self._addressed(key):
            listing = self._listings[number]
            found = listing.find(name) if listing.is_truncated else None
            if found is not None:
                self._runs[key] = found = replace(found, key=key)
                return found
        self._not_found.add(key)
        return None

    def card(self, key: str) -> RunCard:
        """Return one run's card, based on the records read so far."""
        found = self._find(key)
        log = self._logs.get((key, 0))
        return self._card(found, now(), newest=log.newest() if log is not None else None)

    def _card(
        self, found: FoundRun, moment: float, *, newest: tuple[float, int | None] | None = None
    ) -> RunCard:
        """Return the run's card; that of a run that has ended is made once, for a list of ten thousand."""
        if newest is not None:
            return card_of(found, moment, newest=newest)
        known = self._cards.get(found.key)
        if known is not None and known[0] == found.signature and known[1] is found.key_values:
            return known[2]
        card = card_of(found, moment)
        if card.status.name in (FINISHED, FAILED, STOPPED) and found.signature and not found.parts:
            self._cards[found.key] = (found.signature, found.key_values, card)
        else:
            self._cards.pop(found.key, None)
        return card

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:
        """Return losses sampled along each run's log; runs that take too long follow in a later call."""
        began = time.perf_counter()
        found: dict[str, Sequence[float]] = {}
        for key in keys:
            run = self._runs.get(key)
            if run is None:
                continue
            log = run.folder / METRICS_JSONL
            known = self._trends.get(key)
            try:
                size = os.lstat(log).st_size
                # 5 % more data changes the picture by a pixel or two.
                if known is None or not known[0] <= size <= known[0] * 1.05 + 4096:
                    if time.perf_counter() - began > _TREND_BUDGET_S:
                        if known is not None:
                            found[key] = known[1]
                        continue
                    known = (size, trend_of(log, points))
                    self._trends[key] = known
            except OSError:
                continue
            found[key] = known[1]
        return found

    # ------------------------------------------------------------ one run

    def meta(self, key: str) -> RunMeta:
        """Return everything about a run except its curves."""
        found = self._find(key)
        newest = self._log(key).events((START,), 1)
        environment = self._log(key).events(("environment",), 1)
        return RunMeta(
            card=self.card(key),
            manifest=found.manifest,
            labels=found.labels,
            start=newest[0] if newest else read_start(found.folder / METRICS_JSONL),
            environment=environment[0] if environment else {},
            writable=self._write_refusal() is None and os.access(found.folder, os.W_OK),
        )

    def _log(self, key: str, rank: int = 0) -> ColumnQueries:
        return self._run_log(key, rank)

    def _run_log(self, key: str, rank: int) -> RunLog:
        found = self._find(key)
        with self._lock:
            log = self._logs.get((key, rank))
            path = self._record_file(found, rank)
            if log is None or log.path != path:
                log = RunLog(path, self.cache)
                self._logs[key, rank] = log
                evict(self._logs, log)
            log.used_at = time.monotonic()
            return log

    def _manifest(self, key: str) -> Manifest | None:
        return self._find(key).manifest

    def _folder_name(self, key: str) -> str:
        return self._find(key).folder.name

    def _source(self, key: str, rank: int = 0) -> RecordSource:
        return FileSource(self._record_file(self._find(key), rank))

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        """Read new records, for at most about `wait_s`."""
        return self._run_log(key, rank).refresh(wait_s)

    def wait_until_saved(self, timeout_s: float) -> None:
        """Wait for columns that are being saved, each for at most `timeout_s`."""
        with self._lock:
            logs = list(self._logs.values())
        for log in logs:
            log.wait_until_saved(timeout_s)

    def ranks(self, key: str) -> Sequence[int]:
        """Return the ranks with their own records."""
        found = self._find(key)
        try:
            return [*record_files(found.folder, found.parts)]
        except OSError:
            return [0]

    def rank_grid(self, key: str, metric: str, *, buckets: int = 64, wait_s: float = 2.0) -> RankGrid:
        """Return one metric of all ranks, after reading new records for at most about `wait_s`."""
        folder = self._find(key).folder
        with self._lock:
            known = self._rank_readers.pop(key, None)
            if known is None or known[0] != folder:
                known = (folder, RankReader(functools.partial(self._source, key)))
            self._rank_readers[key] = known
            while len(self._rank_readers) > 1 and self._held_for_ranks() > _RANKS_BUDGET:
                del self._rank_readers[next(iter(self._rank_readers))]
        return known[1].read(self.ranks(key), metric, buckets, wait_s)

    def rank_signs(self, key: str) -> Sequence[RankSign]:
        """Return the last sign of each rank."""
        signs = self._signs_of(key)
        return () if signs is None else signs.signs()

    def findings(self, key: str) -> Sequence[Finding]:
        """Return what the detectors found so far, and ranks that died or fell silent."""
        found = super().findings(key)
        signs = self._signs_of(key)
        if signs is None:
            return found
        step = max((sign.last_step or 0 for sign in signs.signs() if not sign.rank), default=0)
        severity = self._policy(key).severity
        return (
            *found,
            *(
                replace(lost, severity=chosen)
                for lost in signs.findings(found, step)
                if (chosen := severity(lost.kind, usual=lost.severity, found=None)) is not None
            ),
        )

    def _signs_of(self, key: str) -> RankSigns | None:
        """Return the signs of a run's ranks, read a moment ago; None if it has one rank."""
        found = self._find(key)
        if found.part is not None:
            return None
        try:
            files = record_files(found.folder, found.parts)
        except OSError:
            return None
        if len(files) < 2:
            return None
        with self._lock:
            signs = self._rank_signs.pop(key, None) or RankSigns()
            self._rank_signs[key] = signs
            while len(self._rank_signs) > _MOST_SIGNS:
                del self._rank_signs[next(iter(self._rank_signs))]
        signs.look(files, is_live=self.card(key).live)
        return signs

    def _held_for_ranks(self) -> int:
        return sum(reader.nbytes for _, reader in self._rank_readers.values())

    def _record_file(self, found: FoundRun, rank: int) -> Path:
        """Return the file of a rank, which may be in a part; of a part alone, rank 0 means the first one it has."""
        if rank and (found.folder / RANKS).is_symlink():
            raise Refused(f"{RANKS} is a symbolic link and is not followed")
        own = rank_file(found.folder, rank)
        if found.part is None and (rank == 0 or not found.parts):
            return own
        # Listed for all ranks at once: a page asks for a thousand of them.
        listed_at, files = self._rank_files.get(found.key, (-math.inf, {}))
        if time.monotonic() - listed_at > _RANKS_EVERY_S or (rank and rank not in files):
            try:
                files = record_files(found.folder, found.parts)
            except OSError:
                return own
            self._rank_files[found.key] = (time.monotonic(), files)
        return files.get(rank, own) if rank else next(iter(files.values()), own)

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        """Return a file that a record points to, inside the run's folder."""
        try:
            return read_inside(self._find(key).folder, relative, max_bytes=max_bytes)
        except NotInside as error:
            raise Refused(str(error)) from error

    # ------------------------------------------------------------ requests and labels

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        """Write a request for the run and return its id."""
        self._require_write_access()
        found, card = self._find(key), self.card(key)
        if found.part is not None:
            raise Refused("this is a part of a run; requests go to the folder of its rank 0")
        if not card.live:
            raise Refused(f"the run is {card.status.name} and cannot answer requests")
        try:
            written = write_request(
                found.folder,
                log_every=request.get("log_every"),
                actions=tuple(request.get("actions", ())),
                knobs=request.get("knobs"),
                run_id=found.manifest.run_id if found.manifest else None,
            )
        except ControlRefused as error:
            raise Refused(error.reason) from error
        except OSError as error:
            raise Refused(f"control.json could not be written: {error.strerror}") from error
        return written.id

    def label(self, key: str, labels: Labels) -> None:
        """Save name, tags and notes of a run."""
        self._require_write_access()
        folder = self._find(key).folder
        try:
            # An invalid file may be someone's notes with a typo: it is not overwritten.
            read_labels(folder)
            write_labels(folder, labels)
        except LabelsError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"labels.json could not be written: {error.strerror}") from error
        self._rescan()

    def project_settings(self, project: str | None) -> ProjectSettings:
        """Return what was chosen for a project, in the first log directory."""
        try:
            return read_project(self.roots[0], project) if self.roots else ProjectSettings()
        except ProjectSettingsError:
            return ProjectSettings()

    def set_project_settings(self, project: str | None, settings: ProjectSettings) -> None:
        """Save the choices for a project in the first log directory."""
        self._require_write_access()
        try:
            write_project(self.roots[0], project, settings)
        except ProjectSettingsError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"{PROJECTS} could not be written: {error.strerror}") from error

    def delete(self, key: str) -> str:
        """Move a run to the trash and return the token that restores it."""
        self._require_write_access()
        found, card = self._find(key), self.card(key)
        if card.live:
            raise Refused(f"the run is {card.status.name}: stop it first")
        number = next(i for i, root in enumerate(self.roots) if root == found.folder.parent)
        with _refusals():
            token = trash.move_to_trash(self.roots[number], found.folder.name)
        with self._lock:
            self._forget(found.key)
        self._rescan()
        return f"{number}~{token}"

    def _forget(self, key: str) -> None:
        """Forget what was read of a run: it is gone, or its key means another one now."""
        self._logs = {name: log for name, log in self._logs.items() if name[0] != key}
        self._forget_analyses(key)
        for kept in (self._rank_readers, self._rank_signs, self._rank_files, self._trends, self._cards):
            kept.pop(key, None)

    def trash(self) -> Sequence[Trashed]:
        """Return the deleted runs, newest first."""
        with _refusals():
            found = [
                Trashed(
                    token=f"{number}~{item.token}",
                    name=_display_name(item.path / item.name),
                    deleted=item.deleted,
                    bytes_held=item.bytes_held,
                )
                for number, root in enumerate(self.roots)
                for item in trash.list_trash(root)
            ]
        return sorted(found, key=lambda item: item.deleted, reverse=True)

    def restore(self, token: str) -> str:
        """Restore a run and return its key."""
        self._require_write_access()
        number, _, inner = token.partition("~")
        if not number.isdecimal() or int(number) >= len(self.roots):
            raise Refused("there is no such run in the trash")
        with _refusals():
            name = trash.restore(self.roots[int(number)], inner)
        self._rescan()
        return self._keys.get((int(number), clean(name)), clean(name))

    def empty_trash(self) -> int:
        """Permanently delete the runs in the trash."""
        self._require_write_access()
        with _refusals():
            return sum(trash.empty_trash(root) for root in self.roots)

    def state(self) -> StoreState:
        """Return the log directories."""
        return StoreState(kind="folders", places=self._places)

    def cache_state(self) -> CacheState:
        """Return where the columns of large logs are kept, and how much."""
        if self.cache is None:
            return CacheState(place=None)
        problem = self.cache.distrusted()
        return CacheState(
            place=clean(str(self.cache.folder)),
            bytes_held=0 if problem else self.cache.size(),
            problem=problem,
        )

    def empty_cache(self) -> int:
        """Clear the cache and return the number of bytes freed."""
        self._require_write_access()
        return self.cache.clear() if self.cache is not None else 0

    def _rescan(self) -> None:
        with self._lock:
            self._scan(again=True)


@contextmanager
def _refusals() -> Iterator[None]:
    """Refuse what the trash cannot do."""
    try:
        yield
    except trash.TrashError as error:
        raise Refused(str(error)) from error


def _tags_of(roots: Sequence[Path]) -> list[str]:
    """Return a name for each log directory: its last part, and a few digits of its path if another has the same."""
    names = Counter(root.name for root in roots)
    return [
        clean(root.name)
        if names[root.name] == 1
        else clean(f"{root.name}-{zlib.crc32(os.fsencode(root)):08x}"[:-4])
        for root in roots
    ]


def _display_name(folder: Path) -> str:
    """Return what a deleted run was called last."""
    try:
        return read_labels(folder).display_name or folder.name
    except LabelsError:
        return folder.name
