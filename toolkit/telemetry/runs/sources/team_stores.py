"""Several stores as one, such as a database for each team; keys and projects of runs begin with the team's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from toolkit.telemetry.core.run_search import of_team
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runs.listing.search import page_of, sort_cards
from toolkit.telemetry.runs.store import (
    Refused,
    RunCard,
    RunList,
    RunMeta,
    RunQuery,
    RunStore,
    StoreState,
    StoreUnavailable,
    Trashed,
    UnknownRun,
)

_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _one(method: _Method, *, returns_key: bool = False) -> _Method:
    """Return the method of TeamStores that asks the store of the run which the first argument names."""

    def ask(self: TeamStores, key: str, *more: Any, **how: Any) -> Any:
        team, own = self.split(key)
        try:
            answer = getattr(self.stores[team], method.__name__)(own, *more, **how)
        except StoreUnavailable as error:
            raise StoreUnavailable(key, f"{team}: {error.why}") from error
        except UnknownRun as error:
            raise UnknownRun(key, [_key(team, near) for near in error.near]) from error
        if isinstance(answer, RunMeta):
            return replace(answer, card=_with_team(team, answer.card))
        if isinstance(answer, RunCard):
            return _with_team(team, answer)
        return _key(team, answer) if returns_key else answer

    return cast(_Method, ask)


def _many(method: _Method) -> _Method:
    """Return the method of TeamStores that asks each store for its own of several runs, together."""

    def ask(self: TeamStores, keys: Iterable[str], *more: Any, **how: Any) -> Any:
        keys = list(keys)
        found: dict[str, Any] = {}
        for team, store in self.stores.items():
            own = [key.removeprefix(f"{team}~") for key in keys if key.startswith(f"{team}~")]
            answers = getattr(store, method.__name__)(own, *more, **how) if own else {}
            pairs = answers.items() if isinstance(answers, Mapping) else zip(own, answers, strict=True)
            found.update({_key(team, one): answer for one, answer in pairs})
        if method is RunStore.refresh_all:
            return [found[key] if key in found else self.refresh(key) for key in keys]
        return {key: found[key] for key in keys if key in found}

    return cast(_Method, ask)


class TeamStores:
    """The runs of several stores, each asked for its own runs only. A RunStore."""

    def __init__(self, stores: Mapping[str, RunStore]) -> None:
        """Show the runs of these stores, by the names of their teams."""
        self.stores = stores

    card, meta, metrics = _one(RunStore.card), _one(RunStore.meta), _one(RunStore.metrics)
    refresh, refresh_all = _one(RunStore.refresh), _many(RunStore.refresh_all)
    formula_problem = _one(RunStore.formula_problem)
    series, series_of, trends = _one(RunStore.series), _many(RunStore.series_of), _many(RunStore.trends)
    recent, values_around, means = _one(RunStore.recent), _one(RunStore.values_around), _one(RunStore.means)
    table, events, sessions = _one(RunStore.table), _one(RunStore.events), _one(RunStore.sessions)
    spans, span_records, trace = _one(RunStore.spans), _one(RunStore.span_records), _one(RunStore.trace)
    manifest_sessions, completions = _one(RunStore.manifest_sessions), _one(RunStore.completions)
    examine, findings = _one(RunStore.examine), _one(RunStore.findings)
    time_spent, ranks, rank_signs = _one(RunStore.time_spent), _one(RunStore.ranks), _one(RunStore.rank_signs)
    rank_grid, read_file, tiles = _one(RunStore.rank_grid), _one(RunStore.read_file), _one(RunStore.tiles)
    record_lines, ask, delivery = _one(RunStore.record_lines), _one(RunStore.ask), _one(RunStore.delivery)
    label, count_events = _one(RunStore.label), _one(RunStore.count_events)
    delete, restore = _one(RunStore.delete, returns_key=True), _one(RunStore.restore, returns_key=True)

    def split(self, key: str) -> tuple[str, str]:
        """Return the team, and the key in its store; a name without a team if one store alone has such a run."""
        team, tilde, own = key.partition("~")
        if tilde and team in self.stores:
            return team, own

        def has_it(_: str, store: RunStore) -> bool:
            with suppress(UnknownRun):
                return bool(store.card(key))
            return False

        teams = [team for team, has in self._each(has_it).items() if has]
        if len(teams) != 1:
            raise UnknownRun(key, [_key(team, key) for team in teams])
        return teams[0], key

    def _each(self, ask: Callable[[str, RunStore], _T]) -> dict[str, _T]:
        """Return the answer of each team's store; all are asked at once, as one may not answer for seconds."""
        with ThreadPoolExecutor(len(self.stores)) as threads:
            return dict(zip(self.stores, threads.map(ask, self.stores, self.stores.values()), strict=True))

    def list_runs(self, query: RunQuery | None = None) -> RunList:
        query = query or RunQuery()
        own = {team: asked for team in self.stores if (asked := _query_of(team, query)) is not None}
        refusals = []

        def look(team: str, store: RunStore) -> RunList:
            try:
                if team in own:
                    return store.list_runs(own[team])
            except ValueError as error:
                # Another team may have what is searched for or sorted by.
                refusals.append(error)
            return replace(store.list_runs(RunQuery(per_page=0)), matching=0)

        found = self._each(look)
        if refusals and len(refusals) == len(own):
            raise refusals[0]
        lists = list(found.values())
        cards = [_with_team(team, card) for team, one in found.items() for card in one.cards]
        cards.sort(key=lambda card: (-(card.last_sign or 0.0), card.id))
        page, shown = page_of(sort_cards(cards, query.sort), query)
        projects = (f"{team}/{project}" for team, one in found.items() for project in one.projects)
        return RunList(
            cards=tuple(shown),
            places=tuple(place for one in lists for place in one.places),
            matching=sum(one.matching for one in lists),
            page=page,
            statuses=sum((Counter(one.statuses) for one in lists), Counter()),
            archived_statuses=sum((Counter(one.archived_statuses) for one in lists), Counter()),
            tags=tuple(sorted({tag for one in lists for tag in one.tags})),
            projects=tuple(sorted([*found, *projects])),
            problems=tuple(f"{team}: {problem}" for team, one in found.items() for problem in one.problems),
            is_stale=any(one.is_stale for one in lists),
            truncated=tuple(place for one in lists for place in one.truncated),
            read_ms=max(one.read_ms for one in lists),
        )

    def project_settings(self, project: str | None) -> ProjectSettings:
        """Return what was chosen for a team's project; nothing without a team."""
        team, _, own = (project or "").partition("/")
        return self.stores[team].project_settings(own or None) if team in self.stores else ProjectSettings()

    def set_project_settings(self, project: str | None, settings: ProjectSettings) -> None:
        """Save the choices for a team's project in its store."""
        team, _, own = (project or "").partition("/")
        if team not in self.stores:
            raise Refused("this is saved for one team: choose a team or a project first")
        self.stores[team].set_project_settings(own or None, settings)

    def trash(self) -> Sequence[Trashed]:
        found = self._each(
            lambda team, store: [replace(one, token=_key(team, one.token)) for one in store.trash()]
        )
        return sorted((one for deleted in found.values() for one in deleted), key=lambda one: -one.deleted)

    def empty_trash(self) -> int:
        return sum(store.empty_trash() for store in self.stores.values())

    def state(self) -> StoreState:
        found = self._each(lambda _, store: store.state())
        return StoreState(
            kind="engine",
            places=tuple(f"{team}: {place}" for team, one in found.items() for place in one.places),
            version=", ".join(dict.fromkeys(one.version for one in found.values() if one.version)) or None,
            feeds=tuple(
                replace(feed, node=f"{team}: {feed.node}")
                for team, one in found.items()
                for feed in one.feeds
            ),
        )

    def cache_state(self) -> None:
        """Return None: engines keep nothing on this machine's disk."""

    def empty_cache(self) -> int:
        return 0


def _key(team: str, own: str) -> str:
    return f"{team}~{own}"


def _with_team(team: str, card: RunCard) -> RunCard:
    project = team if card.project is None else f"{team}/{card.project}"
    return replace(card, key=_key(team, card.key), team=team, project=project)


def _query_of(team: str, query: RunQuery) -> RunQuery | None:
    """Return what one team's store is asked: its first runs, for all pages up to this one; None if none can match."""
    chosen, _, project = (query.project or team).partition("/")
    text = of_team(query.text, team)
    if chosen != team or text is None:
        return None
    most = None if query.per_page is None else query.page * query.per_page
    return replace(query, project=project or None, text=text, page=1, per_page=most)
