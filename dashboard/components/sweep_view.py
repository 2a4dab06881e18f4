"""The runs of the list as a sweep: which one is best, and which settings explain it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import quote

import streamlit as st

from toolkit.telemetry.answers.repeats import result_of
from toolkit.telemetry.answers.verdict import best_against
from toolkit.telemetry.reports.document import Document
from toolkit.telemetry.reports.sweep import sweep_document
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runfolder.untrusted import finite_in
from toolkit.telemetry.runs.formatting import clean, count, md, short_number
from toolkit.telemetry.runs.listing.run_start import start_of
from toolkit.telemetry.runs.listing.run_table import NAME, Primary, cell, columns_of, metrics_of
from toolkit.telemetry.runs.listing.search import QueryError
from toolkit.telemetry.runs.settings import as_number, setting_text
from toolkit.telemetry.runs.store import RunCard, RunList, RunQuery, RunStore, labelled
from toolkit.telemetry.runs.sweep.answer import SweepAnswer, answer
from toolkit.telemetry.runs.sweep.next_trial import command_with
from toolkit.telemetry.runs.sweep.runs import Direction, SweepRun, of_one_task, sweep_runs
from toolkit.telemetry.runs.sweep.text import Marks, answer_text, beyond_chance

from .. import page_links, session
from ..charts.sweep import Point, importance_figure, parallel_figure, scatter_figure
from . import page_states
from .chart import draw_chart
from .frame import status_text
from .own_views import primary_among
from .page_states import section
from .run_filter import pick_project, search_box, suggest_names
from .run_menu import report_button
from .run_select import in_address
from .run_table import ShownColumn, fact_table, row_of, run_table
from .stopping_list import stopping_list
from .verdict_line import verdict_line

Take = Literal["best", "last"]
_TAKES: Final[dict[str, Take]] = {"Best value": "best", "Last value": "last"}
_DIRECTIONS: Final[dict[str, Direction]] = {"Lower is better": "min", "Higher is better": "max"}
# The answer is about runs that have ended, so a rare look at those still running is enough.
_REFRESH_S: Final = 30.0
_MAX_BARS: Final = 15
_MAX_AXES: Final = 6
_MAX_LINES: Final = 500
_MAX_ROWS: Final = 30
_MAX_SETTINGS_IN_TABLE: Final = 12
_COMPARED: Final = 6
_NAMED: Final = 30
_SCATTER, _PARALLEL = "Scatter", "All settings at once"
_METRIC, _DURATION = " (metric)", "duration in hours"
_NO_SHADE: Final = "one colour"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """By what the runs are compared."""

    metric: str
    direction: Direction
    take: Take


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The runs, each with its card, and the answer."""

    cards: Mapping[str, RunCard]
    runs: Sequence[SweepRun]
    answer: SweepAnswer
    others: int
    """Runs that train something else, as far as they say."""
    take: Take

    @property
    def varied(self) -> list[str]:
        """The settings that differ between runs, the most important first."""
        return [key for factor in self.answer.factors for key in factor.keys] or list(self.answer.varied)


