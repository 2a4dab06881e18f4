"""The RunStore for runs that were shipped to ClickHouse."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import EngineError
from toolkit.telemetry.fleet.run_rows import LABEL_TYPES, LABELS_TABLE, label_row, reports_of_shippers
from toolkit.telemetry.fleet.stores import FileError, MissingError, Store, StoreError, read_at_most
from toolkit.telemetry.runfolder.labels import (
    Labels,
    LabelsError,
    ProjectSettings,
    ProjectSettingsError,
    encode_labels,
    encode_project,
    parse_project,
)
from toolkit.telemetry.runfolder.layout import is_safe_name
from toolkit.telemetry.runfolder.manifest import Manifest
from toolkit.telemetry.runfolder.reader import BadLine, parse_line
from toolkit.telemetry.runfolder.records import ENVIRONMENT, MAX_LINE_BYTES, START
from toolkit.telemetry.runfolder.safefile import NotInside, parts_inside
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.sources.clickhouse.link import PATIENCE_S, EngineLink
from toolkit.telemetry.runs.sources.clickhouse.rank_grid import rank_grid_of
from toolkit.telemetry.runs.sources.clickhouse.record_source import Commits, EngineSource, read_together
from toolkit.telemetry.runs.sources.clickhouse.requests import EngineRequests
from toolkit.telemetry.runs.sources.clickhouse.runs import EngineRun, EngineRuns
from toolkit.telemetry.runs.sources.store_queries import StoreQueries, evict, keep_recent
from toolkit.telemetry.runs.store import (
    MOST_STARTS,
    CacheState,
    Delivery,
    Feed,
    Health,
    Refused,
    RunCard,
    RunList,
    RunMeta,
    RunQuery,
    StoreState,
    StoreUnavailable,
    Trashed,
    UnknownRun,
    of_newest_session,
)

_MAX_GRIDS: Final = 100
_GRID_EVERY_S: Final = 2.0
_ASKED_AGAIN_S: Final = 15.0
"""How often a store of files that did not answer is asked again."""
_PROJECT: Final = "project:"
"""Before the name of a project, in place of a run's id, in the table of labels."""


