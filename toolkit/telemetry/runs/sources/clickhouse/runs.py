"""The runs that the engine has, by pages: it searches, sorts and counts them, and only those of a page come here."""

from __future__ import annotations

import difflib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from toolkit.telemetry.core.run_search import Comparison, checked
from toolkit.telemetry.fleet.engine import EngineError, chunks
from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.runfolder.labels import Labels, LabelsError, parse_labels
from toolkit.telemetry.runfolder.listed_run import Fields, decode_fields
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, parse_manifest
from toolkit.telemetry.runfolder.status import LOST, RUNNING, STALLED, Status
from toolkit.telemetry.runs.formatting import clean, clock
from toolkit.telemetry.runs.listing.run_listing import FoundRun, card_with, now
from toolkit.telemetry.runs.listing.search import (
    FIELD_NAMES,
    ORDERS,
    list_of,
    page_of,
    parse,
    select_runs,
    split_order,
    unknown_order,
)
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.clickhouse.list_sql import (
    COLUMNS,
    IS_SILENT,
    MISSING,
    ONE_THREAD,
    PLACES,
    SILENT_S,
    STATUS,
    ListSql,
    Names,
    Within,
    literal,
)
from toolkit.telemetry.runs.sources.store_queries import keep_recent
from toolkit.telemetry.runs.store import RunCard, RunList, RunQuery

MOST_LISTED: Final = 5_000
"""So many runs are listed for a query without `per_page`."""
_MAX_KEPT: Final = 10_000
_MAX_LISTS: Final = 50
_ROWS: Final = 100
_MOST_TRASHED: Final = 1_000
_LOOK_EVERY_S: Final = 1.0
_LIST_SHARE: Final = 5
"""A list that took the engine a second is asked for again after five."""
_NAMES_S: Final = 5.0
_PATIENCE_SHARE: Final = 0.7
"""Of a page's patience, what a list of all runs may take; the rest is for one of some of them."""
_LOOKED_AT_DAYS: Final = 30
_TIMEOUT: Final = 159
"""ClickHouse's code: the time that a question may take is over."""
_UNENDED: Final = (RUNNING, STALLED, LOST)
_USED_S: Final = 10.0

_COLUMNS: Final = (
    "run_id, version, node, folder, status, why, sure, toUInt32(received), card, toUInt32(now())"
)
"""What a card needs."""
_MORE_COLUMNS: Final = "name, behind, toUInt16(created), control, manifest"


@dataclass(slots=True)
class _Labels:
    version: int = 0
    data: bytes = b""
    is_deleted: bool = False


