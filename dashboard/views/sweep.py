"""Sweep page: which run is best, and which settings explain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal

import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.charts.sweep import Axis, Point, importance_figure, parallel_figure, scatter_figure
from dashboard.components import page_states
from dashboard.components.chart import draw_chart, picked_of
from dashboard.components.frame import GLYPHS
from dashboard.components.page_states import page_title, section
from dashboard.components.run_filter import pick_project, search_box
from dashboard.components.run_menu import report_button
from dashboard.components.verdict_line import verdict_line
from toolkit.answers.verdict import best_against, result_of
from toolkit.reports.document import Document
from toolkit.reports.sweep import sweep_document
from toolkit.runfolder.labels import ProjectSettings
from toolkit.runfolder.metrics import guess_primary_metric, metric_direction
from toolkit.runfolder.untrusted import is_number
from toolkit.runs.columns.export import shown_frame
from toolkit.runs.formatting import clean, count, md
from toolkit.runs.listing.search import QueryError
from toolkit.runs.settings import setting_text
from toolkit.runs.store import (
    STILL_LOOKING,
    RunCard,
    RunList,
    RunQuery,
    RunStore,
    labelled,
)
from toolkit.runs.sweep.answer import Direction, SweepAnswer, SweepRun, answer, is_log_scale, sweep_run
from toolkit.runs.sweep.text import Marks, answer_text

Take = Literal["best", "last"]
_TAKES: Final[dict[str, Take]] = {"Best value": "best", "Last value": "last"}
_DIRECTIONS: Final[dict[str, Direction]] = {"Lower is better": "min", "Higher is better": "max"}
# The answer is about runs that have ended, so a rare look at those still running is enough.
_REFRESH_S: Final = 30.0
_MAX_BARS: Final = 15
_MAX_AXES: Final = 6
_MAX_LINES: Final = 500
_MAX_SETTINGS_IN_TABLE: Final = 20
_NOT_TESTED: Final = 30
_MARKS: Final = Marks(name=lambda text: f"**{md(text, 80)}**", value=lambda text: md(text, 60))


def main() -> None:
    """Draw the page."""
    store = session.store()
    st.set_page_config(page_title="Sweep")
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        page_title("Sweep", width="content")
        report = st.container(width="content")
    runs = store.list_runs(RunQuery(per_page=0))
    if not runs.total:
        if STILL_LOOKING in runs.problems:
            page_states.still_looking(runs.places)
        else:
            page_states.no_runs(runs.places, runs.problems)
        return
    query = _filters(runs)
    cards = _matching(store, query)
    metric, direction, take = _pick_metric(store, query.project, cards)
    if metric is None:
        _no_metric(cards, query)
        return
    with report:
        report_button("sweep", lambda: _report(store, query, metric, direction, take))
    seconds = _REFRESH_S if session.refresh_seconds() and any(card.live for card in cards) else None
    st.fragment(
        lambda: page_states.guarded("The sweep", lambda: _sweep(store, query, metric, direction, take)),
        run_every=seconds,
    )()


# ---------------------------------------------------------------- which runs, by which metric


def _filters(runs: RunList) -> RunQuery:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = search_box("All runs; search as on the Runs page: tag:sweep, status:finished, lr>1e-4")
        project = pick_project(runs)
    return RunQuery(text=text, project=project, archived=False)


def _matching(store: RunStore, query: RunQuery) -> Sequence[RunCard]:
    try:
        runs = store.list_runs(query)
    except QueryError as error:
        st.warning(md(str(error), 400), icon=":material/search_off:")
        return ()
    page_states.say_if_cut(runs)
    return list(labelled(runs.cards).values())


def _pick_metric(
    store: RunStore, project: str | None, cards: Sequence[RunCard]
) -> tuple[str | None, Direction, Take]:
    counts: dict[str, int] = {}
    for card in cards:
        for name in card.evaluations:
            counts[name] = counts.get(name, 0) + 1
    if not counts:
        return None, "min", "best"
    chosen = store.project_settings(project)
    first = chosen.primary_metric if chosen.primary_metric in counts else None
    first = first or guess_primary_metric(card.evaluations for card in cards) or next(iter(counts))
    names = sorted(counts, key=lambda name: (name != first, -counts[name], name))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        metric = st.selectbox(
            "Metric",
            names,
            key="metric",
            bind="query-params",
            label_visibility="collapsed",
            width=300,
        )
        metric = str(metric or first)
        known = chosen.direction if metric == chosen.primary_metric else None
        usual = known or metric_direction(metric) or "min"
        by_name = {name: text for text, name in _DIRECTIONS.items()}
        direction = _DIRECTIONS[
            session.pick_one(
                "Better",
                tuple(_DIRECTIONS),
                default=by_name[usual],
                key="better",
                label_visibility="collapsed",
            )
        ]
        take = _TAKES[
            session.pick_one(
                "Value of a run",
                tuple(_TAKES),
                default="Best value",
                key="take",
                label_visibility="collapsed",
                help="The best value that a run has reached, or its last one.",
            )
        ]
        if (metric, direction) != (chosen.primary_metric, chosen.direction or usual):
            _offer_to_keep(store, project, replace(chosen, primary_metric=metric, direction=direction))
    return metric, direction, take


def _offer_to_keep(store: RunStore, project: str | None, chosen: ProjectSettings) -> None:
    """Offer to make the metric the one by which all pages compare the runs of this project."""
    if session.read_only_reason() is not None:
        return
    if st.button(
        "Keep as default",
        icon=":material/bookmark:",
        type="tertiary",
        help="Compare the runs of this project by this metric from now on, for everyone who uses this log directory.",
    ) and page_states.is_done(lambda: store.set_project_settings(project, chosen)):
        st.rerun()


def _no_metric(cards: Sequence[RunCard], query: RunQuery) -> None:
    if not cards:
        st.info("No runs match." if query.text else "There are no runs.", icon=":material/search_off:")
        return
    st.info(
        f"None of these {count(len(cards))} runs has logged a metric to compare, such as a validation loss, an "
        "accuracy, a reward or a training loss.",
        icon=":material/query_stats:",
    )


# ---------------------------------------------------------------- the answer


def _sweep(store: RunStore, query: RunQuery, metric: str, direction: Direction, take: Take) -> None:
    cards = {card.key: card for card in _matching(store, query)}
    runs = tuple(sweep_run(card, metric, direction, take_best=take == "best") for card in cards.values())
    found = _answer(tuple(_Frozen(run) for run in runs), metric, direction)
    _text(found)
    # The value is the one that the page is asked for: the best or the last.
    results = [replace(result_of(cards[run.key], metric, reads_code=False), value=run.value) for run in runs]
    verdict_line(best_against(results, metric=metric, goal=direction))
    measured = [run for run in runs if run.value is not None]
    varied = _varied(found)
    if len(measured) > 1 and varied:
        left, right = st.columns([3, 2], gap="large")
        with left:
            _scatter(measured, cards, found, varied)
        with right:
            _importance(found)
        _parallel(measured, found, varied)
    _table(runs, cards, found, varied)


def _report(store: RunStore, query: RunQuery, metric: str, direction: Direction, take: Take) -> Document:
    cards = _matching(store, query)
    runs = [sweep_run(card, metric, direction, take_best=take == "best") for card in cards]
    found = answer(runs, metric=metric, direction=direction)
    return sweep_document(runs, found, {card.key: card.status.name for card in cards})


class _Frozen:
    """A run that can be the key of a cache: runs whose texts are equal give the same answer."""

    def __init__(self, run: SweepRun) -> None:
        self.run = run
        self._text = repr(run)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and other._text == self._text


@lru_cache(maxsize=8)
def _answer(runs: tuple[_Frozen, ...], metric: str, direction: Direction) -> SweepAnswer:
    return answer([frozen.run for frozen in runs], metric=metric, direction=direction)


def _text(found: SweepAnswer) -> None:
    text = answer_text(found, _MARKS)
    with st.container(border=True):
        section(text.best[0])
        for sentences in (text.best[1:], text.why, text.luck, text.next):
            if sentences:
                st.markdown(" ".join(sentences))


def _varied(found: SweepAnswer) -> list[str]:
    """Return the settings that differ between runs, the most important first."""
    if found.factors:
        return [key for factor in found.factors for key in factor.keys]
    return list(found.varied)


# ---------------------------------------------------------------- charts


def _scatter(
    runs: Sequence[SweepRun], cards: Mapping[str, RunCard], found: SweepAnswer, varied: Sequence[str]
) -> None:
    section(f"{md(found.metric, 60)} by setting")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        x = str(st.selectbox("Setting", varied, key="sx", bind="query-params", width=160) or varied[0])
        y = _pick_y(cards, found.metric)
        others = [key for key in varied if key != x]
        shade = session.pick_or_none("Colour", others, key="sc", placeholder="none", width=130)
        log_y = st.toggle("Log y", key="log", bind="query-params")
    values = {run.key: run.value for run in runs}
    if y != found.metric:
        values = {key: _last(card, y) for key, card in cards.items()}
    shown = [run for run in runs if run.config.get(x) is not None and _is_number(values.get(run.key))]
    if shade is not None:
        shown = [run for run in shown if run.config.get(shade) is not None]
    if not shown:
        st.caption("No run has both values.")
        return
    best = found.best.key if found.best is not None else None
    # The best run is drawn last, above the others.
    shown.sort(key=lambda run: run.key == best)
    points = [
        Point(
            name=run.name,
            x=run.config[x],
            y=float(values[run.key] or 0.0),
            shade=run.config.get(shade) if shade is not None else None,
            best=run.key == best,
            unfinished=run.state != "done",
        )
        for run in shown
    ]
    figure = scatter_figure(
        points,
        Axis(title=x),
        Axis(title=y, log=log_y),
        shade,
        revision=f"{x} {y} {log_y}",
    )
    key = "sweep scatter"
    draw_chart(
        figure,
        key=key,
        label=f"{y} by {x}, {len(points)} runs",
        height=340,
        name=f"{y} by {x}",
        group="sweep scatter",
        on_pick=_nothing,
    )
    _picked(picked_of(key), shown, cards)
    missing = len(runs) - len(shown)
    notes = ["the star is the best run"]
    if any(point.unfinished for point in points):
        notes.append("rings are runs that are still running or failed")
    if missing:
        notes.append(f"{count(missing)} without a value are not drawn")
    st.caption(f"{count(len(points))} runs: " + ", ".join(notes) + ".")


def _pick_y(cards: Mapping[str, RunCard], metric: str) -> str:
    names = dict.fromkeys(name for card in cards.values() for name in card.evaluations)
    ordered = [metric, *sorted(name for name in names if name != metric)]
    if len(ordered) == 1:
        return metric
    chosen = st.selectbox("Metric", ordered, key="sy", bind="query-params", width=130)
    return str(chosen or metric)


def _last(card: RunCard, metric: str) -> float | None:
    reached = card.evaluations.get(metric)
    return None if reached is None else reached.best if reached.best is not None else reached.last


def _is_number(value: float | None) -> bool:
    return value is not None and value - value == 0


def _picked(place: int | None, runs: Sequence[SweepRun], cards: Mapping[str, RunCard]) -> None:
    if place is None or not 0 <= place < len(runs):
        return
    run = runs[place]
    st.page_link(
        "views/overview.py",
        label=f"Open {md(cards[run.key].name, 60)}",
        icon=":material/open_in_new:",
        query_params={"run": run.key},
    )


def _importance(found: SweepAnswer) -> None:
    section("What explains the differences")
    if not found.factors:
        st.caption("Too few runs to say. The bars appear with 8 finished runs or more.")
        return
    shown = found.factors[:_MAX_BARS]
    draw_chart(
        importance_figure(shown),
        key="sweep importance",
        label="How much each setting explains: "
        + ", ".join(f"{factor.name} {100 * factor.share:.0f} %" for factor in shown),
        height=60 + 30 * len(shown),
        name="importance",
        group="sweep importance",
    )
    named = "Blue bars are beyond chance. " if found.named else "No bar is beyond chance. "
    st.caption(
        f"{named}Each bar is the share of the differences that the setting explains alone, the line its 90 % interval; "
        f"{count(found.counted)} runs, {count(found.configurations)} different settings."
    )
    untested = [*found.left_out[:_NOT_TESTED]]
    if untested:
        st.caption(
            "Not tested, because nearly every run has its own value: "
            + ", ".join(md(key, 60) for key in untested)
        )


def _parallel(runs: Sequence[SweepRun], found: SweepAnswer, varied: Sequence[str]) -> None:
    section("All settings at once")
    names = list(varied[:_MAX_AXES])
    chosen = st.multiselect(
        "Axes", varied, default=names, key="axes", bind="query-params", label_visibility="collapsed"
    )
    names = [str(name) for name in chosen] or names[:1]
    rows = [
        [*(run.config.get(name) for name in names), run.value]
        for run in runs
        if _is_number(run.value) and all(run.config.get(name) is not None for name in names)
    ]
    if len(rows) < 2:
        st.caption("Fewer than two runs have all of these settings.")
        return
    shown = rows
    if len(rows) > _MAX_LINES:
        by_value = sorted(rows, key=lambda row: float(row[-1] or 0.0))
        last = len(rows) - 1
        shown = [by_value[place * last // (_MAX_LINES - 1)] for place in range(_MAX_LINES)]
    draw_chart(
        parallel_figure(shown, names, found.metric, found.direction),
        key="sweep parallel",
        label=f"{found.metric} with {', '.join(names)}, {len(shown)} runs",
        height=380,
        name="parallel coordinates",
        group="sweep parallel",
    )
    left_out = len(runs) - len(rows)
    rest = f" {count(left_out)} runs without one of these values are not drawn." if left_out else ""
    if len(shown) < len(rows):
        rest += (
            f" These are {count(len(shown))} of {count(len(rows))} runs, evenly from the best to the worst."
        )
    st.caption(
        f"One line for each of {count(len(shown))} runs, from orange (best) to blue. "
        f"Drag along an axis to keep a range, click it to clear; drag a name to move an axis.{rest}"
    )


# ---------------------------------------------------------------- table


def _table(
    runs: Sequence[SweepRun], cards: Mapping[str, RunCard], found: SweepAnswer, varied: Sequence[str]
) -> None:
    section("Runs")
    sign = 1.0 if found.direction == "min" else -1.0
    ordered = sorted(
        runs,
        key=lambda run: (not _is_number(run.value), run.state != "done", sign * (run.value or 0.0), run.key),
    )
    keys = list(varied[:_MAX_SETTINGS_IN_TABLE])
    logs = {key for key in keys if _is_log(runs, key)}
    frame = pd.DataFrame(
        [
            {
                "": "★" if found.best is not None and run.key == found.best.key else "",
                "Run": clean(run.name),
                clean(found.metric): run.value,
                **{clean(key): _cell(run.config.get(key), as_text=key in logs) for key in keys},
                "Status": GLYPHS.get(cards[run.key].status.name, cards[run.key].status.name),
            }
            for run in ordered
        ]
    )
    state: Any = st.dataframe(
        shown_frame(frame),
        key="_sweep_table",
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        height=min(44 + 35 * len(ordered), 500),
        row_height=35,
        lazy=False,
        alt=f"Runs with {found.metric} and the settings that differ",
        column_config={
            "": st.column_config.TextColumn(width=36, pinned=True),
            "Run": st.column_config.TextColumn(width="medium", pinned=True),
            "Status": st.column_config.TextColumn(width=110),
            clean(found.metric): st.column_config.NumberColumn(format="%.4g"),
        },
    )
    picked = [ordered[row] for row in (state["selection"]["rows"] if state else []) if row < len(ordered)]
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(picked) == 1:
            st.page_link(
                "views/overview.py",
                label=f"Open {md(picked[0].name, 60)}",
                icon=":material/open_in_new:",
                query_params={"run": picked[0].key},
            )
        elif len(picked) > 1:
            st.page_link(
                "views/compare.py",
                label=f"Compare {len(picked)}",
                icon=":material/compare_arrows:",
                query_params={"runs": ",".join(run.key for run in picked)},
            )
    constant = found.constant[:_NOT_TESTED]
    same = (
        "Equal in all runs: " + ", ".join(f"{md(key, 60)} {md(_same(runs, key), 60)}" for key in constant)
        if constant
        else ""
    )
    st.caption(same or f"{count(len(runs))} runs.")


def _same(runs: Sequence[SweepRun], key: str) -> str:
    return next((setting_text(run.config[key]) for run in runs if run.config.get(key) is not None), "")


def _cell(value: Any, *, as_text: bool) -> Any:
    if value is None or (is_number(value) and not as_text):
        return value
    return clean(setting_text(value))


def _is_log(runs: Sequence[SweepRun], key: str) -> bool:
    """Return whether numbers would lose digits as the table writes them."""
    values = [run.config.get(key) for run in runs]
    numbers = [float(value) for value in values if is_number(value)]
    mixed = any(value is not None and not isinstance(value, (int, float)) for value in values)
    return mixed or (len(numbers) > 0 and is_log_scale(numbers))


def _nothing() -> None:
    """The chart reports a click only with a callback; the rerun it causes shows the link."""


main()
