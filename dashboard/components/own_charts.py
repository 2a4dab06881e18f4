"""Charts of one's own on Metrics and Compare: metrics, patterns and formulas in one chart, kept in a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.metrics import OF_THE_MACHINE
from toolkit.telemetry.runs.curve_axes import axes_of
from toolkit.telemetry.runs.formatting import clean, md
from toolkit.telemetry.runs.listing.views import (
    MOST_CHARS,
    MOST_CHARTS,
    MOST_CURVES,
    NamedView,
    OwnChart,
    views_of,
    with_view,
)
from toolkit.telemetry.runs.store import MetricInfo, RunCard, RunStore

from .. import session
from ..charts.palette import DASHES, looks_of_runs
from .curve_chart import ChartSpec, CurveSpec, draw_curves
from .own_views import pick_view, save_settings, show_view, view_name
from .page_states import section

_USUAL: Final = "My charts"
_AS_PAGE: Final = ""


def own_charts(store: RunStore, cards: Sequence[RunCard]) -> Callable[[int], None]:
    """Show the view and what adds a chart to it; return what draws its charts of these runs, in so many columns."""
    project = cards[0].project
    settings = store.project_settings(project)
    metrics = {info.name: info for card in cards for info in store.metrics(card.key)}
    view = pick_view(settings)
    if session.read_only_reason() is None:
        with st.expander("Add chart", key="_own_chart"):
            _editor(store, project, cards, settings, list(metrics.values()))
    return lambda columns: _draw(view, cards, list(metrics), columns)


def _draw(view: NamedView | None, cards: Sequence[RunCard], names: Sequence[str], columns: int) -> None:
    charts = view.charts if view is not None else ()
    places = st.columns(min(columns, len(charts))) if charts else []
    for number, chart in enumerate(charts):
        with places[number % len(places)]:
            section(md(chart.title, 60), level=3)
            spec = _spec(chart, cards, names)
            if spec.curves:
                draw_curves(
                    spec, key=f"own chart {number} {chart.title} {' '.join(card.key for card in cards)}"
                )
            else:
                st.caption(f"None of {md(', '.join(chart.metrics), 120)} was logged here.")


def _spec(chart: OwnChart, cards: Sequence[RunCard], names: Sequence[str]) -> ChartSpec:
    curves, looks = chart.curves(names), looks_of_runs(cards)
    is_one = len(cards) == 1
    labels = [metric.removeprefix("=").strip() for metric in curves]
    return ChartSpec(
        title=chart.title,
        curves=tuple(
            CurveSpec(
                run=card.key,
                metric=metric,
                label=clean(labels[number] if is_one else f"{card.name} · {labels[number]}"),
                colour=number if is_one else looks[card.key][0],
                dash="solid" if is_one else looks[card.key][1] if len(curves) == 1 else DASHES[number % 4],
                name=card.name,
            )
            for card in cards
            for number, metric in enumerate(curves)
        ),
        legend=True,
        axis=chart.axis,
        live=any(card.live for card in cards),
        heading=chart.title,
    )


def _editor(
    store: RunStore,
    project: str | None,
    cards: Sequence[RunCard],
    settings: ProjectSettings,
    metrics: Sequence[MetricInfo],
) -> None:
    views = views_of(settings)
    axes = {_AS_PAGE: "as the page", **dict(axes_of(metrics))}
    chosen = st.multiselect(
        "Metrics, patterns such as loss/*, or formulas such as = val_loss / train_loss",
        sorted((info.name for info in metrics), key=lambda name: name.startswith(OF_THE_MACHINE)),
        key="_own_metrics",
        format_func=clean,
        accept_new_options=True,
        max_selections=MOST_CURVES,
    )
    with st.container(horizontal=True, gap="small"):
        title = st.text_input("Title", key="_own_title", max_chars=MOST_CHARS, placeholder="as its metrics")
        axis = st.selectbox("X axis", list(axes), key="_own_axis", format_func=lambda one: clean(axes[one]))
        named = st.text_input(
            "Kept in the view", value=view_name() or _USUAL, key="_own_name", max_chars=MOST_CHARS
        )
    problems = [store.formula_problem(cards[0].key, one) for one in chosen if is_formula(one)]
    names = [info.name for info in metrics]
    problems += [
        f"No metric fits {one!r}."
        for one in chosen
        if not is_formula(one) and not OwnChart(title="", metrics=(one,)).curves(names)
    ]
    for problem in filter(None, problems):
        st.warning(md(problem, 300))
    view = views.get(named.strip(), NamedView(name=named.strip()))
    is_ready = bool(chosen and view.name) and not any(problems) and len(view.charts) < MOST_CHARTS
    if st.button("Add", key="_own_add", type="primary", disabled=not is_ready):
        chart = OwnChart(
            title=title.strip() or ", ".join(chosen)[:MOST_CHARS], metrics=tuple(chosen), axis=axis or None
        )
        _keep(store, project, settings, replace(view, charts=(*view.charts, chart)))
    for number, chart in enumerate(view.charts):
        if st.button(f"Remove “{md(chart.title, 40)}”", key=f"_own_off {number}", type="tertiary"):
            left = view.charts[:number] + view.charts[number + 1 :]
            _keep(store, project, settings, replace(view, charts=left))


def _keep(store: RunStore, project: str | None, settings: ProjectSettings, view: NamedView) -> None:
    show_view(view.name)
    save_settings(store, project, with_view(settings, view), f"Kept in the view “{view.name}”.")