@dataclass
class EngineRun:
    """A run as its node reported it, and its labels."""

    run_id: str
    version: int
    node: str
    folder: str
    _status_name: str
    _why: str
    _sure: int
    received: int
    _data: str
    engine_time: int
    name: str | None = None
    """What the run was called when it was made; None if this and the next ones were not asked for."""
    behind: int = 0
    day: int = 0
    control: str = ""
    """Whether its node delivers requests to it: nothing if it does not, DELIVERS, or why this run gets none."""
    _manifest_data: str = ""
    labelled: _Labels = field(default_factory=_Labels, kw_only=True)
    looked_at: float = 0.0
    used_at: float = -1e9

    @cached_property
    def _fields(self) -> Fields:
        return decode_fields(self._data.encode())

    @property
    def is_deleted(self) -> bool:
        """Whether someone deleted the run on a page."""
        return self.labelled.is_deleted

    @property
    def folder_name(self) -> str:
        """The last part of the folder's path."""
        return self.folder.rpartition("/")[2] or self.folder

    @cached_property
    def manifest(self) -> Manifest | None:
        """The run's manifest; None without a valid one."""
        try:
            return parse_manifest(self._manifest_data.encode()) if self._manifest_data else None
        except ManifestError:
            return None

    @cached_property
    def _read_labels(self) -> tuple[Labels, str | None]:
        try:
            return (parse_labels(self.labelled.data) if self.labelled.data else Labels()), None
        except LabelsError as error:
            return Labels(), clean(str(error))

    @property
    def labels(self) -> Labels:
        """The run's labels; empty ones if they are invalid."""
        return self._read_labels[0]

    @property
    def labels_problem(self) -> str | None:
        """Why the labels are invalid."""
        return self._read_labels[1]

    def card(self, engine_time: float, *, newest: tuple[float, int | None] | None = None) -> RunCard:
        """Return the run's card; its node worked out the status, and its silence is judged by the engine's clock."""
        status, fields = self._status(engine_time), self._fields
        if newest is not None and self.manifest is not None:
            fields = self._with_newest(newest, status)
        found = FoundRun(
            key=self.run_id,
            folder=Path(self.folder),
            signature=(),
            manifest=None,
            labels=self.labels,
            problem=self.labels_problem,
            log_time=None,
        )
        return replace(card_with(found, fields, status), place=clean(f"{self.node}:{self.folder}"), path=None)

    def _with_newest(self, newest: tuple[float, int | None], status: Status) -> Fields:
        """Return the fields with time and step of the newest record, if that is newer."""
        latest = self.manifest.latest if self.manifest is not None else None
        fields, (last_time, step) = dict(self._fields), newest
        later_s = last_time - (fields["last_sign"] or last_time)
        if later_s > 0:
            fields["last_sign"] = last_time
            # Of a run.json that says `running`, the node may have found the end in the records.
            is_settled = latest is not None and latest.status == RUNNING and status.name not in _UNENDED
            if latest is not None and latest.ended is None and not is_settled:
                fields["duration_s"] = (fields["duration_s"] or 0.0) + later_s
        if step is not None and (fields["step"] is None or step > fields["step"]):
            fields["step"] = step
        return fields

    def _status(self, engine_time: float) -> Status:
        if self._status_name in (RUNNING, STALLED) and engine_time - self.received > SILENT_S:
            return Status(name=LOST, why=f"{self.node} is silent since {clock(self.received)}", sure=False)
        return Status(name=self._status_name, why=self._why, sure=bool(self._sure))


class _Group(NamedTuple):
    """How many runs have these in common."""

    status: str
    is_archived: int
    project: str
    runs: int
    tags: Sequence[str]
    engine_time: int