class ClickHouseStore(StoreQueries):
    """One per process: pages share it, so that the engine is asked once."""

    def __init__(
        self,
        address: Address,
        *,
        read_only: bool = False,
        read_only_reason: Callable[[], str | None] = lambda: None,
        visitor: Callable[[], str] = lambda: "",
        patience_s: float = PATIENCE_S,
        objects: Store | None = None,
    ) -> None:
        """Show the runs at `address`; `visitor` returns who makes a change, for the record.

        Sample images and other files come from `objects`.
        """
        super().__init__(read_only=read_only, read_only_reason=read_only_reason)
        self._visitor = visitor
        self._link = EngineLink(address, patience_s=patience_s)
        self._runs = EngineRuns(self._link)
        self._requests = EngineRequests(self._link, self._runs)
        self._commits = Commits(self._link)
        self._objects = objects
        self._objects_failure: tuple[float, str] = (-math.inf, "")
        self._kept: dict[tuple[str, int, int, int], bytes] = {}
        self._files: dict[tuple[str, int, int], bytes] = {}
        self._logs: dict[tuple[str, int], RunLog] = {}
        self._trends: dict[str, Sequence[float]] = {}
        self._grids: dict[tuple[str, str, int], tuple[float, RankGrid]] = {}
        self._feeds: tuple[Feed, ...] = ()

    # ------------------------------------------------------------ listing

    def list_runs(self, query: RunQuery | None = None) -> RunList:
        return self._runs.listed(query or RunQuery())

    def _find(self, key: str) -> EngineRun:
        try:
            found = self._runs.find(key)
        except EngineError as error:
            raise StoreUnavailable(key, self._link.problem or clean(str(error))) from error
        if found is None or found.is_deleted:
            raise UnknownRun(key, self._runs.near(key))
        return found

    def card(self, key: str) -> RunCard:
        run = self._find(key)
        log = self._logs.get((run.run_id, 0))
        return run.card(self._runs.engine_time, newest=log.newest() if log is not None else None)

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:  # noqa: ARG002 - the node takes 40
        """Return the rough shape of each run's loss, as its node saw it last."""
        wanted = list(keys)
        with suppress(EngineError):
            self._trends.update(self._runs.trends(wanted))
        return {key: self._trends[key] for key in wanted if key in self._trends}

    # ------------------------------------------------------------ one run

    def meta(self, key: str) -> RunMeta:
        run = self._find(key)
        newest = self._log(key).events((START,), 1)
        return RunMeta(
            card=self.card(key),
            manifest=run.manifest,
            labels=run.labels,
            start=newest[0] if newest else self._first_record(key),
            environment=of_newest_session(self._log(key).events((ENVIRONMENT,), MOST_STARTS)),
            writable=self._write_refusal() is None,
            control_refusal=self._requests.refusal(run),
        )

    def _first_record(self, key: str) -> dict[str, Any]:
        try:
            line = self._source(key).read_at([(0, MAX_LINE_BYTES)])[0]
        except OSError:
            return {}
        record = parse_line(0, line)
        return {} if isinstance(record, BadLine) or record.get("event") != START else record

    def _log(self, key: str, rank: int = 0) -> RunLog:
        source = self._source(key, rank)
        with self._lock:
            log = self._logs.get((source.run_id, rank))
            if log is None:
                log = self._logs[source.run_id, rank] = RunLog(Path(source.name), None, source)
                log.setting = self._settings_of(key)
                evict(self._logs, log)
            log.used_at = time.monotonic()
            return log

    def _source(self, key: str, rank: int = 0) -> EngineSource:
        return EngineSource(self._link, self._commits, self._kept, self._files, self._find(key).run_id, rank)

    def _manifest(self, key: str) -> Manifest | None:
        return self._find(key).manifest

    def _folder_name(self, key: str) -> str:
        return self._find(key).folder_name

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        run, log = self._find(key), self._log(key, rank)
        health, problem = log.refresh(wait_s), self._link.problem
        # What was taken ends with a line: if it was not read to its end, one is missing.
        gaps = int(not health.bytes_pending and log.pending > 0)
        health = replace(health, gaps=gaps, problem=problem or health.problem, is_stale=problem is not None)
        # Of a run that has ended, more may be in its file than was shipped.
        if not (run.behind or run.card(self._runs.engine_time).live):
            return health
        lag_s = max(0.0, self._runs.engine_time - run.received)
        return replace(health, lag_s=lag_s, behind_bytes=run.behind)

    def refresh_all(self, keys: Sequence[str], *, wait_s: float = 2.0) -> Sequence[Health]:
        """Read new records of several runs; those that were never read, with one question."""
        with suppress(EngineError):
            self._runs.look_at(keys)
        sources = [self._source(key) for key in keys]
        unread = [source for source in sources if (source.run_id, 0) not in self._logs]
        with suppress(EngineError):
            if len(unread) > 1:
                self._commits.look_at([source.run_id for source in unread])
                read_together(unread)
        return super().refresh_all(keys, wait_s=wait_s)

    def ranks(self, key: str) -> Sequence[int]:
        try:
            return sorted({0, *self._commits.of(self._find(key).run_id)})
        except EngineError:
            return [0]

    def rank_grid(self, key: str, metric: str, *, buckets: int = 64, wait_s: float = 2.0) -> RankGrid:  # noqa: ARG002 - one question
        """Return one metric of all ranks; while the engine does not answer, as it was."""
        run_id = self._find(key).run_id
        name = (run_id, metric, buckets)
        asked, grid = self._grids.get(name, (-math.inf, RankGrid(metric=metric, fraction_read=0.0)))
        if time.monotonic() - asked < _GRID_EVERY_S:
            return grid
        try:
            grid = rank_grid_of(self._link, run_id, self._commits.of(run_id), metric, buckets)
        except EngineError:
            return grid
        with self._lock:
            keep_recent(self._grids, name, (time.monotonic(), grid), _MAX_GRIDS)
        return grid

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        run = self._find(key)
        place = f"it is on {clean(run.node)}"
        try:
            parts_inside(relative)
        except NotInside as error:
            raise Refused(str(error)) from error
        failed_at, why = self._objects_failure
        # A page shows a hundred images: it does not wait for each of them while the store is away.
        if time.monotonic() - failed_at < _ASKED_AGAIN_S:
            raise Refused(why)
        try:
            if self._objects is not None and is_safe_name(run.run_id):
                return read_at_most(self._objects, f"{run.run_id}/{relative}", max_bytes)
        except MissingError:
            pass
        except FileError as error:
            raise Refused(f"{relative[:100]!r}: {clean(str(error))}; {place}") from error
        except StoreError as error:
            self._objects_failure = (time.monotonic(), clean(str(error)))
            raise Refused(clean(str(error))) from error
        raise Refused(f"{relative[:100]!r} was not shipped; {place}")

    # ------------------------------------------------------------ requests and labels

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        self._require_write_access()
        run, card = self._find(key), self.card(key)
        refusal = self._requests.refusal(run)
        if refusal is not None:
            raise Refused(refusal)
        if not card.live:
            raise Refused(f"the run is {card.status.name} and cannot answer requests")
        return self._requests.ask(run, request, by=self._visitor())

    def delivery(self, key: str, request_id: str) -> Delivery:
        return self._requests.delivery(self._find(key), request_id)

    def label(self, key: str, labels: Labels) -> None:
        self._require_write_access()
        run = self._find(key)
        if run.labels_problem is not None:
            # It may be someone's notes with a typo: it is not overwritten.
            raise Refused(run.labels_problem)
        try:
            data = encode_labels(labels)
        except LabelsError as error:
            raise Refused(str(error)) from error
        self._write_labels(run, data, deleted=False)

    def _write_labels(self, run: EngineRun, data: bytes, *, deleted: bool) -> None:
        version = max(int(time.time() * 1000), run.labelled.version + 1)
        self._insert_labels(run.run_id, version, data, run.day, deleted=deleted)

    def _insert_labels(
        self, run_id: str, version: int, data: bytes, day: int, *, deleted: bool = False
    ) -> None:
        row = label_row(run_id, version, by=self._visitor(), data=data, day=day, deleted=deleted)
        try:
            self._link.insert_rows(LABELS_TABLE, LABEL_TYPES, [row])
        except EngineError as error:
            raise Refused(f"the engine did not save it: {clean(str(error))}") from error
        self._runs.look_again()

    def project_settings(self, project: str | None) -> ProjectSettings:
        data = self._runs.labels_of(f"{_PROJECT}{project or ''}")
        try:
            return parse_project(data) if data else ProjectSettings()
        except ProjectSettingsError:
            return ProjectSettings()

    def set_project_settings(self, project: str | None, settings: ProjectSettings) -> None:
        self._require_write_access()
        now = time.time()
        place = f"{_PROJECT}{project or ''}"
        self._insert_labels(place, int(now * 1000), encode_project(settings), int(now // 86_400))

    def delete(self, key: str) -> str:
        """Hide a run and return the token that shows it again; its folder stays on its node."""
        self._require_write_access()
        run, card = self._find(key), self.card(key)
        if card.live:
            raise Refused(f"the run is {card.status.name}: stop it first")
        self._write_labels(run, run.labelled.data, deleted=True)
        with self._lock:
            self._logs = {name: log for name, log in self._logs.items() if name[0] != run.run_id}
            self._forget_analyses(key)
        return run.run_id

    def trash(self) -> Sequence[Trashed]:
        with suppress(EngineError):
            return [
                Trashed(
                    token=run.run_id,
                    name=run.card(self._runs.engine_time).name,
                    deleted=run.labelled.version / 1000,
                    bytes_held=0,
                )
                for run in self._runs.deleted()
            ]
        return ()

    def restore(self, token: str) -> str:
        self._require_write_access()
        try:
            run = self._runs.find(token)
        except EngineError as error:
            raise Refused(f"the engine does not answer: {clean(str(error))}") from error
        if run is None or not run.is_deleted:
            raise Refused("there is no such run in the trash")
        self._write_labels(run, run.labelled.data, deleted=False)
        return run.run_id

    def empty_trash(self) -> NoReturn:
        """Refuse: only the engine's administrator removes rows."""
        self._require_write_access()
        raise Refused("deleted runs stay hidden; only the engine's administrator can remove them for good")

    # ------------------------------------------------------------ about the store

    def state(self) -> StoreState:
        with suppress(EngineError):
            self._feeds = tuple(
                Feed(
                    node=clean(report.node),
                    lag_s=float(max(0, report.age_s)),
                    behind_bytes=report.behind,
                    clock_ahead_s=report.clock_ahead_s if math.isfinite(report.clock_ahead_s) else 0.0,
                    problem=clean(report.last_error) or None,
                )
                for report in reports_of_shippers(self._link)
            )
        version = f"ClickHouse {self._link.version}" if self._link.version else None
        return StoreState(
            kind="engine", places=(str(self._link.address),), version=version, feeds=self._feeds
        )

    def cache_state(self) -> CacheState | None:
        """Return None: nothing is kept on this machine's disk."""
        return None

    def empty_cache(self) -> int:
        return 0
