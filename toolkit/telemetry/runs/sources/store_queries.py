"""The part of a RunStore that answers from columns and record sources, wherever these come from."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeVar

from toolkit.telemetry.core.deadline import Deadline
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.policy import Policy, policy_of_run
from toolkit.telemetry.formulas.evaluation import Setting
from toolkit.telemetry.runfolder.manifest import Manifest, Session
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.completion_reader import CompletionReader
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.curve_tiles import CurveTiles, TileQuery
from toolkit.telemetry.runs.findings.run_analysis import RunFindings, RunLedger
from toolkit.telemetry.runs.listing.run_listing import now
from toolkit.telemetry.runs.listing.search import setting_of
from toolkit.telemetry.runs.record_source import RecordSource, all_records
from toolkit.telemetry.runs.spans import SpanTable
from toolkit.telemetry.runs.store import (
    PENDING,
    Delivery,
    Floats,
    Health,
    MetricInfo,
    RankSign,
    Refused,
    RunStore,
    Series,
    SessionStart,
    TimeSpent,
    UnknownRun,
)
from toolkit.telemetry.timing.chrome_trace import chrome_trace

_MAX_READERS: Final = 20
"""Runs whose completions are kept in memory, at 40 bytes per completion."""
_MAX_ANALYSES: Final = 200
"""Runs whose findings and time ledger are kept: about 100 kB each, and seconds to recompute for a long run."""
_FORMULA_S: Final = 1.0
"""How long a formula is computed to learn whether it has a value."""
_IN_USE_S: Final = 60.0
"""Runs used within this time are never evicted."""
_MEMORY_BUDGET: Final = 400_000_000
"""Above this, columns of runs not used lately are evicted, and read again when needed."""
_Log = TypeVar("_Log", bound=ColumnQueries)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class StoreQueries(RunStore):
    """Curves, events, spans, completions and findings of runs; a subclass finds the runs and reads them."""

    def __init__(
        self,
        *,
        read_only: bool = False,
        read_only_reason: Callable[[], str | None] = lambda: None,
        cache: ColumnCache | None = None,
    ) -> None:
        """Start without runs; `read_only_reason` returns why the current visitor is read-only, or None.

        What is read of local files is kept in `cache` from one start to the next.
        """
        self.cache = cache
        self.read_only = read_only
        self._read_only_reason = read_only_reason
        self._lock = threading.RLock()
        self._findings: dict[str, RunFindings] = {}
        self._ledgers: dict[str, RunLedger] = {}
        self._completions: dict[str, CompletionReader] = {}

    def delivery(self, key: str, request_id: str) -> Delivery:  # noqa: ARG002 - a file is delivered at once
        return PENDING

    @abstractmethod
    def _log(self, key: str, rank: int = 0) -> ColumnQueries:
        """Return the columns of one rank."""

    @abstractmethod
    def _source(self, key: str, rank: int = 0) -> RecordSource:
        """Return the record file of one rank."""

    @abstractmethod
    def _manifest(self, key: str) -> Manifest | None:
        """Return the run's manifest."""

    @abstractmethod
    def _folder_name(self, key: str) -> str:
        """Return the name of the run's folder."""

    def rank_signs(self, key: str) -> Sequence[RankSign]:  # noqa: ARG002 - the files of the ranks are elsewhere
        return ()

    def _require_write_access(self) -> None:
        """Raise Refused for read-only visitors: everything that changes something calls this first."""
        reason = self._write_refusal()
        if reason is not None:
            raise Refused(reason)

    def _write_refusal(self) -> str | None:
        return "the dashboard was started with --read-only" if self.read_only else self._read_only_reason()

    def _forget_analyses(self, key: str) -> None:
        self._findings.pop(key, None)
        self._ledgers.pop(key, None)
        self._completions.pop(key, None)

    def _settings_of(self, key: str) -> Setting:
        """Return what finds the settings of a run for formulas, by the names that a search may use."""
        return lambda name: setting_of(self.card(key), name)

    def formula_problem(self, key: str, text: str) -> str | None:
        return Deadline(_FORMULA_S).run(lambda: self._log(key).formula_column(text)[1])

    def metrics(self, key: str, *, rank: int = 0) -> Sequence[MetricInfo]:
        return self._log(key, rank).metrics()

    def series(
        self,
        key: str,
        metric: str,
        *,
        axis: str = "step",
        window: tuple[float, float] | None = None,
        buckets: int = 600,
        rank: int = 0,
    ) -> Series:
        log, planned = self._log(key, rank), self._planned(key, axis)
        return log.series(metric, axis, window, max(1, buckets), planned)

    def tiles(
        self, key: str, metric: str, query: TileQuery, *, axis: str = "step", rank: int = 0
    ) -> CurveTiles:
        return self._log(key, rank).tiles(metric, axis, query, self._planned(key, axis))

    def _planned(self, key: str, axis: str) -> tuple[int | None, bool]:
        """Return the last planned step and whether steps begin at 0, where the axis needs them."""
        card = self.card(key) if axis == "progress" else None
        return (None, False) if card is None else (card.max_steps, card.from_zero)

    def refresh_all(self, keys: Sequence[str], *, wait_s: float = 2.0) -> Sequence[Health]:
        return [self.refresh(key, wait_s=wait_s) for key in keys]

    def series_of(self, keys: Sequence[str], metric: str, *, buckets: int = 600) -> Mapping[str, Series]:
        found = {}
        for key in keys:
            with suppress(UnknownRun):
                found[key] = self.series(key, metric, buckets=buckets)
        return found

    def sessions(self, key: str) -> Sequence[SessionStart]:
        return self._log(key).sessions()

    def manifest_sessions(self, key: str) -> Sequence[Session]:
        manifest = self._manifest(key)
        if manifest is None:
            return ()
        # The default session_tag is the run's id, which is of no use to a reader.
        return [
            replace(session, session_tag=None) if session.session_tag == manifest.run_id else session
            for session in manifest.sessions
        ]

    def recent(self, key: str, metric: str, count: int) -> Floats:
        return self._log(key).recent(metric, count)

    def values_around(self, key: str, metric: str, time_s: float, count: int) -> tuple[Floats, Floats]:
        return self._log(key).values_around(metric, time_s, count)

    def means(self, key: str, metric: str, buckets: int) -> Floats:
        return self._log(key).means(metric, buckets)

    def table(
        self, key: str, metrics: Sequence[str] | None = None, *, rows: tuple[int, int] | None = None
    ) -> Mapping[str, Floats]:
        return self._log(key).table(metrics, rows)

    def events(self, key: str, kinds: Iterable[str] | None = None, *, limit: int = 200) -> Sequence[Record]:
        return self._log(key).events(kinds, limit)

    def spans(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> SpanTable:
        return self._log(key, rank).spans(wait_s)

    def span_records(
        self, key: str, places: Sequence[tuple[int, int]], *, rank: int = 0
    ) -> Sequence[Record | None]:
        return self._log(key, rank).records_at(places)

    def completions(self, key: str) -> CompletionReader:
        log = self._log(key)
        with self._lock:
            reader = self._completions.get(key)
            if reader is None or reader.log is not log:
                reader = CompletionReader(log)
            return keep_recent(self._completions, key, reader, _MAX_READERS)

    def trace(self, key: str) -> Iterator[bytes]:
        name = self._folder_name(key)
        try:
            ranks = [(rank, all_records(self._source(key, rank))) for rank in self.ranks(key)]
            yield from chrome_trace(ranks, name=name)
        except OSError as error:
            raise Refused(f"the records could not be read: {error.strerror or error}") from error

    def examine(self, key: str, *, wait_s: float = 0.3) -> float:
        return self._findings_of(key).advance(wait_s)

    def findings(self, key: str) -> Sequence[Finding]:
        return self._findings_of(key).findings

    def _findings_of(self, key: str) -> RunFindings:
        source = self._source(key)
        policy = self._policy(key)
        with self._lock:
            findings = self._findings.get(key)
            if findings is None or findings.source != source or findings.policy != policy:
                findings = RunFindings(source, policy, self.cache)
            return keep_recent(self._findings, key, findings, _MAX_ANALYSES)

    def _policy(self, key: str) -> Policy:
        manifest = self._manifest(key)
        project = manifest.project if manifest is not None else self.card(key).project
        alerts = self.project_settings(project).alerts
        return policy_of_run(manifest.diagnostics if manifest is not None else {}, alerts)

    def time_spent(self, key: str, *, wait_s: float = 0.05) -> TimeSpent:
        manifest = self._manifest(key)
        source = self._source(key)
        heartbeat = manifest.heartbeat if manifest is not None else None
        with self._lock:
            ledger = self._ledgers.get(key)
            if ledger is None or ledger.source != source:
                ledger = RunLedger(source)
            keep_recent(self._ledgers, key, ledger, _MAX_ANALYSES)
        return ledger.advance(
            wait_s,
            self.manifest_sessions(key),
            now=now() if self.card(key).live else None,
            last_sign=heartbeat.time if heartbeat is not None else None,
        )

    def columns(self, key: str, *, rank: int = 0) -> RunColumns:
        """Return the columns of one rank, which may grow meanwhile."""
        return self._log(key, rank).columns()

    def count_events(self, key: str) -> Mapping[str, int]:
        return self._log(key).counts()

    def record_lines(self, key: str, *, rank: int = 0) -> Iterator[bytes]:
        return _pieces(self._source(key, rank))


def keep_recent(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> _Value:
    """Keep `value` as the one used last, and of all at most `most`, whatever other threads do; return it."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        kept.pop(next(iter(tuple(kept))), None)
    return value


def evict(logs: dict[tuple[str, int], _Log], kept: _Log) -> None:
    """Remove columns that were not used lately while all together take too much memory."""
    until = time.monotonic() - _IN_USE_S
    # Of many runs, adding up what they take is slower than opening one.
    if min(map(attrgetter("used_at"), logs.values())) >= until:
        return
    by_age = sorted(logs.items(), key=lambda item: item[1].used_at)
    held = sum(log.nbytes for _, log in by_age)
    for name, log in by_age:
        if held <= _MEMORY_BUDGET:
            return
        if log is not kept and log.used_at < until:
            held -= log.nbytes
            del logs[name]


def _pieces(source: RecordSource) -> Iterator[bytes]:
    try:
        yield from source.pieces()
    except OSError as error:
        raise Refused(f"the records could not be read: {error.strerror or error}") from error