class EngineRuns:
    """What the engine knows of all runs. Thread-safe."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._lock = threading.RLock()
        self._runs: dict[str, EngineRun] = {}
        self._labels: dict[str, _Labels] = {}
        self._lists: dict[RunQuery, tuple[float, RunList]] = {}
        self._groups: tuple[float, Sequence[_Group]] = (-1e9, ())
        self._named: tuple[float, Names] = (-1e9, {})
        self.engine_time = 0
        """The engine's clock when it last answered: while it does not, no run becomes silent."""
        self.clock_ahead_s = 0.0
        """How far this machine's clock is ahead of the engine's, to a second."""

    # ------------------------------------------------------------ lists

    def listed(self, query: RunQuery) -> RunList:
        """Return the runs that `query` finds; while the engine does not answer, of those that are known.

        Raises:
            ValueError: the text of the query is invalid, or no run has what it is sorted by.
        """
        began = time.monotonic()
        order, text = query.sort.removeprefix("-"), query.text.strip()
        if is_formula(order) or is_formula(text):
            # Not computed by the engine: of all runs that it lists.
            usual = RunQuery()
            rest = replace(
                query,
                sort=usual.sort if is_formula(order) else query.sort,
                text="" if is_formula(text) else query.text,
                per_page=None,
                page=1,
            )
            whole = self.listed(rest)
            chosen = select_runs(whole.cards, query, now())
            page, shown = page_of(chosen, query)
            return replace(whole, cards=tuple(shown), page=page, matching=len(chosen))
        with self._lock:
            asked_at, kept = self._lists.get(query, (-1e9, None))
        if kept and began - asked_at < max(_LOOK_EVERY_S, _LIST_SHARE * kept.read_ms / 1000):
            return kept
        place = str(self._link.address)
        try:
            found = self._within_patience(query, place)
            found = replace(found, read_ms=(time.monotonic() - began) * 1000)
        except EngineError as error:
            problem = self._link.problem or clean(str(error))
            with self._lock:
                cards = [run.card(self.engine_time) for run in self._runs.values() if not run.is_deleted]
            return replace(list_of(cards, query, now(), (place,)), problems=(problem,), is_stale=True)
        with self._lock:
            keep_recent(self._lists, query, (began, found), _MAX_LISTS)
        return found

    def _within_patience(self, query: RunQuery, place: str) -> RunList:
        """Return the runs that `query` finds; if to look at all takes too long, among those of the last weeks."""
        try:
            return self._ask_for(query, place, Within(limit_s=self._link.patience_s * _PATIENCE_SHARE))
        except EngineError as error:
            if error.code != _TIMEOUT:
                raise
        said = f"To look at all runs takes the engine too long: it looked at those of the last {_LOOKED_AT_DAYS} days."
        some = Within(since_day=int(now() // 86_400) - _LOOKED_AT_DAYS)
        return replace(self._ask_for(query, place, some), problems=(said,))

    def _ask_for(self, query: RunQuery, place: str, within: Within) -> RunList:
        search = parse(query.text, now())
        order, prefix, _ = split_order(query.sort)
        has_comparisons = any(isinstance(term, Comparison) for term in search.terms)
        names = self._names(within) if has_comparisons or prefix or order not in COLUMNS else {}
        if has_comparisons:
            has_text = partial(self._has_text, within)
            search = checked(search, FIELD_NAMES.union(*names.values()), has_text)
        sql = ListSql(query, search, names, within)
        groups = self._count(within)
        matching = None
        if not search.terms and not within.since_day:
            shown = [one for one in groups if query.archived or not one.is_archived]
            shown = [one for one in shown if query.project in (None, one.project)]
            matching = sum(one.runs for one in shown if not query.statuses or one.status in query.statuses)
        size = MOST_LISTED if query.per_page is None else min(query.per_page, MOST_LISTED)
        if matching is None and (size < 1 or query.page > 1):
            matching = self._link.rows(sql.select("count()", ""))[0][0]
        page = 1 if size < 1 or matching is None else max(1, min(query.page, -(-matching // size)))
        rows = self._page(sql, size, page, matching) if size > 0 and matching != 0 else []
        may_lack = not prefix and ":" not in order and query.sort.removeprefix("-") not in ORDERS
        if rows and rows[0][1] == MISSING and may_lack:
            first = rows if page == 1 else self._page(sql, 1, 1, matching)
            if first[0][1] == MISSING:
                raise ValueError(unknown_order(order, set().union(*names.values())))
        versions = {row[0]: row[4] for row in rows}
        runs = self._fetch(versions, days=[row[3] for row in rows])
        counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        for group in groups:
            counts[bool(group.is_archived)][group.status] += group.runs
        if matching is None:
            matching = rows[0][2] if rows else 0
        return RunList(
            cards=tuple(run.card(self.engine_time) for run in map(runs.get, versions) if run),
            places=(place,),
            truncated=(place,) if query.per_page is None and matching > MOST_LISTED else (),
            matching=matching,
            page=page,
            statuses=counts[False],
            archived_statuses=counts[True],
            tags=tuple(sorted({tag for group in groups for tag in group.tags})),
            projects=tuple(sorted({clean(group.project) for group in groups if group.project})),
        )

    def _page(
        self, sql: ListSql, size: int, page: int, matching: int | None
    ) -> list[tuple[str, int, int, int, int]]:
        """Return of each run id, kind of the value it is sorted by, how many runs there are, its day and version."""
        matched = "count() OVER ()" if matching is None else "0"
        what = f"run_id, {sql.kind}, {matched}, toUInt16(created), version"
        end = f"ORDER BY {sql.order} LIMIT {size} OFFSET {(page - 1) * size}"
        return self._link.rows(sql.select(what, end))

    def _heard(self, engine_time: int) -> None:
        self.engine_time = max(self.engine_time, engine_time)
        self.clock_ahead_s = time.time() - engine_time - 0.5

    def _names(self, within: Within) -> Names:
        """Return the names of all values that runs have, as of a few seconds ago."""
        asked_at, names = self._named
        if time.monotonic() - asked_at < _NAMES_S:
            return names
        where = f"WHERE {within.condition}" if within.since_day else ""
        rows = self._link.rows(f"SELECT distinctJSONPaths(facts) FROM runs {where} {within.settings}")
        found: dict[str, dict[str, list[str]]] = {place: {} for place in PLACES}
        for path in rows[0][0]:
            kind, place, name = [*unquote(path).split(":", 2), "", ""][:3]
            if place in found:
                found[place].setdefault(name, []).append(kind)
        if not within.since_day:
            self._named = (time.monotonic(), found)
        return found

    def _has_text(self, within: Within, typed: str) -> bool:
        """Return whether a run has this text in its name or its key."""
        search = parse(f'name:"{typed}"') if '"' not in typed else parse("")
        sql = ListSql(RunQuery(), search, {}, within)
        return bool(self._link.rows(sql.select("1", "LIMIT 1")))

    def _count(self, within: Within) -> Sequence[_Group]:
        """Return the runs in groups, as of a second ago; of very many runs, of some seconds."""
        asked_at, (until, groups) = time.monotonic(), self._groups
        if asked_at < until:
            return groups
        where = f"WHERE {within.condition}" if within.since_day else ""
        rows = self._link.rows(
            f"SELECT {STATUS}, flags % 2, toString(project), count(), "
            "if(flags > 1, groupUniqArrayArray(l_tags), groupUniqArrayArray(tags)), toUInt32(now()) "
            f"FROM (SELECT run_id, status, step, project, tags, {IS_SILENT} FROM runs FINAL {where}) AS r "
            "ANY LEFT JOIN (SELECT run_id, toUInt8(archived + 2 * has_tags) AS flags, deleted, tags AS l_tags "
            "FROM labels FINAL WHERE archived OR has_tags OR deleted) AS l USING (run_id) WHERE NOT deleted "
            f"GROUP BY status, is_silent, isNaN(step), flags, project {within.settings}"
        )
        groups = [_Group(*row) for row in rows]
        now_s = time.monotonic()
        if not within.since_day:
            self._groups = (now_s + max(_LOOK_EVERY_S, _LIST_SHARE * (now_s - asked_at)), groups)
        if groups:
            self._heard(groups[0].engine_time)
        return groups

    # ------------------------------------------------------------ single runs

    def look_again(self) -> None:
        """Ask the engine at the next call, although it was asked just now."""
        with self._lock:
            self._lists.clear()
            self._groups, self._named = (-1e9, ()), (-1e9, {})
            for run in self._runs.values():
                run.looked_at = -1e9

    def find(self, wanted: str) -> EngineRun | None:
        """Return the run with this id, or the only one with this name, deleted or not; None if there is none.

        Raises:
            EngineError: it is not among the known ones, and the engine does not answer.
        """
        time_s = time.monotonic()
        with self._lock:
            known = self._runs.get(wanted)
            if known is not None:
                known.used_at = time_s
                if time_s - known.looked_at < _LOOK_EVERY_S and known.name is not None:
                    return known
            # A page asks for the same few again and again.
            used = [run.run_id for run in self._runs.values() if time_s - run.used_at < _USED_S]
        try:
            found = self._fetch(dict.fromkeys([wanted, *used[:100]]), is_whole=True).get(wanted)
            if found is None:
                named = self._link.rows(
                    f"SELECT DISTINCT run_id FROM runs WHERE name = {literal(wanted)} LIMIT 100"
                )
                runs = self._fetch(dict.fromkeys(row[0] for row in named), is_whole=True).values()
                shown = [run for run in runs if run.name == wanted and not run.is_deleted]
                found = shown[0] if len(shown) == 1 else None
        except EngineError:
            if known is None or known.name is None:
                raise
            return known
        if found is not None:
            found.used_at = time_s
        return found

    def look_at(self, run_ids: Iterable[str]) -> None:
        """Ask for several runs at once, which `find` then knows.

        Raises:
            EngineError: the engine does not answer.
        """
        self._fetch(dict.fromkeys(run_ids), is_whole=True)

    def near(self, wanted: str) -> list[str]:
        """Return the keys of the runs with the most similar names, among those that were updated last."""
        cards = self.listed(RunQuery(per_page=_ROWS)).cards
        keys = {name: card.key for card in cards for name in (card.name, card.key)}
        return list(
            dict.fromkeys(keys[name] for name in difflib.get_close_matches(wanted, keys, n=3, cutoff=0.3))
        )

    def deleted(self) -> list[EngineRun]:
        """Return the runs that were deleted last.

        Raises:
            EngineError: the engine does not answer.
        """
        rows = self._link.rows(
            "SELECT run_id, max(version) AS newest FROM labels GROUP BY run_id HAVING argMax(deleted, version) = 1 "
            f"ORDER BY newest DESC LIMIT {_MOST_TRASHED}"
        )
        runs = self._fetch(dict.fromkeys(row[0] for row in rows))
        return [runs[row[0]] for row in rows if row[0] in runs]

    def labels_of(self, run_id: str) -> bytes:
        """Return labels as they were written; while the engine does not answer, as they were."""
        with suppress(EngineError):
            return self._fetch_labels([run_id])[run_id].data
        return self._labels.get(run_id, _Labels()).data

    def trends(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """Return the rough shape of each run's loss.

        Raises:
            EngineError: the engine does not answer.
        """
        found: dict[str, Sequence[float]] = {}
        for some in chunks(run_ids):
            ids = ", ".join(map(literal, some))
            rows = self._link.rows(
                f"SELECT run_id, trend FROM runs WHERE run_id IN ({ids}) "
                "ORDER BY run_id, version DESC LIMIT 1 BY run_id"
            )
            found.update((run_id, [float(value) for value in trend]) for run_id, trend in rows)
        return found

    def _fetch(
        self, run_ids: Mapping[str, int | None], *, days: Iterable[int] = (), is_whole: bool = False
    ) -> dict[str, EngineRun]:
        """Return the runs with these ids that there are, faster by their `days`; known versions are not read."""
        found: dict[str, EngineRun] = {}
        columns = f"{_COLUMNS}, {_MORE_COLUMNS}" if is_whole else _COLUMNS
        on_days = ", ".join(f"toDate({day})" for day in sorted(set(days)))
        where = f"created IN ({on_days}) AND" if on_days else ""
        # By its day the key finds a run, and to try each id on the other index takes longer.
        how = f"{ONE_THREAD}, use_skip_indexes = 0" if on_days else ONE_THREAD
        for some in chunks(run_ids):
            labels = self._fetch_labels(some)
            with self._lock:
                known = [
                    run for run in map(self._runs.get, some) if run and run.version == run_ids[run.run_id]
                ]
            runs = [replace(run, labelled=labels[run.run_id]) for run in known]
            if ids := ", ".join(map(literal, set(some).difference(run.run_id for run in known))):
                rows = self._link.rows(
                    f"SELECT {columns} FROM runs WHERE {where} run_id IN ({ids}) "
                    f"ORDER BY run_id, version DESC LIMIT 1 BY run_id {how}"
                )
                runs += [EngineRun(*row, labelled=labels[row[0]]) for row in rows]
                if rows:
                    self._heard(runs[-1].engine_time)
            found.update({run.run_id: self._keep(run) for run in runs})
        return found

    def _keep(self, run: EngineRun) -> EngineRun:
        with self._lock:
            known = self._runs.get(run.run_id)
            if known is not None:
                run.used_at = known.used_at
                is_same = (known.version, known.labelled) == (run.version, run.labelled)
                if is_same and (run.name is None or known.name is not None):
                    known.received = max(known.received, run.received)
                    run = known
            run.looked_at = time.monotonic()
            return keep_recent(self._runs, run.run_id, run, _MAX_KEPT)

    def _fetch_labels(self, run_ids: Sequence[str]) -> dict[str, _Labels]:
        ids = ", ".join(map(literal, run_ids))
        rows = self._link.rows(
            f"SELECT run_id, version, labels, deleted FROM labels WHERE run_id IN ({ids}) "
            "ORDER BY run_id, version DESC LIMIT 1 BY run_id"
        )
        found = {
            run_id: _Labels(version, data.encode(), bool(deleted)) for run_id, version, data, deleted in rows
        }
        with self._lock:
            for run_id in run_ids:
                keep_recent(self._labels, run_id, found.setdefault(run_id, _Labels()), _MAX_KEPT)
        return found
