"""The runs that the engine has: all of them once, then only what changed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from toolkit.fleet.commits import Commit, newest_commits
from toolkit.fleet.engine import EngineError, chunks, quote
from toolkit.runfolder.journal.end_record import ended_by
from toolkit.runfolder.key_values import KeyValues
from toolkit.runfolder.labels import Labels, LabelsError, parse_labels
from toolkit.runfolder.manifest import Manifest, ManifestError, parse_manifest
from toolkit.runfolder.reader import BadLine, end_in, parse_line
from toolkit.runfolder.status import LOST, RUNNING, STALLED, Status
from toolkit.runs.formatting import clean, clock
from toolkit.runs.listing.run_listing import (
    FoundRun,
    LogEnds,
    card_with_status,
    card_without_manifest,
    ends_of,
    now,
)
from toolkit.runs.sources.clickhouse.link import EngineLink
from toolkit.runs.store import RunCard, RunQuery

MAX_RUNS: Final = 20_000
"""So many runs are held, the last updated ones; the others are searched for in the engine."""

_LOOK_EVERY_S: Final = 1.0
_ALL_EVERY_S: Final = 600.0
_OVERLAP_S: Final = 60
"""Rows may become visible a little after they were stamped, and shards have clocks of their own."""
SILENT_S: Final = 60
"""The shipper reports a live run every 15 s."""
_CLOCK: Final = 2
_REPORT: Final = 3
"""Mark the row with the engine's clock, and those of reports, among those of labels, in which it is 0 or 1."""
_END_BYTES: Final = 64 * 1024
_ENDS_AT_ONCE: Final = 50
_ENDS_EVERY_S: Final = 60.0
"""The node reports a run without a manifest again and again while it is written."""

_RUN_COLUMNS: Final = (
    "run_id, max(version), argMax(node, version), argMax(folder, version), argMax(status, version), "
    "argMax(why, version), argMax(sure, version), argMax(manifest, version), argMax(behind, version), "
    "argMax(project, version), argMax(toUInt16(created), version), max(toUInt32(received)) AS newest"
)
_NEWEST_PROJECT: Final = "argMax(project, version)"
_SEARCHED: Final = (
    f"concat(run_id, ' ', {_NEWEST_PROJECT}, ' ', argMax(name, version), ' ', argMax(manifest, version))"
)
"""What a word of a search is looked for in, if not all runs are known: a little more than pages search."""
_NEWEST_COLUMNS: Final = (
    "run_id, version, node, folder, status, why, sure, manifest, behind, project, toUInt16(created), "
    "toUInt32(received)"
)
_RUN_TYPES: Final = (
    *("String", "UInt64", "String", "String", "String", "String", "UInt8", "Bytes", "UInt64"),
    *("String", "UInt16", "UInt32"),
)


@dataclass(slots=True, kw_only=True)
class EngineRun:
    """A run as its node reported it, and its labels."""

    run_id: str
    version: int
    node: str
    folder: str
    status: Status
    behind: int
    project: str
    day: int
    received: int
    manifest: Manifest | None
    problem: str | None
    ends: LogEnds = field(default_factory=dict)
    ends_at: float = -math.inf
    """When they were read, by the monotonic clock."""
    labels: Labels = field(default_factory=Labels)
    labels_version: int = 0
    labels_problem: str | None = None
    is_deleted: bool = False
    key_values: KeyValues | None = None
    """From the records, if the manifest has no configuration."""
    _card: tuple[Status, RunCard] | None = None
    """The card with this status: a list of many thousands is asked for every few seconds."""

    @property
    def folder_name(self) -> str:
        """The last part of the folder's path."""
        return self.folder.rpartition("/")[2] or self.folder

    @property
    def place(self) -> str:
        """Where the run is, for people."""
        return clean(f"{self.node}:{self.folder}")

    @property
    def name(self) -> str:
        """What the run was called when it was made."""
        return self.manifest.name if self.manifest is not None else self.folder_name

    def card(self, engine_time: float, *, newest: tuple[float, int | None] | None = None) -> RunCard:
        """Return the run's card; its node worked out the status, and its silence is judged by the engine's clock."""
        status = self._status(engine_time)
        if newest is None and self._card is not None and self._card[0] == status:
            return self._card[1]
        found = FoundRun(
            key=self.run_id,
            folder=Path(self.folder),
            signature=(),
            manifest=self.manifest,
            labels=self.labels,
            problem=self.problem or self.labels_problem,
            log_time=None,
            log_ends=self.ends,
            key_values=self.key_values,
        )
        if self.manifest is None:
            return replace(card_without_manifest(found), place=self.place, path=None)
        card = card_with_status(found, self.manifest, status, now(), newest=newest)
        card = replace(card, place=self.place, path=None)
        if newest is None:
            self._card = (status, card)
        return card

    def take_key_values(self, found: KeyValues) -> None:
        """Take configuration and evaluations that were read from the records."""
        self.key_values, self._card = found, None

    def _status(self, engine_time: float) -> Status:
        if self.status.name in (RUNNING, STALLED) and engine_time - self.received > SILENT_S:
            return Status(name=LOST, why=f"{self.node} is silent since {clock(self.received)}", sure=False)
        return self.status


