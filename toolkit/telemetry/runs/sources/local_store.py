"""The RunStore for log directories on local disks: run folders, and other tools' logs, which are only read."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder import trash
from toolkit.telemetry.runfolder.control import ControlRefused, write_request
from toolkit.telemetry.runfolder.key_values import trend_of
from toolkit.telemetry.runfolder.labels import (
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
from toolkit.telemetry.runfolder.layout import LABELS, METRICS_JSONL, RANKS, TRASH, rank_file
from toolkit.telemetry.runfolder.manifest import Manifest
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runfolder.records import ENVIRONMENT, START, Record
from toolkit.telemetry.runfolder.safefile import NotInside, read_inside
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.findings.rank_signs import RankSigns
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.listing.foreign_runs import ForeignRun
from toolkit.telemetry.runs.listing.run_folders import RunFolders, run_folders
from toolkit.telemetry.runs.listing.run_listing import FoundRun, now, read_start
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.record_source import FileSource, RecordSource
from toolkit.telemetry.runs.sources.foreign_log import ForeignLog
from toolkit.telemetry.runs.sources.rank_grid import RankReader
from toolkit.telemetry.runs.sources.store_queries import StoreQueries, evict, keep_recent
from toolkit.telemetry.runs.store import (
    MOST_STARTS,
    CacheState,
    Health,
    Points,
    RankSign,
    Refused,
    RunCard,
    RunList,
    RunMeta,
    RunQuery,
    StoreState,
    TimeSpent,
    Trashed,
    UnknownRun,
    of_newest_session,
)

_RANKS_EVERY_S: Final = 2.0
_MOST_SIGNS: Final = 50
"""Runs of several ranks whose last signs are kept."""
_TREND_BUDGET_S: Final = 0.2
_HIDDEN: Final = "hidden~"
_NOT_ALL: Final = 0.99
"""How much was examined, while a run is still being read: that its end is not known does not make it whole."""
_RANKS_BUDGET: Final = 100_000_000
"""Above this, the ranks of runs looked at before are read again when needed; 1,024 ranks take 16 MB."""


class LocalStore(StoreQueries):
    """One per process: pages share it, so that each byte is read once."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        cache_dir: Path | None,
        labels_dir: Path | None = None,
        other_tools: bool = False,
        read_only: bool = False,
        read_only_reason: Callable[[], str | None] = lambda: None,
        folders: RunFolders | None = None,
    ) -> None:
        """Show the runs in `roots`, with `other_tools` also those of other tools, at any depth; or those of `folders`.

        Names and notes of other tools' runs are saved in `labels_dir`. `read_only_reason` returns why the current
        visitor is read-only, or None.
        """
        cache = ColumnCache(cache_dir) if cache_dir is not None else None
        super().__init__(read_only=read_only, read_only_reason=read_only_reason, cache=cache)
        self._folders = folders or run_folders(roots, labels_dir=labels_dir, other_tools=other_tools)
        self.roots = self._folders.roots
        self._logs: dict[tuple[str, int], RunLog | ForeignLog] = {}
        self._rank_readers: dict[Path, RankReader] = {}
        self._rank_files: dict[Path, tuple[float, dict[int, Path]]] = {}
        """The record files of runs with parts, and when they were listed."""
        self._rank_signs: dict[Path, RankSigns] = {}
        self._trends: dict[Path, tuple[int, list[float]]] = {}

    # ------------------------------------------------------------ listing

    def list_runs(self, query: RunQuery | None = None) -> RunList:
        return self._folders.list_runs(query)

    def _own(self, key: str) -> FoundRun | None:
        """Return a run folder; None for another tool's run. Raises UnknownRun."""
        run = self._folders.find(key)
        return run if isinstance(run, FoundRun) else None

    def card(self, key: str) -> RunCard:
        run = self._folders.find(key)
        log = self._logs.get((key, 0))
        if isinstance(run, FoundRun):
            return self._folders.card_of(run, now(), newest=log.newest() if log is not None else None)
        if not isinstance(log, ForeignLog):
            return run.card(now())
        card = run.card(now(), newest=log.run if log.bytes_read else None)
        newest = log.newest()
        if newest is None or newest[1] is None or newest[0] < (run.summary.last_time or 0.0):
            return card
        last_time, step = newest[0], newest[1]
        # The last record may be of an earlier step, which was logged again.
        return replace(
            card, step=max(step, card.step or step), last_sign=max(last_time, card.last_sign or last_time)
        )

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:
        until = time.perf_counter() + _TREND_BUDGET_S
        found: dict[str, Sequence[float]] = {}
        for key in keys:
            with suppress(UnknownRun, OSError):
                run = self._folders.find(key)
                if isinstance(run, FoundRun):
                    trend = self._trend(run.folder / METRICS_JSONL, points, until)
                else:
                    trend = run.summary.trend(points)
                if trend is not None and (trend or isinstance(run, FoundRun)):
                    found[key] = trend
        return found

    def _trend(self, log: Path, points: int, until: float) -> Sequence[float] | None:
        known = self._trends.get(log)
        size = os.lstat(log).st_size
        # 5 % more data changes the picture by a pixel or two.
        is_near = known is not None and known[0] <= size <= known[0] * 1.05 + 4096
        if not is_near and time.perf_counter() <= until:
            known = self._trends[log] = (size, trend_of(log, points))
        return None if known is None else known[1]

    # ------------------------------------------------------------ one run

    def meta(self, key: str) -> RunMeta:
        found = self._folders.find(key)
        if isinstance(found, ForeignRun):
            foreign = self._foreign_log(found)
            config = mask_secrets(foreign.config())
            return RunMeta(
                card=self.card(key),
                manifest=None,
                labels=found.labels,
                start={"event": START, "config": config} if config else {},
                environment={},
                writable=self._write_refusal() is None and found.labels_folder is not None,
                control_refusal=_no_control(found),
                origin=foreign.origin(),
            )
        newest = self._log(key).events((START,), 1)
        return RunMeta(
            card=self.card(key),
            manifest=found.manifest,
            labels=found.labels,
            start=newest[0] if newest else read_start(found.folder / METRICS_JSONL),
            environment=of_newest_session(self._log(key).events((ENVIRONMENT,), MOST_STARTS)),
            writable=self._write_refusal() is None and os.access(found.folder, os.W_OK),
        )

    def _log(self, key: str, rank: int = 0) -> RunLog | ForeignLog:
        found = self._folders.find(key)
        if isinstance(found, ForeignRun):
            return self._foreign_log(found)
        with self._lock:
            log = self._logs.get((key, rank))
            path = self._record_file(found, rank)
            if not isinstance(log, RunLog) or log.path != path:
                log = self._logs[key, rank] = RunLog(path, self.cache)
                log.setting = self._settings_of(key)
                evict(self._logs, log)
            log.used_at = time.monotonic()
            return log

    def _foreign_log(self, run: ForeignRun) -> ForeignLog:
        with self._lock:
            log = self._logs.get((run.key, 0))
            if not isinstance(log, ForeignLog) or log.run.info.pieces != run.source.info.pieces:
                log = self._logs[run.key, 0] = ForeignLog(run.source)
                log.setting = self._settings_of(run.key)
                evict(self._logs, log)
            log.used_at = time.monotonic()
            return log

    def _manifest(self, key: str) -> Manifest | None:
        found = self._own(key)
        return None if found is None else found.manifest

    def _folder_name(self, key: str) -> str:
        found = self._folders.find(key)
        return found.folder.name if isinstance(found, FoundRun) else found.source.info.name

    def _source(self, key: str, rank: int = 0) -> RecordSource:
        found = self._folders.find(key)
        if isinstance(found, ForeignRun):
            return self._foreign_log(found).source
        return FileSource(self._record_file(found, rank))

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        return self._log(key, rank).refresh(wait_s)

    def examine(self, key: str, *, wait_s: float = 0.3) -> float:
        is_complete = self._own(key) is not None or self.refresh(key, wait_s=wait_s).complete
        fraction = super().examine(key, wait_s=wait_s)
        return fraction if is_complete else min(fraction, _NOT_ALL)

    def time_spent(self, key: str, *, wait_s: float = 0.05) -> TimeSpent:
        is_complete = self._own(key) is not None or self.refresh(key, wait_s=wait_s).complete
        spent = super().time_spent(key, wait_s=wait_s)
        return spent if is_complete else replace(spent, fraction=min(spent.fraction, _NOT_ALL))

    def points(self, key: str, metric: str) -> tuple[Points, Sequence[Path]] | None:
        """Return every point of a metric and the files that have them, of the records read so far; None without any."""
        log, found = self._log(key), self._folders.find(key)
        points = log.points(metric)
        if points is None:
            return None
        if isinstance(found, FoundRun):
            return points, [self._record_file(found, 0)]
        names = log.files.get(log.named(metric), {}) if isinstance(log, ForeignLog) else {}
        return points, [found.source.info.root / name for name in names]

    def placed_events(self, key: str, kinds: Iterable[str], *, limit: int = 200) -> list[tuple[int, Record]]:
        """Return the newest records of these kinds, newest first, each with where it begins in the record file.

        Of another tool's run, the place is a number and not an offset.
        """
        log = self._log(key)
        starts, lengths, _ = log.places_of(set(kinds))[1]
        places = list(zip(starts[-limit:].tolist(), lengths[-limit:].tolist(), strict=True))[::-1]
        records = zip(places, log.records_at(places), strict=True)
        return [(start, record) for (start, _), record in records if record is not None]

    def wait_until_saved(self, timeout_s: float) -> None:
        """Wait for columns that are being saved, each for at most `timeout_s`."""
        with self._lock:
            logs = list(self._logs.values())
        for log in logs:
            if isinstance(log, RunLog):
                log.wait_until_saved(timeout_s)

    def ranks(self, key: str) -> Sequence[int]:
        found = self._own(key)
        try:
            return [0] if found is None else [*record_files(found.folder, found.parts)]
        except OSError:
            return [0]

    def rank_grid(self, key: str, metric: str, *, buckets: int = 64, wait_s: float = 2.0) -> RankGrid:
        found = self._own(key)
        if found is None:
            return RankGrid(metric=metric)
        with self._lock:
            reader = self._rank_readers.pop(found.folder, None) or RankReader(
                functools.partial(self._source, key)
            )
            self._rank_readers[found.folder] = reader
            while len(self._rank_readers) > 1 and self._held_for_ranks() > _RANKS_BUDGET:
                del self._rank_readers[next(iter(self._rank_readers))]
        return reader.read(self.ranks(key), metric, buckets, wait_s)

    def rank_signs(self, key: str) -> Sequence[RankSign]:
        signs = self._signs_of(key)
        return () if signs is None else signs.signs()

    def findings(self, key: str) -> Sequence[Finding]:
        """Add ranks that died or fell silent to what the detectors found."""
        found = super().findings(key)
        signs = self._signs_of(key)
        if signs is None:
            return found
        severity = self._policy(key).severity
        return (
            *found,
            *(
                replace(lost, severity=chosen)
                for lost in signs.findings(found)
                if (chosen := severity(lost.kind, usual=lost.severity, found=None)) is not None
            ),
        )

    def _signs_of(self, key: str) -> RankSigns | None:
        """Return the signs of a run's ranks, read just now; None if it has one rank."""
        found = self._own(key)
        if found is None or found.part is not None:
            return None
        try:
            files = record_files(found.folder, found.parts)
        except OSError:
            return None
        if len(files) < 2:
            return None
        with self._lock:
            signs = self._rank_signs.get(found.folder) or RankSigns()
            keep_recent(self._rank_signs, found.folder, signs, _MOST_SIGNS)
        signs.look(files, is_live=self.card(key).live)
        return signs

    def _held_for_ranks(self) -> int:
        return sum(reader.nbytes for reader in self._rank_readers.values())

    def _record_file(self, found: FoundRun, rank: int) -> Path:
        """Return the file of a rank, which may be in a part; of a part alone, rank 0 means the first one it has."""
        if rank and (found.folder / RANKS).is_symlink():
            raise Refused(f"{RANKS} is a symbolic link and is not followed")
        own = rank_file(found.folder, rank)
        if found.part is None and (rank == 0 or not found.parts):
            return own
        # Listed for all ranks at once: a page asks for a thousand of them.
        listed_at, files = self._rank_files.get(found.folder, (-math.inf, {}))
        if time.monotonic() - listed_at > _RANKS_EVERY_S or (rank and rank not in files):
            try:
                files = record_files(found.folder, found.parts)
            except OSError:
                return own
            self._rank_files[found.folder] = (time.monotonic(), files)
        return files.get(rank, own) if rank else next(iter(files.values()), own)

    def record_file(self, key: str, *, rank: int = 0) -> Path | None:
        """Return the record file of a rank; None of another tool's run."""
        found = self._own(key)
        return None if found is None else self._record_file(found, rank)

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        found = self._folders.find(key)
        try:
            if isinstance(found, ForeignRun):
                return self._foreign_log(found).image(relative, max_bytes)
            return read_inside(found.folder, relative, max_bytes=max_bytes)
        except NotInside as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(clean(str(error.strerror or error))) from error

    # ------------------------------------------------------------ requests and labels

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        self._require_write_access()
        found, card = self._folders.find(key), self.card(key)
        if isinstance(found, ForeignRun):
            raise Refused(_no_control(found))
        if found.part is not None:
            raise Refused("this is a part of a run; requests go to the folder of its rank 0")
        if not card.live:
            raise Refused(f"the run is {card.status.name} and cannot answer requests")
        with _refusals("control.json"):
            return write_request(
                found.folder,
                log_every=request.get("log_every"),
                actions=tuple(request.get("actions", ())),
                knobs=request.get("knobs"),
                run_id=found.manifest.run_id if found.manifest else None,
            ).id

    def label(self, key: str, labels: Labels) -> None:
        self._require_write_access()
        found = self._folders.find(key)
        if isinstance(found, ForeignRun):
            found.label(labels)
            return
        with _refusals(LABELS):
            # An invalid file may be someone's notes with a typo: it is not overwritten.
            read_labels(found.folder)
            write_labels(found.folder, labels)
        self._rescan()

    def project_settings(self, project: str | None) -> ProjectSettings:
        """Return what was chosen for a project, in the first log directory."""
        try:
            return read_project(self.roots[0], project) if self.roots else ProjectSettings()
        except ProjectSettingsError:
            return ProjectSettings()

    def set_project_settings(self, project: str | None, settings: ProjectSettings) -> None:
        self._require_write_access()
        with _refusals(PROJECTS):
            write_project(self.roots[0], project, settings)

    def delete(self, key: str) -> str:
        self._require_write_access()
        found, card = self._folders.find(key), self.card(key)
        if isinstance(found, ForeignRun):
            # Its files stay.
            found.hide()
            with self._lock:
                self._forget(key)
            return f"{_HIDDEN}{key}"
        if card.live:
            raise Refused(f"the run is {card.status.name}: stop it first")
        number = next(i for i, root in enumerate(self.roots) if root == found.folder.parent)
        with _refusals(TRASH):
            token = trash.move_to_trash(self.roots[number], found.folder.name)
        with self._lock:
            self._forget(found.key)
        self._rescan()
        return f"{number}~{token}"

    def _forget(self, key: str) -> None:
        """Forget what was read of a run that is gone."""
        self._logs = {name: log for name, log in self._logs.items() if name[0] != key}
        self._forget_analyses(key)

    def trash(self) -> Sequence[Trashed]:
        """Return the deleted runs, and those of other tools that are hidden, newest first."""
        with _refusals(TRASH):
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
        others = self._folders.others
        for run in others.all()[0] if others is not None else ():
            if run.hidden_at is not None:
                name = run.card(now()).name
                found.append(
                    Trashed(token=f"{_HIDDEN}{run.key}", name=name, deleted=run.hidden_at, bytes_held=0)
                )
        return sorted(found, key=lambda item: item.deleted, reverse=True)

    def restore(self, token: str) -> str:
        self._require_write_access()
        number, _, inner = token.partition("~")
        if token.startswith(_HIDDEN):
            others = self._folders.others
            run = others.find(inner) if others is not None else None
            if run is None or run.hidden_at is None:
                raise Refused("there is no such run in the trash")
            run.show()
            return run.key
        if not number.isdecimal() or int(number) >= len(self.roots):
            raise Refused("there is no such run in the trash")
        with _refusals(TRASH):
            name = trash.restore(self.roots[int(number)], inner)
        self._rescan()
        return self._folders.keys.get((int(number), clean(name)), clean(name))

    def empty_trash(self) -> int:
        self._require_write_access()
        with _refusals(TRASH):
            return sum(trash.empty_trash(root) for root in self.roots)

    def state(self) -> StoreState:
        return StoreState(kind="folders", places=self._folders.places)

    def cache_state(self) -> CacheState:
        if self.cache is None:
            return CacheState(place=None)
        problem = self.cache.distrusted()
        return CacheState(
            place=clean(str(self.cache.folder)),
            bytes_held=0 if problem else self.cache.size(),
            problem=problem,
        )

    def empty_cache(self) -> int:
        self._require_write_access()
        return self.cache.clear() if self.cache is not None else 0

    def _rescan(self) -> None:
        self._folders.scan(again=True)


@contextmanager
def _refusals(file: str) -> Iterator[None]:
    """Refuse what is not allowed, or what cannot be written to `file`."""
    try:
        yield
    except ControlRefused as error:
        raise Refused(error.reason) from error
    except (LabelsError, ProjectSettingsError, trash.TrashError) as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"{file} could not be written: {error.strerror}") from error


def _display_name(folder: Path) -> str:
    """Return what a deleted run was called last."""
    try:
        return read_labels(folder).display_name or folder.name
    except LabelsError:
        return folder.name


def _no_control(run: ForeignRun) -> str:
    return f"This run was logged by {run.title}: it cannot be controlled from here."