def sweep_view(store: RunStore, runs: RunList) -> None:
    """Draw the search, the metric and the answer for the runs that are found."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        text = search_box("name, lr>1e-4, val_loss<0.1, tag:sweep, status:finished, started>2d")
        query = RunQuery(text=text, project=pick_project(runs), archived=False)
        cards, _ = _cards(store, query)
        asked = _pick_metric(store, cards)
        if asked is not None:
            report_button("sweep", lambda: _report(_find(store, query, asked)))
    suggest_names(text, runs.cards)
    if asked is None:
        what = f"None of these {count(len(cards))} runs has logged a metric to compare, such as a validation loss."
        nothing = "No runs match." if text else "There are no runs that are not archived."
        st.info(what if cards else nothing)
        return
    seconds = _REFRESH_S if session.refresh_seconds() and any(card.live for card in cards) else None
    st.fragment(
        lambda: page_states.guarded("The sweep", lambda: _draw(store, _find(store, query, asked))),
        run_every=seconds,
    )()


def _cards(store: RunStore, query: RunQuery) -> tuple[Sequence[RunCard], str | None]:
    """Return the runs, and their project if others are left out because nothing was chosen."""
    try:
        runs = store.list_runs(replace(query, per_page=None))
    except QueryError as error:
        st.warning(md(str(error), 400))
        return (), None
    if query.text or query.project:
        return runs.cards, None
    return of_one_task(runs.cards)


def _pick_metric(store: RunStore, cards: Sequence[RunCard]) -> _Asked | None:
    primary = primary_among(store, cards)
    names = metrics_of(cards)
    if not names:
        return None
    first = primary.metric if primary is not None else names[0]
    names.sort(key=lambda name: (name != first, name))
    chosen = session.kept_in_url(
        st.selectbox, "Metric", names, key="metric", label_visibility="collapsed", width=190
    )
    metric = str(chosen or first)
    known = primary.direction if primary is not None and metric == first else metric_direction(metric)
    direction: Direction = known or "min"
    if known is None or "better" in st.query_params:
        by_name = {name: text for text, name in _DIRECTIONS.items()}
        better = session.pick_one("Better", tuple(_DIRECTIONS), default=by_name[direction], key="better")
        direction = _DIRECTIONS[better]
    take = session.pick_one(
        "Value of a run",
        tuple(_TAKES),
        default="Best value",
        key="take",
        help="The best value that a run has reached, or its last one.",
    )
    return _Asked(metric=metric, direction=direction, take=_TAKES[take])


def _find(store: RunStore, query: RunQuery, asked: _Asked) -> _Found:
    chosen, project = _cards(store, query)
    cards = labelled(chosen)
    runs = sweep_runs(cards.values(), asked.metric, asked.direction, take_best=asked.take == "best")
    found = _answer(runs, asked.metric, asked.direction, project)
    others = store.list_runs(replace(query, per_page=0)).matching - len(cards) if project is not None else 0
    return _Found(cards=cards, runs=runs, answer=found, others=others, take=asked.take)


@st.cache_data(max_entries=8, show_spinner=False, hash_funcs={SweepRun: repr})
def _answer(runs: Sequence[SweepRun], metric: str, direction: Direction, project: str | None) -> SweepAnswer:
    return answer(runs, metric=metric, direction=direction, project=project)


def _report(found: _Found) -> Document:
    statuses = {card.key: card.status.name for card in found.cards.values()}
    return sweep_document(found.runs, found.answer, statuses, others=found.others)


# ---------------------------------------------------------------- the page


def _draw(store: RunStore, found: _Found) -> None:
    _text(store, found)
    said = found.answer
    # The value is the one that the page is asked for: the best or the last.
    counted = [run for run in found.runs if run.state != "stopped"]
    results = [
        replace(result_of(found.cards[run.key], said.metric, reads_folder=False), value=run.value)
        for run in counted
    ]
    head = next((one.key for one, run in zip(results, counted, strict=True) if run is said.best), None)
    verdict_line(best_against(results, metric=said.metric, goal=said.direction, head=head))
    stopping_list(store, found.cards.values(), said.metric, said.direction)
    measured = [run for run in found.runs if run.is_measured]
    if len(measured) > 1:
        chart = _SCATTER
        if found.varied:
            chart = session.pick_one("Chart", (_SCATTER, _PARALLEL), default=_SCATTER, key="chart")
        if chart == _PARALLEL:
            _parallel(measured, found)
            _importance(said)
        else:
            left, right = st.columns([3, 2], gap="large")
            with left:
                _scatter(found)
            with right:
                _importance(said)
    _settings_table(found)
    _table(found)


def _text(store: RunStore, found: _Found) -> None:
    links = {card.name: _href(key) for key, card in found.cards.items()}
    marks = Marks(
        name=lambda text: f"**{md(text, 80)}**",
        run=lambda text: f"[{md(text, 80)}]({links[text]})" if text in links else f"**{md(text, 80)}**",
        value=lambda text: md(text, 60),
    )
    text = answer_text(found.answer, marks)
    with st.container(border=True):
        section(text.best[0])
        for sentences in (text.best[1:], text.why, text.luck, text.next):
            if sentences:
                st.markdown(" ".join(sentences))
        _next_trial(store, found)
    if found.others:
        st.caption(
            f"{count(found.others)} runs of other projects or settings are left out: choose a project, or search for "
            "the runs to compare."
        )


def _next_trial(store: RunStore, found: _Found) -> None:
    """Show the command of the best run with the settings to try next; nothing if it does not name them."""
    best, said = found.answer.best, found.answer.suggestions
    line = start_of(store, best.key).get("command_line") if best is not None else None
    settings = dict(one.settings[0] for one in said if one.kind == "at")
    if not settings and any(one.kind == "repeat" for one in said):
        seeds = [int(seed) for run in found.runs if (seed := as_number(run.config.get("seed"))) is not None]
        settings = {"seed": str(max(seeds) + 1)} if seeds else {}
    if settings and isinstance(line, list) and (command := command_with(list(map(str, line)), settings)):
        st.code(clean(command), language="bash", wrap_lines=True)


def _settings_table(found: _Found) -> None:
    """Show the runs with equal settings as one row, where there are repeats."""
    said, keys = found.answer, found.varied[:_MAX_SETTINGS_IN_TABLE]
    if said.seeds is None:
        return
    groups: dict[tuple[str, ...], list[SweepRun]] = {}
    for run in found.runs:
        if run.is_measured and run.state == "done":
            groups.setdefault(tuple(setting_text(run.config.get(key)) for key in keys), []).append(run)
    rows = [
        {
            **dict(zip(keys, texts, strict=True)),
            f"{said.metric} mean": statistics.fmean(run.number for run in runs),
            "±": statistics.stdev(run.number for run in runs) if len(runs) > 1 else None,
            "runs": len(runs),
        }
        for texts, runs in sorted(
            groups.items(), key=lambda item: statistics.fmean(run.cost(said.direction) for run in item[1])
        )
    ]
    section("Settings, the best first :gray[mean and standard deviation of equal ones]")
    fact_table(rows[:_MAX_ROWS], "Settings by their mean", key="_sweep_settings")


def _href(key: str) -> str:
    return f"overview?run={quote(key, safe='')}"


# ---------------------------------------------------------------- charts


def _scatter(found: _Found) -> None:
    metrics = metrics_of(found.cards.values())
    metrics.sort(key=lambda name: (name != found.answer.metric, name))
    varied, together = found.varied, found.answer.interaction
    xs = [*varied, *(name + _METRIC for name in metrics), _DURATION]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        x = str(session.kept_in_url(st.selectbox, "x", xs, key="sx", width=160) or xs[0])
        y = str(session.kept_in_url(st.selectbox, "y", metrics, key="sy", width=150) or metrics[0])
        shade = _pick_shade(x, varied, together.keys if together is not None else ())
        spread = [
            value for run in found.runs if (value := finite_in(_value(run, y + _METRIC, found))) is not None
        ]
        log_y = st.toggle("Log y", value=_is_wide(spread), key="log", bind="query-params")
    points = []
    for run in found.runs:
        at, value = _value(run, x, found), finite_in(_value(run, y + _METRIC, found))
        mark = run.config.get(shade) if shade is not None else None
        if at is not None and value is not None and (shade is None or mark is not None):
            points.append((run, at, value, mark))
    if not points:
        st.caption("No run has both values.")
        return
    best = found.answer.best.key if found.answer.best is not None else None
    # Of a setting that explains nothing, a curve would claim too much.
    fits = not log_y and y == found.answer.metric and any(x in factor.keys for factor in found.answer.named)
    shown = [
        Point(
            x=at,
            y=value,
            shade=mark,
            is_best=run.key == best,
            is_open=run.state != "done",
            text=_tip(run, x, at, y, value, shade, mark),
            address=_href(run.key),
        )
        for run, at, value, mark in points
    ]
    draw_chart(
        scatter_figure(shown, x, y, shade, log_y=log_y, fits=fits),
        key="sweep scatter",
        label=f"{y} by {x}, {len(points)} runs",
        name=f"{y} by {x}",
    )
    notes = ["the star is the best run"] if best is not None else []
    notes += ["the line is a parabola through those that are done, with its 90 % band"] if fits else []
    if any(run.state != "done" for run, _, _, _ in points):
        notes.append("rings are runs that are still running, failed or stopped early")
    if len(points) < len(found.runs):
        notes.append(f"{count(len(found.runs) - len(points))} without a value are not drawn")
    st.caption(f"{count(len(points))} runs" + (": " if notes else "") + ", ".join(notes) + ".")


def _pick_shade(x: str, varied: Sequence[str], together: Sequence[str]) -> str | None:
    """Show the settings by which points may be coloured; at first the one with which the best x moves."""
    others = [key for key in varied if key != x]
    options = [_NO_SHADE, *others]
    usual = next((key for key in together if key in others), _NO_SHADE) if x in together else _NO_SHADE
    chosen = session.kept_in_url(
        st.selectbox, "Colour", options, index=options.index(usual), key="sc", width=140
    )
    return None if chosen in (None, _NO_SHADE) else str(chosen)


def _is_wide(values: Sequence[float]) -> bool:
    """Return whether a few values far above the others would press these together."""
    return bool(values) and min(values) > 0 and max(values) > 2.5 * statistics.median(values)


def _value(run: SweepRun, name: str, found: _Found) -> Any:
    """Return a run's setting, duration or metric by the name in the chart's lists."""
    card = found.cards[run.key]
    if name == _DURATION:
        return None if card.duration_s is None else card.duration_s / 3600
    if not name.endswith(_METRIC):
        return run.config.get(name)
    metric = name.removesuffix(_METRIC)
    if metric == found.answer.metric:
        return run.value if run.is_measured else None
    reached = card.evaluations.get(metric)
    if reached is None:
        return None
    value = reached.last if reached.best is None or found.take == "last" else reached.best
    return finite_in(value)


def _tip(run: SweepRun, x: str, at: Any, y: str, value: float, shade: str | None, mark: Any) -> list[str]:
    state = {"running": " (still running)", "failed": " (failed)", "stopped": " (stopped early)"}
    lines = [f"{run.name}{state.get(run.state, '')}", f"{y} {short_number(value)}"]
    lines.append(f"{x.removesuffix(_METRIC)} {setting_text(at)}")
    if shade is not None:
        lines.append(f"{shade} {setting_text(mark)}")
    return [clean(line)[:90] for line in lines]


def _importance(said: SweepAnswer) -> None:
    section("What explains the differences")
    if not said.factors:
        st.caption("Too few runs to say. The bars appear with 8 finished runs or more.")
        return
    shown = said.factors[:_MAX_BARS]
    draw_chart(
        importance_figure(shown),
        key="sweep importance",
        label="share of the differences that each setting explains",
        name="importance of settings",
    )
    st.caption(
        f"{beyond_chance(said, 'Blue')} Each bar is the share of the differences that the setting explains alone, the "
        f"line its 90 % interval; {count(said.counted)} runs, {count(said.configurations)} different settings."
    )
    if said.left_out:
        st.caption("Not tested, because nearly every run has its own value: " + _listed(said.left_out))


def _listed(keys: Sequence[str]) -> str:
    more = f" and {count(len(keys) - _NAMED)} more" if len(keys) > _NAMED else ""
    return ", ".join(md(key, 60) for key in keys[:_NAMED]) + more


def _parallel(runs: Sequence[SweepRun], found: _Found) -> None:
    said, varied = found.answer, found.varied
    names = list(varied[:_MAX_AXES])
    chosen = session.kept_in_url(
        st.multiselect, "Axes", varied, default=names, key="axes", label_visibility="collapsed"
    )
    names = [str(name) for name in chosen] or names[:1]
    rows = [
        [*(run.config.get(name) for name in names), run.value]
        for run in runs
        if all(run.config.get(name) is not None for name in names)
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
        parallel_figure(shown, names, said.metric, said.direction),
        key="sweep parallel",
        label=f"{said.metric} with {', '.join(names)}, {len(shown)} runs",
        name="parallel coordinates",
    )
    left_out = len(runs) - len(rows)
    rest = f" {count(left_out)} runs without one of these values are not drawn." if left_out else ""
    if len(shown) < len(rows):
        rest += (
            f" These are {count(len(shown))} of {count(len(rows))} runs, evenly from the best to the worst."
        )
    st.caption(
        f"One line for each of {count(len(shown))} runs, from orange (best) to blue, by their order. "
        f"Drag along an axis to keep a range, click it to clear; drag a name to move an axis.{rest}"
    )


# ---------------------------------------------------------------- table


def _table(found: _Found) -> None:
    said = found.answer
    section("Runs, the best first")
    ordered = sorted(
        found.runs,
        key=lambda run: (
            not run.is_measured,
            run.state != "done",
            run.cost(said.direction) if run.is_measured else 0,
            run.key,
        ),
    )
    cards = [found.cards[run.key] for run in ordered]
    known = columns_of(cards, Primary(metric=said.metric, direction=said.direction))
    result = f"{found.take}:{said.metric}"
    if result not in known:
        result = f"last:{said.metric}"
    wanted = [
        NAME,
        result,
        *(f"config:{key}" for key in found.varied[:_MAX_SETTINGS_IN_TABLE]),
        *("status", "duration"),
    ]
    on_phone = {result, *wanted[2:4], "status"}
    columns = [
        ShownColumn(column=replace(known[name], sorts=None), on_phone=name in on_phone)
        for name in wanted
        if name in known
    ]
    now = time.time()
    rows = [
        row_of(
            card,
            [_cell(card, one.column.id, now) for one in columns],
            place=card.place,
            is_best=said.best is not None and card.key == said.best.key,
        )
        for card in cards[:_MAX_ROWS]
    ]
    run_table(
        rows,
        columns,
        key="_sweep_table",
        label=f"Runs with {said.metric} and the settings that differ",
        total=len(rows),
    )
    best = [run.key for run in ordered if run.is_measured][:_COMPARED]
    if len(best) > 1:
        st.page_link(
            page_links.page("compare"),
            label=f"Compare the best {len(best)}",
            query_params={"runs": in_address(best)},
        )
    notes = [f"{count(len(cards) - len(rows))} more are in the list."] if len(rows) < len(cards) else []
    if said.constant:
        same = [f"{md(key, 60)} {md(_same(found.runs, key), 60)}" for key in said.constant[:_NAMED]]
        notes.append(f"Equal in all runs: {', '.join(same)}.")
    if said.partly:
        notes.append(f"Recorded by some of the runs only, with one value: {_listed(said.partly)}.")
    st.caption(" ".join(notes) or f"{count(len(cards))} runs.")


def _cell(card: RunCard, column: str, now: float) -> Any:
    if column == "status":
        return status_text(card)
    shown = cell(card, column, now)
    return clean(shown) if isinstance(shown, str) else shown


def _same(runs: Sequence[SweepRun], key: str) -> str:
    return next((setting_text(run.config[key]) for run in runs if run.config.get(key) is not None), "")