class EngineRuns:
    """What the engine knows of all runs. Thread-safe."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._lock = threading.RLock()
        self._runs: dict[str, EngineRun] = {}
        self._labels: dict[str, tuple[int, bytes, bool]] = {}
        self._without_ends: dict[str, None] = {}
        """Runs without a manifest whose first and last records are to be read."""
        self._looked_at = self._all_at = -1e9
        self._engine_time = 0
        self.clock_ahead_s = 0.0
        """How far this machine's clock is ahead of the engine's, to a second."""
        self._labels_since = 0
        self.is_truncated = False
        self.problem: str | None = None
        """Why the list may be out of date."""
        self.read_ms = 0.0

    @property
    def engine_time(self) -> float:
        """The engine's clock when it last answered: while it does not, no run becomes silent."""
        return self._engine_time

    def all(self) -> dict[str, EngineRun]:
        """Return the runs by id, deleted ones included; while the engine does not answer, what is known."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                began = time.perf_counter()
                try:
                    self._look()
                    self.problem = None
                except EngineError as error:
                    self.problem = self._link.problem or clean(str(error))
                self._looked_at = time.monotonic()
                self.read_ms = (time.perf_counter() - began) * 1000
            return dict(self._runs)

    def look_again(self) -> None:
        """Ask the engine at the next call, although it was asked a moment ago."""
        self._looked_at = -1e9

    def find(self, wanted: str) -> EngineRun | None:
        """Return the run with this id, or the only one with this name; None if there is none.

        Raises:
            EngineError: it is not among the known ones, and the engine does not answer.
        """
        known = self.all()
        if wanted in known:
            return known[wanted]
        named = [run for run in known.values() if run.name == wanted and not run.is_deleted]
        if len(named) == 1:
            return named[0]
        if not self.is_truncated and self.problem is None:
            return None
        text = _text(wanted)
        with self._lock:
            found = self._take(self._ask(f"WHERE run_id = {text} OR name = {text} GROUP BY run_id LIMIT 2"))
            return found[0] if len(found) == 1 else None

    def search(self, query: RunQuery, words: Iterable[str]) -> None:
        """Bring the runs that a query may find into the known ones, if not all are known.

        Raises:
            EngineError: the engine does not answer.
        """
        if not self.is_truncated:
            return
        conditions = []
        if query.project is not None:
            conditions.append(f"{_NEWEST_PROJECT} = {_text(query.project)}")
        if query.days is not None:
            since = int(now() - query.days * 86_400)
            conditions.append(f"newest >= {max(0, min(since, 2**32 - 1))}")
        conditions += [f"positionCaseInsensitiveUTF8({_SEARCHED}, {_text(word)}) > 0" for word in words]
        if not conditions:
            return
        with self._lock:
            self._take(
                self._ask(
                    f"GROUP BY run_id HAVING {' AND '.join(conditions)} ORDER BY newest DESC LIMIT {MAX_RUNS}"
                )
            )

    def labels_of(self, run_id: str) -> bytes:
        """Return the run's labels as they were written."""
        return self._labels.get(run_id, (0, b"", False))[1]

    def trends(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """Return the rough shape of each run's loss.

        Raises:
            EngineError: the engine does not answer.
        """
        found: dict[str, Sequence[float]] = {}
        for some in chunks(run_ids):
            ids = ", ".join(map(_text, some))
            found.update(
                self._link.rows(
                    f"SELECT run_id, trend FROM runs WHERE run_id IN ({ids}) "
                    "ORDER BY run_id, version DESC LIMIT 1 BY run_id",
                    *("String", "Array(Float32)"),
                )
            )
        return found

    # ------------------------------------------------------------ asking

    def _look(self) -> None:
        is_whole = time.monotonic() - self._all_at > _ALL_EVERY_S
        engine_time, reports = self._look_at_changes(is_whole=is_whole)
        self.clock_ahead_s = time.time() - engine_time - 0.5
        if is_whole:
            rows = None if self.is_truncated else self._ask_for_all()
            if rows is None:
                rows = self._ask(f"GROUP BY run_id ORDER BY newest DESC LIMIT {MAX_RUNS + 1}")
            self.is_truncated = len(rows) > MAX_RUNS
            kept = {row[0] for row in rows[:MAX_RUNS]}
            self._runs = {run_id: run for run_id, run in self._runs.items() if run_id in kept}
            self._take(rows[:MAX_RUNS])
            self._all_at = time.monotonic()
        else:
            self._take_reports(reports)
        self._engine_time = engine_time
        for _ in range(min(_ENDS_AT_ONCE, len(self._without_ends))):
            run_id = next(reversed(self._without_ends))
            run = self._runs.get(run_id)
            if run is not None:
                run.ends, run.ends_at = self._ends(run_id), time.monotonic()
            del self._without_ends[run_id]

    def _ask(self, which: str) -> list[tuple[Any, ...]]:
        return self._link.rows(f"SELECT {_RUN_COLUMNS} FROM runs {which}", *_RUN_TYPES)

    def _ask_for_all(self) -> list[tuple[Any, ...]] | None:
        """Return the newest row of each run; None if there are more than are held.

        A run has a row for each report until the engine merges them. To choose among them here is half of the work.
        """
        limit = 2 * MAX_RUNS
        rows = self._link.rows(f"SELECT {_NEWEST_COLUMNS} FROM runs LIMIT {limit}", *_RUN_TYPES)
        newest: dict[str, tuple[Any, ...]] = {}
        for row in rows:
            if row[0] not in newest or newest[row[0]][1] < row[1]:
                newest[row[0]] = row
        return None if len(rows) == limit or len(newest) > MAX_RUNS else list(newest.values())

    def _take_reports(self, reports: Mapping[str, tuple[int, int]]) -> None:
        """Take the rows of runs that changed; `reports` has the newest version of each, and when it was received."""
        changed = []
        for run_id, (version, received) in reports.items():
            known = self._runs.get(run_id)
            if known is None or known.version < version:
                changed.append(run_id)
            else:
                known.received = max(known.received, received)
        for some in chunks(changed):
            ids = ", ".join(map(_text, some))
            self._take(
                self._link.rows(
                    f"SELECT {_NEWEST_COLUMNS} FROM runs WHERE run_id IN ({ids}) "
                    "ORDER BY run_id, version DESC LIMIT 1 BY run_id",
                    *_RUN_TYPES,
                )
            )

    def _look_at_changes(self, *, is_whole: bool) -> tuple[int, Mapping[str, tuple[int, int]]]:
        """Take the labels that changed; return the engine's clock, and version and time of new reports of runs.

        One question for all: while nothing changes, it is the only one.
        """
        # Versions are clocks of those who wrote them: an old one may be new, and one far ahead must not hide the next.
        labels_since = min(self._labels_since, self._engine_time * 1000) - 86_400_000
        rows = self._link.rows(
            f"SELECT '' AS run, toUInt64(toUInt32(now())) AS newest, '' AS text, toUInt8({_CLOCK}) AS kind, "
            "materialize(toUInt32(0)) AS moment UNION ALL "
            "SELECT run_id AS run, version AS newest, labels AS text, deleted AS kind, toUInt32(0) AS moment "
            "FROM labels"
            + (
                ""
                if is_whole
                else f" WHERE version >= {max(0, labels_since)} UNION ALL "
                f"SELECT run_id AS run, version AS newest, '' AS text, toUInt8({_REPORT}) AS kind, "
                "toUInt32(received) AS moment FROM runs "
                f"WHERE received >= toDateTime({max(0, self._engine_time - _OVERLAP_S)})"
            ),
            *("String", "UInt64", "Bytes", "UInt8", "UInt32"),
        )
        engine_time = 0
        reports: dict[str, tuple[int, int]] = {}
        for run_id, version, data, kind, received in rows:
            if kind == _CLOCK:
                engine_time = version
            elif kind == _REPORT:
                known = reports.get(run_id, (0, 0))
                reports[run_id] = max(known[0], version), max(known[1], received)
            else:
                self._labels_since = max(self._labels_since, version)
                if version > self._labels.get(run_id, (-1,))[0]:
                    self._labels[run_id] = (version, data, bool(kind))
                    if run_id in self._runs:
                        self._label(self._runs[run_id])
        return engine_time, reports

    def _take(self, rows: Iterable[tuple[Any, ...]]) -> list[EngineRun]:
        found = []
        for row in rows:
            run_id, version = row[0], row[1]
            known = self._runs.get(run_id)
            if known is None or known.version < version:
                known = self._runs[run_id] = self._read(row)
                self._label(known)
            known.received = max(known.received, row[11])
            found.append(known)
        return found

    def _read(self, row: tuple[Any, ...]) -> EngineRun:
        run_id, version, node, folder, name, why, sure, data, behind, project, day, received = row
        manifest, problem = None, None
        try:
            manifest = parse_manifest(data) if data else None
        except ManifestError as error:
            problem = clean(str(error))
        run = EngineRun(
            run_id=run_id,
            version=version,
            node=node,
            folder=folder,
            status=Status(name=name, why=why, sure=bool(sure)),
            behind=behind,
            project=project,
            day=day,
            received=received,
            manifest=manifest,
            problem=problem,
        )
        latest = manifest.latest if manifest is not None else None
        known = self._runs.get(run_id)
        if known is not None:
            run.key_values = known.key_values
        if manifest is None:
            if known is not None:
                run.ends, run.ends_at = known.ends, known.ends_at
            if time.monotonic() - run.ends_at > _ENDS_EVERY_S:
                self._without_ends[run_id] = None
        elif latest is not None and latest.status == RUNNING and name not in (RUNNING, STALLED, LOST):
            # Its node found the end in the records.
            run.manifest = ended_by(manifest, end_in(self._last_lines(run_id)[1], latest.session))
        return run

    def _label(self, run: EngineRun) -> None:
        version, data, deleted = self._labels.get(run.run_id, (0, b"", False))
        run.labels_version, run.is_deleted, run.labels_problem, run._card = version, deleted, None, None  # noqa: SLF001
        try:
            run.labels = parse_labels(data) if data else Labels()
        except LabelsError as error:
            run.labels, run.labels_problem = Labels(), clean(str(error))

    def _ends(self, run_id: str) -> LogEnds:
        commit, last = self._last_lines(run_id)
        first = self._link.rows(
            f"SELECT line FROM records WHERE run_id = {quote(run_id)} AND rank = 0 AND at = 0 "
            f"AND gen = {commit.gen if commit is not None else 0} LIMIT 1",
            "Bytes",
        )
        record = parse_line(0, first[0][0]) if first else {}
        return ends_of({} if isinstance(record, BadLine) else record, last)

    def _last_lines(self, run_id: str) -> tuple[Commit | None, list[bytes]]:
        commit = newest_commits(self._link, [run_id]).get((run_id, 0))
        if commit is None:
            return None, []
        rows = self._link.rows(
            f"SELECT line FROM records WHERE run_id = {quote(run_id)} AND rank = 0 AND gen = {commit.gen} "
            f"AND at >= {max(0, commit.end - _END_BYTES)} AND at < {commit.end} ORDER BY at LIMIT 1 BY at",
            "Bytes",
        )
        return commit, [line for (line,) in rows]


def _text(text: str) -> str:
    return quote(text.encode("utf-8", "replace"))
