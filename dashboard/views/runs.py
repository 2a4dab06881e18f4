"""Runs page: which run is best, and how it was configured; to open, compare, tag, archive and delete runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args
from urllib.parse import quote

import streamlit as st

from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.reports.svg import text_html
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runs.formatting import clean, count, md, short_number
from toolkit.telemetry.runs.listing.run_table import (
    AGAINST,
    NAME,
    Column,
    Primary,
    cell,
    columns_of,
    default_columns,
    differences_of,
    formula_column,
    groups_of,
    metrics_of,
    primary_of,
)
from toolkit.telemetry.runs.listing.search import QueryError
from toolkit.telemetry.runs.listing.views import NamedView
from toolkit.telemetry.runs.store import (
    STILL_LOOKING,
    Refused,
    RunCard,
    RunList,
    RunQuery,
    RunStore,
    SortBy,
    card_labels,
    labelled,
)
from toolkit.telemetry.runs.sweep.runs import are_comparable

from .. import page_links, session
from ..charts.palette import LIGHT, looks_of_runs, run_colour
from ..components import page_states
from ..components.baseline import against_text, baseline_key, baseline_of, choose_baseline
from ..components.compared_curves import HIDDEN, run_curves
from ..components.forecast_line import forecast_cells
from ..components.frame import BADGES, badge_of, status_text
from ..components.own_views import (
    COLUMNS,
    ColumnSpec,
    add_formula,
    chosen_columns,
    column_text,
    formula_columns,
    keep_view,
    parsed_column,
    pick_view,
    primary_menu,
    project_of,
    save_settings,
)
from ..components.page_states import page_title
from ..components.run_filter import pick_project, search_box, suggest_names
from ..components.run_select import in_address
from ..components.run_table import Row, ShownColumn, row_of, run_table, table_html
from ..components.script import show_markup
from ..components.sweep_view import sweep_view

_FIRST_ROWS: Final = 50
_ROWS: Final = 100
"""Rows that are sent at first; more follow when the end is reached. Sorting and searching are over all runs."""
_SORTS: Final[tuple[SortBy, ...]] = get_args(SortBy)
_MAX_COMPARED: Final = 50
_CHARTS: Final = "Charts"
_DRAWN: Final = 10
"""Runs whose curves are drawn at first."""
_MAX_DRAWN: Final = 50
_ALSO: Final = "draw"
"""In the address: runs that an eye shows next to these."""
_SHOW, _EYES, _COMPACT = "_runs_show", "_runs_eyes", "_runs_compact"
_PICKED, _PICKED_AT, _SHOWN = "_runs_picked", "_runs_picked_at", "_runs_rows"
_AGAIN, _SPECS = "_runs_again", "_runs_columns"


def main() -> None:
    """Draw the page."""
    store = session.store()
    runs = store.list_runs(RunQuery(per_page=_ROWS))
    place = runs.places[0] if len(runs.places) == 1 else f"{len(runs.places)} places"
    st.set_page_config(page_title=f"Runs in {clean(place)}"[:120])
    with st.container(
        horizontal=True,
        vertical_alignment="center",
        horizontal_alignment="distribute",
        key="runs_head",
    ):
        page_title("Runs", width="content")
        search = st.container(horizontal=True, vertical_alignment="center", gap="small")
        show = _pick_show()
    if not runs.total:
        # Refreshes itself until the first run appears.
        is_soon = STILL_LOOKING in runs.problems
        st.fragment(_wait_for_runs, run_every=1.0 if is_soon else session.refresh_seconds())()
        return
    if show == "Sweep":
        sweep_view(store, runs)
        return
    query = _filters(runs, search)
    seconds = session.refresh_seconds()
    has_charts = show == _CHARTS
    st.fragment(
        lambda: page_states.guarded("The list", lambda: _list(store, query, has_charts)), run_every=seconds
    )()


def _pick_show() -> str:
    """Show what the page can show, and return what is chosen: at first what this tab showed before."""
    state = st.session_state
    if "show" not in state and "show" not in st.query_params and state.get(_SHOW) == _CHARTS:
        state["show"] = _CHARTS
    chosen = session.pick_one(
        "Show",
        ("List", _CHARTS, "Sweep"),
        default="List",
        key="show",
        help="Every run with its figures, with their curves next to it, or which settings explain the results.",
    )
    state[_SHOW] = chosen
    return chosen


def _wait_for_runs() -> None:
    runs = session.store().list_runs(RunQuery(per_page=0))
    if runs.total:
        st.rerun()
    if STILL_LOOKING in runs.problems:
        page_states.still_looking(runs.places)
        return
    _undo_bar(session.store())
    page_states.no_runs(runs.places)
    _problems(runs)


# ---------------------------------------------------------------- which runs


def _filters(runs: RunList, search: Any) -> RunQuery:
    """Show what narrows the list: the search in the row of the title, the rest below it."""
    with search:
        # First: a view sets what the others show.
        pick_view(session.store().project_settings(project_of(runs)), on_pick=_apply)
        text = search_box("name, lr>1e-4, val_loss<0.1, tag:baseline, status:running, started>2d")
        order = _pick_order(runs)
    suggest_names(text, runs.cards)
    there = {**runs.statuses, **runs.archived_statuses}
    # Those of a link as well, which may be of a time with such runs.
    asked = {*(st.session_state.get("status") or ()), *st.query_params.get_all("status")}
    names = [name for name, (word, *_) in BADGES.items() if name in there or {name, word} & asked]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        statuses = session.kept_in_url(
            st.pills,
            "Status",
            names,
            selection_mode="multi",
            key="status",
            format_func=lambda name: BADGES[name][0],
            label_visibility="collapsed",
            width="content",
        )
        project = pick_project(runs)
        archived = st.toggle("Archived", key="archived", bind="query-params")
    return RunQuery(
        project=project,
        text=text,
        statuses=tuple(statuses or ()),
        archived=archived,
        sort=order,
    )


def _apply(view: NamedView) -> None:
    """Show the list as a view has it."""
    st.session_state["q"], st.session_state["sort"] = view.search or "", view.sort or _SORTS[0]
    if view.columns is not None:
        st.query_params[COLUMNS] = "~".join(view.columns)


def _pick_order(runs: RunList) -> str:
    best = [f"best:{name}" for name in metrics_of(runs.cards) if metric_direction(name) is not None]
    # Not bound to the address by Streamlit, which writes labels there.
    asked = str(st.session_state.get("sort") or st.query_params.get("sort") or "")
    if asked.lstrip("-") not in _SORTS and not asked.lstrip("-").startswith(
        ("config:", "best:", "last:", "step", "alerts", "=")
    ):
        asked = _SORTS[0]
    if is_formula(asked.lstrip("-")) and formula_column(asked.lstrip("-")) is None:
        asked = _SORTS[0]
    st.session_state["sort"] = asked
    order = str(
        st.selectbox(
            "Sort",
            list(dict.fromkeys([*_SORTS, *best[:20], asked])),
            key="sort",
            format_func=_order_label,
            label_visibility="collapsed",
            width=190,
        )
    )
    session.put_in_url({"sort": order if order != _SORTS[0] else None})
    return order


def _order_label(order: str) -> str:
    name = order.removeprefix("-")
    kind, colon, of = name.partition(":")
    text = f"{of} {kind}" if colon and kind != "config" else of if colon else name
    is_natural = order in (*_SORTS, "alerts") or (kind == "best" and order == name)
    return {"last sign": "last update"}.get(text, text) + (
        "" if is_natural else " ▾" if order[0] == "-" else " ▴"
    )


# ---------------------------------------------------------------- the list


def _list(store: RunStore, query: RunQuery, has_charts: bool) -> None:
    if st.session_state.pop(_AGAIN, False):
        st.rerun()
    # Groups are of all runs.
    is_grouped = bool(st.session_state.get("group") or st.query_params.get("group"))
    asked = replace(query, per_page=None if is_grouped else _limit(query))
    try:
        runs = store.list_runs(asked)
    except QueryError as error:
        st.warning(md(str(error), 400))
        asked = replace(asked, text="")
        runs = store.list_runs(asked)
    project = query.project or project_of(runs)
    settings = store.project_settings(project)
    shown = _Shown.of(store, asked, runs, settings, project, chosen_columns(settings))
    st.session_state[_SPECS] = shown.specs
    _undo_bar(store)
    _bar(store, shown)
    group = st.session_state.get("group")
    if not runs.cards:
        st.info("No runs match.")
    elif group:
        _groups(runs.cards, str(group), shown.primary)
    elif has_charts:
        drawn = _drawn(runs)
        looks = looks_of_runs(sorted(drawn, key=lambda card: card.key))
        with st.container(key="list_charts"):
            table, charts = st.columns([5, 7], gap="medium")
        with table:
            _table(store, shown, looks)
        with charts:
            cards = labelled({card.key: card for card in drawn}.values())
            if cards:
                page_states.guarded("The charts", lambda: run_curves(store, cards, looks, shown.primary))
            else:
                st.info("Every curve is hidden: an eye in the list shows one.")
    else:
        _table(store, shown)
    _about(runs, query)


def _drawn(runs: RunList) -> list[RunCard]:
    """Return the runs whose curves are drawn: those selected or else the first ones, and as the eyes say."""
    picked, hidden = _picked(runs) or runs.cards[:_DRAWN], st.query_params.get_all(HIDDEN)
    wanted = {*(card.key for card in picked), *st.query_params.get_all(_ALSO)} - {*hidden}
    drawn = [card for card in runs.cards if card.key in wanted][:_MAX_DRAWN]
    there = {card.key for card in drawn}
    st.session_state[_EYES] = {card.key: card.key in there for card in runs.cards}
    return drawn


def _set_eyes(hidden: set[str]) -> None:
    """Put into the address which curves are shown or hidden other than at first."""
    eyes: Mapping[str, bool] = st.session_state.get(_EYES, {})
    on = [key for key, was_open in eyes.items() if not was_open and key not in hidden]
    off = [key for key, was_open in eyes.items() if was_open and key in hidden]
    for name, more, less in ((_ALSO, on, off), (HIDDEN, off, on)):
        kept = [key for key in st.query_params.get_all(name) if key not in less]
        session.put_in_url({name: list(dict.fromkeys([*kept, *more])) or None})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What the list, its columns and its buttons have in common."""

    runs: RunList
    project: str | None
    settings: ProjectSettings
    sort: str
    primary: Primary | None
    best: RunCard | None
    base: RunCard | None
    """The baseline of the project, if one is looked at."""
    known: Mapping[str, Column]
    """The columns that these runs can have."""
    specs: Sequence[ColumnSpec]
    """Those that are shown."""

    @classmethod
    def of(
        cls,
        store: RunStore,
        asked: RunQuery,
        runs: RunList,
        settings: ProjectSettings,
        project: str | None,
        chosen: Sequence[str],
    ) -> _Shown:
        """Return what is shown of `runs`, in the columns `chosen` or else the usual ones."""
        primary = primary_of(runs.cards, settings)
        cards = runs.cards
        if primary is not None and runs.matching > len(cards):
            cards += store.list_runs(replace(asked, sort=primary.order, per_page=1)).cards
        # Of runs that train different things none is the best.
        may_be_best = bool(asked.project or asked.text.strip()) or are_comparable(cards)
        known = {**columns_of(runs.cards, primary), **formula_columns(chosen)}
        usual = default_columns(runs.cards, primary)
        base = baseline_of(store, project)
        if base is not None and primary is not None:
            known[AGAINST.id] = AGAINST
            usual.insert(usual.index(f"best:{primary.metric}") + 1, AGAINST.id)
        return cls(
            runs=runs,
            project=project,
            settings=settings,
            sort=asked.sort,
            primary=primary,
            best=primary.best_card(cards) if primary is not None and may_be_best else None,
            base=base,
            known=known,
            specs=_specs(chosen, known, usual),
        )


