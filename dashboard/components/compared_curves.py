"""Curves of several runs, or of groups of them, one metric a chart: for Compare, and for the list of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import streamlit as st

from toolkit.telemetry.runfolder.metrics import LIKELY, NOT_RESULTS, is_evaluation
from toolkit.telemetry.runfolder.records import is_spread
from toolkit.telemetry.runs.curve_axes import axes_of
from toolkit.telemetry.runs.formatting import count, md
from toolkit.telemetry.runs.listing.compared_runs import RunGroup, figures_of, joined_metrics
from toolkit.telemetry.runs.listing.run_table import Primary
from toolkit.telemetry.runs.settings import setting_names
from toolkit.telemetry.runs.store import RunCard, RunStore

from .. import session
from . import page_states
from .baseline import baseline_curve, baseline_of
from .curve_chart import ChartSpec, CurveSpec, GroupSpec, draw_curves, view_switches
from .page_states import section

MAX_SMALL: Final = 12
CHART_PX: Final = 400
HIDDEN: Final = "hide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The runs that are drawn, and how."""

    store: RunStore
    cards: Mapping[str, RunCard]
    names: Mapping[str, Mapping[str, str]]
    """The metrics, each with the name that a run gives it."""
    metric: str
    by: Sequence[str] = ()
    groups: Sequence[RunGroup] = ()
    looks: Mapping[str, tuple[str, str]]
    """Colour and dash of each run, or of each group by its label."""
    base: str = ""
    """The key of a run, or the label of a group."""
    is_difference: bool = False
    axes: Sequence[tuple[str, str]] = ()
    left_out: int = 0

    @property
    def is_live(self) -> bool:
        """Whether one of the runs still trains."""
        return any(card.live for card in self.cards.values())

    @property
    def hidden(self) -> set[str]:
        """The runs or groups whose curves are hidden, from the address."""
        return {word for word in st.query_params.get_all(HIDDEN) if word in self.looks}

    @property
    def base_run(self) -> str:
        """The run that others are compared with: the first one of a group."""
        return next((group.runs[0] for group in self.groups if group.label == self.base), self.base)

    def figures(self) -> dict[str, dict[str, float]]:
        """Return the figures of each run's curve, by their names."""
        return figures_of(self.store, list(self.cards), self.metric, self.names.get(self.metric, {}))

    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return what has a line of its own: key of a run or label of a group, and its runs."""
        if self.groups:
            return [(group.label, group.runs) for group in self.groups]
        return [(key, (key,)) for key in self.cards]

    def label(self, row: str) -> str:
        """Return what a row is called."""
        return row if self.groups else self.cards[row].name


def read_runs(store: RunStore, keys: Sequence[str]) -> bool:
    """Read the runs, show the progress, and return whether there is more to read."""
    healths = store.refresh_all(keys, wait_s=0.5)
    # A list, not `any`: each has to be stored.
    changed = [
        session.set_partly("read", key, not health.complete)
        for key, health in zip(keys, healths, strict=True)
    ]
    unfinished = [health for health in healths if not health.complete]
    if unfinished:
        page_states.reading(min(unfinished, key=lambda health: health.fraction_read))
    elif any(changed):
        # Redraw what was drawn from a partly read log.
        st.rerun()
    return bool(unfinished)


def shared_axes(
    store: RunStore, keys: Sequence[str], names: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str]]:
    """Return the x axes that all of the runs have, as value and label."""
    return axes_of([info for info in store.metrics(keys[0]) if len(names.get(info.name, ())) == len(keys)])


def run_curves(
    store: RunStore,
    cards: Mapping[str, RunCard],
    looks: Mapping[str, tuple[str, str]],
    primary: Primary | None,
) -> None:
    """Draw the curves of runs: the metric is chosen once, at first the primary one; the others follow, smaller."""
    read_runs(store, list(cards))
    names = joined_metrics({key: store.metrics(key) for key in cards})
    axes = shared_axes(store, list(cards), names)
    with st.container(width=300):
        metric = pick_metric(names, primary)
    shown = Compared(store=store, cards=cards, names=names, metric=metric, looks=looks, axes=axes)
    main_chart(shown)
    small_charts(shown)


def main_chart(shown: Compared, statistics: Sequence[str] = ()) -> None:
    """Draw the switches, and the chart of the chosen metric."""
    view_switches(axes=shown.axes, statistics=statistics)
    if shown.names.get(shown.metric):
        draw_curves(curves_spec(shown, shown.metric, is_small=False), key="chart compare")
    else:
        st.info(f"None of these runs has logged {md(shown.metric)}.")


def pick_metric(names: Mapping[str, Mapping[str, str]], primary: Primary | None) -> str:
    """Show the metrics, the primary one first, and return the chosen one."""
    every = _names_of_runs(names)
    ordered = metrics_in_order(names, primary)
    if not ordered:
        return "train_loss"
    # A link may have another run's name of it.
    asked = st.query_params.get("metric", "")
    if asked not in names and asked in every and "metric" not in st.session_state:
        st.query_params["metric"] = every[asked]
    chosen = session.kept_in_url(st.selectbox, "Metric", ordered, key="metric", label_visibility="collapsed")
    return str(chosen or ordered[0])


def metrics_in_order(names: Mapping[str, Mapping[str, str]], primary: Primary | None) -> list[str]:
    """Return the metrics, the primary one first."""
    first = _names_of_runs(names).get(primary.metric) if primary is not None else None
    return sorted(
        names,
        key=lambda name: (
            name != first,
            LIKELY.index(name) if name in LIKELY else len(LIKELY),
            is_spread(name, names),
            -len(names[name]),
            name,
        ),
    )


def _names_of_runs(names: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {own: name for name, of in names.items() for own in of.values()}


def curves_of_runs(shown: Compared, metric: str) -> tuple[CurveSpec, ...]:
    """Return a curve for each run that has logged a metric, and the baseline of their project."""
    own = shown.names.get(metric, {})
    base = baseline_of(shown.store, next(iter(shown.cards.values())).project)
    pale = [baseline_curve(base, metric)] if base is not None and base.key not in shown.cards else []
    return (*(_curve(shown, own, key, key) for key in shown.cards if key in own), *pale)


def _curve(shown: Compared, own: Mapping[str, str], key: str, row: str) -> CurveSpec:
    colour, dash = shown.looks[row]
    name = shown.cards[key].name
    return CurveSpec(run=key, metric=own[key], label=name, name=name, colour=colour, dash=dash)


def curves_spec(shown: Compared, metric: str, *, is_small: bool) -> ChartSpec:
    """Return what a chart of the runs, or of their groups, draws."""
    own = shown.names.get(metric, {})
    groups = [
        GroupSpec(
            label=group.label,
            colour=shown.looks[group.label][0],
            dash=shown.looks[group.label][1],
            curves=tuple(_curve(shown, own, key, group.label) for key in group.runs if key in own),
        )
        for group in shown.groups
    ]
    return ChartSpec(
        title=metric,
        curves=() if groups else curves_of_runs(shown, metric),
        groups=tuple(group for group in groups if group.curves),
        base=shown.base if shown.is_difference else None,
        height=220 if is_small else CHART_PX,
        fit=True,
        live=shown.is_live,
        heading=f"{metric}, {shown_how(shown)}" if shown.groups else metric,
    )


def shown_how(shown: Compared) -> str:
    """Return what the charts show of the metric."""
    words = [f"by {', '.join(setting_names(shown.by).values())}"] if shown.groups else []
    words += [f"difference from {shown.label(shown.base)}"] if shown.is_difference else []
    return ", ".join(words)


def other_metrics(shown: Compared) -> list[str]:
    """Return the other metrics that at least two of the runs have, evaluations and the most shared first."""
    system = {info.name for key in shown.cards for info in shown.store.metrics(key) if info.event == "system"}
    shared = [
        name
        for name, own in shown.names.items()
        if len(own) > 1
        and name not in (shown.metric, "steps_folded", *system)
        and not is_spread(name, shown.names)
        and not name.startswith(NOT_RESULTS)
    ]
    order = {
        name: (not is_evaluation(name), name not in LIKELY, -len(shown.names[name]), name) for name in shared
    }
    return sorted(shared, key=order.__getitem__)


def small_charts(shown: Compared) -> None:
    """Draw a chart for each other metric, the likeliest first."""
    metrics = other_metrics(shown)
    if not metrics:
        return
    section("Other metrics of these runs")
    columns = st.columns(2, gap="medium")
    for number, metric in enumerate(metrics[:MAX_SMALL]):
        with columns[number % len(columns)]:
            section(f"{md(metric)} :gray[{len(shown.names[metric])} of {len(shown.cards)} runs]", level=3)
            draw_curves(curves_spec(shown, metric, is_small=True), key=f"chart compare {metric}")
    if len(metrics) > MAX_SMALL:
        st.caption(
            f"{count(len(metrics) - MAX_SMALL)} more metrics are not drawn here: "
            + ", ".join(md(name, 40) for name in metrics[MAX_SMALL : MAX_SMALL + 10])
            + ". Choose one above."
        )
