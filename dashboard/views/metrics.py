"""Metrics page: every logged metric, in groups that can be opened and closed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.curve_panel import (
    ChartOptions,
    Tally,
    chart_switches,
    curve_panel,
    marks_of,
    pin_box,
    pin_star,
    redraw_after_pinning,
)
from dashboard.components.frame import RunPage, footer, live, open_run, read
from dashboard.components.page_states import section
from toolkit.diagnostics.metric_aliases import LOSS, VAL_LOSS, signal_of
from toolkit.runfolder.codec import encodable
from toolkit.runfolder.metrics import INTERNAL
from toolkit.runfolder.records import EPOCH, EVAL, is_spread
from toolkit.runs.columns.export import download_name, metrics_to_csv, shown_frame
from toolkit.runs.formatting import count, md
from toolkit.runs.listing.pins import Pins
from toolkit.runs.store import MetricInfo

_MOST_OPEN = 24
"""Groups are open from the top until they hold so many charts."""
_MOST_IN_GROUP = 60
_MACHINE = ("gpu", "cpu_", "ram_", "process_", "swap_", "disk_", "net_")
_INTERNAL = frozenset({"steps_folded", "nan_inf_detected"})
_LOSS, _EVALUATION, _TRAINING = "loss", "evaluation", "training"
_PINNED = "pinned ★"
_SYSTEM, _TELEMETRY = "system", "telemetry"
_CLOSED = frozenset({_SYSTEM, _TELEMETRY})
"""Groups that are about the machine and the logger, not about the training."""


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        pattern = st.text_input(
            "Filter",
            key="filter",
            bind="query-params",
            placeholder="metric name or regular expression",
            icon=":material/search:",
        )
        read(page)
        overlay = _overlay(page)
        columns = session.pick_one("Columns", (1, 2, 3, 4), default=3, key="cols")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        options = chart_switches(page)
        pins = pin_box(page)
    chosen, problem = _matching(pattern)
    if problem:
        st.warning(md(problem), icon=":material/warning:")
    groups = _open_groups(page, chosen, pins)
    live(page, "The charts", lambda: _charts(page, options, chosen, groups, columns, overlay, pins))
    page_states.guarded("The data", lambda: _data(page, options))


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
    if name.startswith(_MACHINE) or info.event == "system":
        return _SYSTEM
    if signal_of(name) in (LOSS, VAL_LOSS):
        return _LOSS
    if info.event in (EVAL, EPOCH):
        return _EVALUATION
    return name.split("/", 1)[0] if "/" in name else _TRAINING


def _open_groups(page: RunPage, pattern: str, pins: Pins) -> list[str]:
    """Show the groups with their sizes, and return those that are open."""
    groups = _shown(page, pattern, pins)
    if not groups:
        return []
    opened: list[str] = []
    charts = 0
    for group, infos in groups.items():
        # What was searched for is shown, whatever it is about.
        if (group in _CLOSED and not pattern) or (opened and charts + len(infos) > _MOST_OPEN):
            continue
        opened.append(group)
        charts += len(infos)
    # Another set of groups is another choice.
    key = f"_groups {page.key} {pattern} {hash(tuple(groups))}"
    chosen = st.pills(
        "Groups",
        list(groups),
        selection_mode="multi",
        default=opened or list(groups)[:1],
        format_func=lambda group: f"{md(group, 40)} {len(groups.get(group, ()))}",
        key=key,
        label_visibility="collapsed",
    )
    return [group for group in groups if group in chosen]


def _overlay(page: RunPage) -> str | None:
    """Let a user choose a metric that is drawn in the chart of another one, too."""
    names = [info.name for info in page.store.metrics(page.key)]
    if len(names) < 2:
        return None
    return session.pick_or_none(
        "Overlay",
        names,
        key="overlay",
        placeholder="another metric",
        help="Draw this metric into every chart, on an axis of its own.",
        width=240,
    )


def _charts(
    page: RunPage,
    options: ChartOptions,
    pattern: str,
    opened: Sequence[str],
    columns: int,
    overlay: str | None,
    pins: Pins,
) -> None:
    redraw_after_pinning()
    health = read(page)
    everything = page.store.metrics(page.key)
    if not everything:
        page_states.no_metrics(page.card, health)
        return
    groups = _shown(page, pattern, pins)
    if not groups:
        st.info(f"None of {count(len(everything))} metrics matches the filter.", icon=":material/search_off:")
        return
    if options.with_marks:
        options = replace(options, marks=marks_of(page, options.axis))
    tally = Tally()
    drawn = [info.name for group in opened for info in groups.get(group, [])[:_MOST_IN_GROUP]]
    page.store.load(page.key, [name + end for name in drawn for end in ("", "_min", "_max")])
    for group in opened:
        infos = groups.get(group, [])
        section(f"{md(group)} :gray[{len(infos)}]")
        _grid(page, infos[:_MOST_IN_GROUP], options, tally, columns, overlay, pins)
        if len(infos) > _MOST_IN_GROUP:
            st.caption(f"{count(len(infos) - _MOST_IN_GROUP)} more: use the filter to see them.")
    footer(page, tally.drawn, tally.total)


def _grid(
    page: RunPage,
    infos: Sequence[MetricInfo],
    options: ChartOptions,
    tally: Tally,
    columns: int,
    overlay: str | None,
    pins: Pins,
) -> None:
    for start in range(0, len(infos), columns):
        for cell, info in zip(
            st.columns(columns, gap="medium"), infos[start : start + columns], strict=False
        ):
            with cell:
                page_states.guarded(
                    info.name,
                    lambda info=info: _ignore(  # type: ignore[misc]  # bound now, not when it is called
                        curve_panel(
                            page,
                            info.name,
                            [(info.name, info.name)],
                            options,
                            tally,
                            height=210,
                            buckets=200,
                            smooth=True,
                            overlay=overlay,
                            level=3,
                            star=pin_star(page, info.name, pins),
                        )
                    ),
                )


def _data(page: RunPage, options: ChartOptions) -> None:
    names = [info.name for info in page.store.metrics(page.key)]
    if not names:
        return
    with st.expander("View data"):
        name = st.selectbox("Metric", names, key="_data_metric")
        series = page.store.series(page.key, name, axis=options.axis, window=options.window, buckets=250)
        x = [value for segment in series.segments for value in segment.x.tolist()]
        y = [value for segment in series.segments for value in segment.y.tolist()]
        st.dataframe(
            shown_frame({options.axis: x, "value": y}), hide_index=True, height=240, alt=f"Points of {name}"
        )
        st.caption(f"{count(series.drawn)} of {count(series.total)} points, as drawn in the chart.")
        st.download_button(
            "All points as CSV",
            lambda: metrics_to_csv(page.store, page.key, [name]),
            download_name(page.card.name, name, "csv"),
            "text/csv",
            on_click="ignore",
        )


def _ignore(_: bool) -> None:
    """Discard the return value."""


main()
