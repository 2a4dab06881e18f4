"""Metrics page: every logged metric, in groups that can be opened and closed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc
import streamlit as st

from toolkit.telemetry.diagnostics.metric_aliases import LOSS, VAL_LOSS, signal_of
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.metrics import INTERNAL, OF_THE_MACHINE
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, is_spread
from toolkit.telemetry.runs.formatting import count, md
from toolkit.telemetry.runs.listing.pins import Pins
from toolkit.telemetry.runs.store import MetricInfo

from .. import session
from ..components import page_states
from ..components.curve_panel import (
    Around,
    Panel,
    chart_switches,
    curve_panel,
    marks_of,
    pin_box,
    pin_star,
)
from ..components.forecast_line import forecast_line
from ..components.frame import RunPage, curves_from, open_run
from ..components.own_charts import own_charts
from ..components.page_states import section

_MOST_OPEN = 24
"""Groups are open from the top until they hold so many charts."""
_MOST_IN_GROUP = 60
_MOST_IN_ONE = 12
_INTERNAL = frozenset({"steps_folded", "nan_inf_detected"})
_LOSS, _EVALUATION, _TRAINING = "loss", "evaluation", "training"
_PINNED = "pinned ★"
_SYSTEM, _TELEMETRY = "system", "telemetry"
_CLOSED = frozenset({_SYSTEM, _TELEMETRY})
"""Groups that are about the machine and the logger, not about the training."""


def main() -> None:
    """Draw the page."""
    page = open_run(summary=lambda _: "", drawn_from=curves_from)
    if page is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="switches"):
        pattern = st.text_input(
            "Filter",
            key="filter",
            bind="query-params",
            placeholder="filter: loss|val_loss",
            label_visibility="collapsed",
            width=170,
        )
        is_one = st.toggle("One chart", key="one", bind="query-params", disabled=not pattern)
        layout: list[tuple[int, Callable[[int], None]]] = []
        pins = pin_box(
            page,
            "Layout",
            lambda: layout.append((_columns(), own_charts(page.store, [page.card]))),
        )
        columns, draw_own = layout[0]
        chart_switches(page)
    chosen, problem = _matching(pattern)
    if problem:
        st.warning(md(problem))
    how = _ChartOptions(around=Around(marks=marks_of(page)), columns=columns, pins=pins)
    page_states.guarded("Your charts", lambda: draw_own(columns))
    # Outside of what refreshes: the browser asks for new values by itself.
    page_states.guarded("The charts", lambda: _charts(page, how, chosen, is_one=is_one and bool(pattern)))
    forecast_line(page, has_words=False)


@dataclass(frozen=True, slots=True)
class _ChartOptions:
    """How the charts of the page are drawn."""

    around: Around
    columns: int
    pins: Pins


def _matching(pattern: str) -> tuple[str, str | None]:
    """Return the expression to search for, and what is wrong with `pattern` if it is searched as plain text."""
    if len(pattern) > 200:
        return "", "the filter is longer than 200 characters and was ignored"
    try:
        _search([""], pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        why = str(error).removeprefix("Invalid regular expression: ")
        return re.escape(encodable(pattern)), f"invalid regular expression ({why}); searched as plain text"
    return pattern, None


def _search(names: list[str], pattern: str) -> list[bool]:
    # Arrow searches with RE2, in linear time. Python's own expressions could take hours over back-references and
    # repeats, and all pages would wait for it.
    found: list[bool] = pc.match_substring_regex(
        pa.array([encodable(name) for name in names], pa.string()), pattern, ignore_case=True
    ).to_pylist()
    return found


def _shown(page: RunPage, pattern: str, pins: Pins) -> dict[str, list[MetricInfo]]:
    """Return the metrics that match by group: pinned first, then people's own, the machine and the logger last."""
    metrics = page.store.metrics(page.key)
    found = [*compress(metrics, _search([info.name for info in metrics], pattern))]
    if not pattern:
        # Min, mean and max between records are drawn as a band around the metric; on their own only if searched for.
        names = {info.name for info in found}
        found = [info for info in found if not is_spread(info.name, names) and info.name not in pins.hidden]
    groups: dict[str, list[MetricInfo]] = {}
    by_name = {info.name: info for info in found}
    if pinned := [by_name[name] for name in pins.pinned if name in by_name]:
        groups[_PINNED] = pinned
    for info in sorted(found, key=lambda info: (_rank(_group(info)), _group(info), info.name)):
        if info not in pinned:
            groups.setdefault(_group(info), []).append(info)
    return groups