def _about(runs: RunList, query: RunQuery) -> None:
    hidden = sum(runs.archived_statuses.values()) if not query.archived else 0
    st.caption(
        f"{count(runs.matching)} of {count(runs.total)} runs{_statuses(runs)}"
        + (f" · {count(hidden)} archived hidden" if hidden else "")
        + f" · watching {', '.join(md(place, 80) for place in runs.places)} · listed in {runs.read_ms:.0f} ms"
    )
    for place in runs.truncated:
        st.caption(f"{md(place, 80)} has more runs than are listed here; these are the newest.")
    _problems(runs)


def _statuses(runs: RunList) -> str:
    """Return how many of the runs found have each status; empty where only a part of them is here."""
    if len(runs.cards) == runs.matching:
        counts = Counter(card.status.name for card in runs.cards)
    else:
        counts = Counter(runs.statuses if runs.matching == sum(runs.statuses.values()) else {})
    found = [f"{count(counts[name])} {word.lower()}" for name, (word, *_) in BADGES.items() if counts[name]]
    return ": " + ", ".join(found) if found else ""


def _table(
    store: RunStore,
    found: _Shown,
    looks: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Show the runs; with `looks` each has an eye, and those whose curves are drawn the colour and dash of these."""
    run_table(
        *_rows(store, found, looks),
        **_about_table(found),
        key="_runs_table",
        picked=[card.key for card in _picked(found.runs)],
        picked_at=float(st.session_state.get(_PICKED_AT, 0.0)),
        is_compact=bool(st.session_state.get(_COMPACT)),
        on_event=_on_event,
    )


def first_list(store: RunStore) -> str:
    """Return the best run and the first rows, as a visitor gets them who asks for nothing; empty without runs."""
    query = RunQuery(archived=False, sort=_SORTS[0], per_page=_ROWS)
    runs = store.list_runs(query)
    project = runs.projects[0] if len(runs.projects) == 1 else None
    settings = store.project_settings(project)
    found = _Shown.of(store, query, runs, settings, project, settings.columns or ())
    rows, columns = _rows(store, found, None)
    table = table_html(rows[:_FIRST_ROWS], columns, **_about_table(found), picked=())
    # The list of projects is higher than what else is in its row.
    gap = '<div class="telemetry-first-project"></div>' if len(runs.projects) > 1 else ""
    return f'{gap}<div class="telemetry-first-answer">{_answer(found)}</div>{table}' if rows else ""


def _about_table(found: _Shown) -> dict[str, Any]:
    label = "Runs with status, configuration and results"
    return {"label": label, "total": found.runs.matching, "sort": found.sort}


def _rows(
    store: RunStore, found: _Shown, looks: Mapping[str, tuple[str, str]] | None
) -> tuple[list[Row], list[ShownColumn]]:
    cards, primary, best = found.runs.cards, found.primary, found.best
    result = "loss" if primary is None else f"best:{primary.metric}"
    on_phone = {"status", "team", "progress", result}
    columns = [
        ShownColumn(
            column=found.known[name],
            pinned=is_pinned,
            on_phone=name in on_phone,
            is_main=name == result,
        )
        for name, is_pinned in found.specs
    ]
    # What is pinned comes first, as it is drawn; next to charts the result does, as the list is narrow.
    columns.sort(
        key=lambda shown: (shown.column.id != NAME, not shown.pinned, looks is None or not shown.is_main)
    )
    labels = card_labels(cards)
    baselines = {project: baseline_key(store, project) for project in {card.project for card in cards}}
    wants_trends = any(one.column.id == "trend" for one in columns)
    trends = store.trends([card.key for card in cards]) if wants_trends else {}
    now = time.time()
    wants_forecasts = any(one.column.id == "forecast" for one in columns)
    forecasts = forecast_cells(store, cards) if wants_forecasts else {}
    rows = [
        row_of(
            card,
            [
                forecasts.get(card.key, "")
                if one.column.id == "forecast"
                else against_text(card, found.base, primary)
                if one.column is AGAINST
                else _cell(card, one.column, trends, now)
                for one in columns
            ],
            colour=(looks or {}).get(card.key, (run_colour(card),))[0],
            dash=(looks or {}).get(card.key, ("", "solid"))[1],
            is_hidden=None if looks is None else card.key not in looks,
            is_baseline=card.key == baselines[card.project],
            also=labels[card.key].folder,
            place=card.place,
            is_best=best is not None and card.key == best.key and found.runs.matching > 1,
        )
        for card in cards
    ]
    return rows, columns


def _cell(card: RunCard, column: Column, trends: Mapping[str, Sequence[float]], now: float) -> Any:
    if column.id == "status":
        return _status(card)
    if column.id == "alerts":
        text = cell(card, column.id, now)
        return [text, "red" if card.open_findings[0] else "orange"] if text else ""
    if column.id == "progress" and not card.live:
        # A bar says that it goes on.
        return None if card.progress is None else f"{100 * card.progress:.0f} %"
    if column.id == "trend":
        # Half of what is sent of a list would be digits that a line so small does not show.
        return [float(f"{value:.4g}") for value in trends.get(card.key, ())]
    found = cell(card, column.id, now)
    if isinstance(found, str):
        return clean(found)
    return [clean(item) for item in found] if isinstance(found, list) else found


def _status(card: RunCard) -> list[str]:
    """Return the status with its colour; a run that ended with a critical finding is not fine."""
    text, tone = status_text(card) + ("" if card.status.sure else " ?"), badge_of(card)[1]
    if card.open_findings[0] and tone == "blue":
        text, tone = f"{text}, critical", "red"
    return [text, tone]


def _limit(query: RunQuery) -> int:
    """Return how many rows are shown; another search begins with the first ones."""
    asked, rows = st.session_state.get(_SHOWN, (None, _ROWS))
    if asked != query:
        rows = _ROWS
        st.session_state[_SHOWN] = (query, rows)
    return int(rows)


def _on_event(event: str, sent: Mapping[str, Any]) -> None:
    """Take what was done in the table, before the page is drawn again."""
    state = st.session_state
    if event == "picked" and isinstance(sent.get("keys"), list):
        state[_PICKED] = [str(key) for key in sent["keys"]]
        state[_PICKED_AT] = sent.get("at", 0.0)
    elif event == "sorted":
        state["sort"] = str(sent.get("by"))
        state[_AGAIN] = True
    elif event == "more":
        query, _ = state.get(_SHOWN, (None, 0))
        state[_SHOWN] = (query, int(sent.get("rows") or 0) + 2 * _ROWS)
    elif event == "columns":
        _change_columns(sent)
    elif event == "starred":
        choose_baseline(session.store(), str(sent.get("key")))
    elif event == "hidden" and isinstance(sent.get("keys"), list):
        _set_eyes({str(key) for key in sent["keys"]})


# ---------------------------------------------------------------- columns


def _specs(chosen: Sequence[str], known: Mapping[str, Column], usual: Sequence[str]) -> list[ColumnSpec]:
    """Return the columns to show: the chosen ones, else the usual ones."""
    found = [spec for text in chosen if (spec := parsed_column(text))[0] in known]
    if not found:
        found = [(name, False) for name in usual if name in known]
    if not any(name == NAME for name, _ in found):
        found.insert(0, (NAME, True))
    return found


def _set_columns(specs: Sequence[ColumnSpec]) -> None:
    st.query_params[COLUMNS] = "~".join(map(column_text, specs))


def _change_columns(sent: Mapping[str, Any]) -> None:
    specs: list[ColumnSpec] = list(st.session_state.get(_SPECS, ()))
    if "pin" in sent:
        specs = [(name, is_pinned ^ (name == sent["pin"])) for name, is_pinned in specs]
    elif "move" in sent:
        moved = [spec for spec in specs if spec[0] == sent["move"]]
        specs = [spec for spec in specs if spec[0] != sent["move"]]
        at = next((number for number, spec in enumerate(specs) if spec[0] == sent.get("before")), len(specs))
        specs[at:at] = moved
    _set_columns(specs)


def _column_menu(store: RunStore, found: _Shown) -> None:
    known, specs = found.known, found.specs
    now_shown = [name for name, _ in specs if name != NAME]
    chosen = st.multiselect(
        "Columns, in their order",
        [name for name in known if name != NAME],
        now_shown,
        format_func=lambda name: clean(known[name].label if name in known else name),
        key=f"_columns {hash(tuple(now_shown))}",
        help="Drag a column's name to move it; ◫ pins it to the left.",
    )
    if chosen != now_shown:
        pinned = dict(specs)
        _set_columns([(name, pinned.get(name, False)) for name in (NAME, *chosen)])
        st.rerun(scope="fragment")
    column = add_formula(found.runs.cards, len(now_shown))
    if column is not None:
        _set_columns([*specs, (column.id, False)])
        st.rerun()
    with st.container(horizontal=True):
        if st.button("Reset columns", key="_columns_reset", disabled=COLUMNS not in st.query_params):
            st.query_params.pop(COLUMNS, None)
            st.rerun(scope="fragment")
        if session.read_only_reason() is None and st.button(
            "Keep for the project", key="_columns_keep", disabled=COLUMNS not in st.query_params
        ):
            settings = replace(found.settings, columns=tuple(map(column_text, specs)))
            save_settings(store, found.project, settings, "Saved for the project.")
    primary_menu(store, found.project, found.settings, found.primary, found.runs.cards)
    keep_view(store, found.project, specs, str(st.session_state.get("q") or ""), found.sort)


# ---------------------------------------------------------------- groups


def _groups(cards: Sequence[RunCard], key: str, primary: Primary | None) -> None:
    groups = groups_of(cards, key, primary)
    metric = primary.metric if primary is not None else "metric"
    columns = [
        Column(id=NAME, label=key, kind="name"),
        Column(id="n", label="Runs", kind="number"),
        Column(
            id="mean",
            label=f"{metric} mean",
            kind="number",
            help=f"The mean of the best {metric} of each run",
        ),
        Column(
            id="spread", label="±", kind="number", help="Standard deviation between the runs of the group"
        ),
        Column(id="best", label=f"{metric} best", kind="number"),
        Column(id="run", label="Best run"),
    ]
    rows = [
        Row(
            key=group.search or group.text,
            name=group.text,
            href=f"?q={quote(group.search, safe='')}",
            cells=[
                group.text,
                count(group.runs)
                if group.known == group.runs
                else f"{count(group.known)} of {count(group.runs)}",
                "" if group.mean is None else short_number(group.mean),
                "" if group.spread is None else short_number(group.spread),
                "" if group.best is None or primary is None else short_number(primary.best_of(group.best)),
                "" if group.best is None else clean(group.best.name),
            ],
        )
        for group in groups[:500]
    ]
    shown = [ShownColumn(column=column, on_phone=column.id in ("n", "mean")) for column in columns]
    run_table(
        rows,
        shown,
        key="_runs_groups",
        label=f"Runs grouped by {key}",
        total=len(rows),
        on_event=_open_group,
    )


def _open_group(event: str, sent: Mapping[str, Any]) -> None:
    if event == "opened":
        state = st.session_state
        state["q"] = f"{state.get('q') or ''} {sent.get('key')}".strip()
        state["group"] = None
        state[_AGAIN] = True


def _group_picker(runs: RunList) -> None:
    keys = [*differences_of(runs.cards).every[:50], "status"]
    keys += ["tag"] if runs.tags else []
    keys += ["project"] if len(runs.projects) > 1 else []
    chosen = st.session_state.get("group") or st.query_params.get("group")
    session.pick_or_none(
        "Group by",
        list(dict.fromkeys([*keys, *([chosen] if chosen else [])])),
        key="group",
        placeholder="group by …",
        format_func=clean,
        width=170,
    )


# ---------------------------------------------------------------- what is said and done above the table


def _picked(runs: RunList) -> list[RunCard]:
    wanted = set(st.session_state.get(_PICKED, ()))
    return [card for card in runs.cards if card.key in wanted] if wanted else []


def _bar(store: RunStore, found: _Shown) -> None:
    """Show what can be done with the selected runs, or which one is best."""
    picked = _picked(found.runs) if not st.session_state.get("group") else []
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if picked:
            _actions(store, picked)
        else:
            show_markup(_answer(found), key="_answer")
        _group_picker(found.runs)
        with st.popover("Columns", width="content"):
            st.toggle("Compact rows", key=_COMPACT, persist_state="session")
            _column_menu(store, found)


def _answer(found: _Shown) -> str:
    """Return which run is best, or else how many there are, as HTML made from escaped text."""
    if found.best is None or found.primary is None:
        number = found.runs.matching
        pick = "Pick a project, or search" if len(found.runs.projects) > 1 else "Search"
        is_mixed = not are_comparable(found.runs.cards)
        how = f"{pick}, to see the best one." if is_mixed else "Select rows to compare them."
        return f"{count(number)} {'run' if number == 1 else 'runs'}. {how}"
    word = "lowest" if found.primary.direction == "min" else "highest"
    value = short_number(found.primary.best_of(found.best))
    best = labelled({card.key: card for card in (*found.runs.cards, found.best)}.values())[found.best.key]
    metric = text_html(found.primary.metric, 60)
    return f"Best: <b>{text_html(best.name, 60)}</b>, {word} {metric} <b>{text_html(value)}</b>"


def _actions(store: RunStore, picked: Sequence[RunCard]) -> None:
    st.markdown(f"**{count(len(picked))}** selected", width="content")
    keys = [card.key for card in picked]
    if len(picked) == 1:
        with st.container(key="_open", width="content"):
            st.page_link(
                page_links.page("overview"),
                label="Open",
                query_params={"run": keys[0]},
            )
    else:
        with st.container(key="_compare", width="content"):
            st.page_link(
                page_links.page("compare"),
                label=f"Compare {len(picked)}",
                disabled=len(picked) > _MAX_COMPARED,
                help=f"At most {_MAX_COMPARED} runs at a time." if len(picked) > _MAX_COMPARED else None,
                query_params={"runs": in_address(keys)},
            )
    if session.read_only_reason() is None:
        if st.button("Tag…", key="_tag"):
            _tag(store, picked)
        if st.button("Colour…", key="_colour"):
            _colour(store, picked)
        if st.button("Archive", key="_archive"):
            _archive(store, picked)
        if st.button("Delete", key="_delete"):
            _delete(store, picked)
    if st.button("Deselect", type="tertiary", key="_clear"):
        _clear_selection()
        st.rerun(scope="fragment")


def _clear_selection() -> None:
    st.session_state[_PICKED] = []
    st.session_state[_PICKED_AT] = time.time() * 1000


@st.dialog("Tag runs")
def _tag(store: RunStore, picked: Sequence[RunCard]) -> None:
    known = store.list_runs(RunQuery(per_page=0)).tags
    st.caption("To " + ", ".join(md(card.name, 40) for card in picked))
    # In a row: below the field its list would cover the button.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        new = st.multiselect("Add these tags", known, accept_new_options=True, key="_new_tags")
        is_added = st.button("Add", type="primary", disabled=not new)
    if is_added and _label_all(
        store, picked, lambda card: {"tags": tuple(dict.fromkeys((*card.tags, *new)))}
    ) == len(picked):
        st.rerun()


@st.dialog("Colour of runs")
def _colour(store: RunStore, picked: Sequence[RunCard]) -> None:
    now = run_colour(picked[0])
    chosen = st.color_picker("Colour in every chart and list", now if now[0] == "#" else LIGHT[now])
    st.caption("Of " + ", ".join(md(card.name, 40) for card in picked))
    with st.container(horizontal=True):
        is_set = st.button("Set", type="primary")
        is_reset = st.button("Automatic")
    colour = chosen if is_set else None
    if (is_set or is_reset) and _label_all(store, picked, lambda _: {"colour": colour}) == len(picked):
        st.rerun()


def _label_all(
    store: RunStore, picked: Sequence[RunCard], change: Callable[[RunCard], dict[str, Any]]
) -> int:
    """Change the labels of each run until one is refused, and return how many were changed."""

    def label(card: RunCard) -> None:
        store.label(card.key, replace(store.meta(card.key).labels, **change(card)))

    refused = (number for number, card in enumerate(picked) if not page_states.is_done(partial(label, card)))
    return next(refused, len(picked))


def _archive(store: RunStore, picked: Sequence[RunCard]) -> None:
    done = _label_all(store, picked, lambda _: {"archived": True})
    _remember([(card.key, card.key) for card in picked[:done]], picked, is_deletion=False)


def _delete(store: RunStore, picked: Sequence[RunCard]) -> None:
    """Move the runs to the trash at once: Undo brings them back."""
    done, refusals = [], []
    for card in picked:
        try:
            done.append((store.delete(card.key), card.key))
        except Refused as error:
            refusals.append(f"{md(card.name, 60)}: {md(str(error))}")
    if refusals:
        st.error("  \n".join(refusals[:10]))
    _remember(done, picked, is_deletion=True, stay=bool(refusals))


def _remember(
    done: Sequence[tuple[str, str]], picked: Sequence[RunCard], *, is_deletion: bool, stay: bool = False
) -> None:
    if not done:
        return
    names = {card.key: card.name for card in picked}
    named = md(names[done[0][1]], 60) if len(done) == 1 else f"{count(len(done))} runs"
    what = "moved to the trash" if is_deletion else "archived"
    text = f"{named} {'was' if len(done) == 1 else 'were'} {what}."
    session.offer_undo(text, done, is_deletion=is_deletion)
    st.toast(text)
    _clear_selection()
    if not stay:
        st.rerun()


def _undo_bar(store: RunStore) -> None:
    """Offer to undo the last archiving or deletion for a minute."""
    last = session.undo_offered()
    if last is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(last.text, width="stretch")
        if st.button("Undo", key="_undo"):
            session.forget_undo()
            if page_states.is_done(lambda: _undo(store, last)):
                st.rerun()


def _undo(store: RunStore, last: session.Undo) -> None:
    for token, key in last.done:
        if last.is_deletion:
            store.restore(token)
        else:
            store.label(key, replace(store.meta(key).labels, archived=False))


def _problems(runs: RunList) -> None:
    if runs.is_stale:
        for problem in runs.problems:
            st.warning(md(problem))
        return
    skipped = [problem for problem in runs.problems if problem != STILL_LOOKING]
    if len(skipped) < len(runs.problems):
        st.caption("Still looking for runs of other tools; they appear when all folders were looked at.")
    if skipped:
        with st.expander(f"Skipped: {count(len(skipped))}"):
            st.text("\n".join(clean(problem) for problem in skipped[:100]))