def _rank(group: str) -> int:
    return {_LOSS: 0, _EVALUATION: 1, _TRAINING: 2, _SYSTEM: 8, _TELEMETRY: 9}.get(group, 3)


def _group(info: MetricInfo) -> str:
    name = info.name
    if name in _INTERNAL or name.startswith(INTERNAL):
        return _TELEMETRY
    if name.startswith(OF_THE_MACHINE) or info.event == "system":
        return _SYSTEM
    if signal_of(name) in (LOSS, VAL_LOSS):
        return _LOSS
    if info.event in (EVAL, EPOCH):
        return _EVALUATION
    return name.split("/", 1)[0] if "/" in name else _TRAINING


def _open_groups(page: RunPage, pattern: str, groups: Mapping[str, Sequence[MetricInfo]]) -> set[str]:
    """Return the groups that are open: at first as many as fit, then those that were opened."""
    opened: set[str] = set()
    charts = 0
    for group, infos in groups.items():
        # What was searched for is shown, whatever it is about.
        if (group in _CLOSED and not pattern) or (opened and charts + len(infos) > _MOST_OPEN):
            continue
        opened.add(group)
        charts += len(infos)
    # Another set of groups is another choice.
    key = f"_groups {page.key} {pattern} {hash(tuple(groups))}"
    kept: set[str] = st.session_state.setdefault(key, opened or set(list(groups)[:1]))
    return kept


def _group_head(group: str, size: int, opened: set[str]) -> None:
    is_open = group in opened
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"group_head {group}"):
        section(f"{md(group)} :gray[{size}]", width="content")
        st.button(
            "Hide" if is_open else "Show",
            key=f"_group {group}",
            type="tertiary",
            on_click=opened.discard if is_open else opened.add,
            args=(group,),
        )


def _columns() -> int:
    return session.pick_one("Columns", (1, 2, 3, 4), default=3, key="cols", label_visibility="visible")


def _charts(page: RunPage, how: _ChartOptions, pattern: str, *, is_one: bool) -> None:
    everything = page.store.metrics(page.key)
    groups = _shown(page, pattern, how.pins)
    if everything and not groups:
        st.info(f"None of {count(len(everything))} metrics matches the filter.")
    if is_one and groups:
        _one_chart(page, how, pattern, [info.name for infos in groups.values() for info in infos])
        return
    opened = _open_groups(page, pattern, groups)
    for group, infos in groups.items():
        _group_head(group, len(infos), opened)
        if group not in opened:
            continue
        _grid(page, infos[:_MOST_IN_GROUP], how)
        if len(infos) > _MOST_IN_GROUP:
            st.caption(f"{count(len(infos) - _MOST_IN_GROUP)} more: use the filter to see them.")


def _one_chart(page: RunPage, how: _ChartOptions, pattern: str, names: Sequence[str]) -> None:
    # The spread of a metric is its band; on its own only if nothing else matches.
    names = [name for name in names if not is_spread(name, names)] or names
    shown = Panel(title=pattern, metrics=[(name, name) for name in names[:_MOST_IN_ONE]])
    curve_panel(page, shown, how.around, height=440, key=f"one {page.key}")
    if len(names) > _MOST_IN_ONE:
        st.caption(f"The first {_MOST_IN_ONE} of {count(len(names))} metrics that match.")


def _grid(page: RunPage, infos: Sequence[MetricInfo], how: _ChartOptions) -> None:
    for cell, info in page_states.grid(infos, how.columns):
        with cell:
            page_states.guarded(info.name, partial(_chart, page, info.name, how))


def _chart(page: RunPage, name: str, how: _ChartOptions) -> None:
    star = pin_star(page, name, how.pins)
    curve_panel(page, Panel.of(name), how.around, height=210, level=3, star=star)
