"""Metrics page: every logged metric, grouped by the first part of its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.curve_panel import ChartOptions, Tally, chart_switches, curve_panel, marks_of
from dashboard.components.frame import RunPage, footer, live, open_run, read
from dashboard.data.export import download_name, to_csv
from dashboard.data.formatting import count, md
from dashboard.data.run_store import MetricInfo
from toolkit.runfolder.records import is_spread

_PER_PAGE = 24
_MAX_REPEATS, _MAX_GROUPS = 2, 3
# Characters of a name that the filter searches.
_SEARCHED = 200
_SYSTEM = ("gpu", "cpu_", "ram_", "process_", "swap_", "disk_", "net_")


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
        columns = session.pick_one("Columns", (1, 2, 3, 4), default=3, key="cols")
    options = chart_switches()
    chosen, problem = _matching(pattern)
    if problem:
        st.warning(md(problem), icon=":material/warning:")
    number = _page_number(page, chosen)
    live(page, "The charts", lambda: _charts(page, options, chosen, number, columns))
    page_states.guarded("The data", lambda: _data(page, options))


def _matching(pattern: str) -> tuple[re.Pattern[str], str | None]:
    if len(pattern) > 200:
        return re.compile(""), "the filter is longer than 200 characters and was ignored"
    as_text = re.compile(re.escape(pattern), re.IGNORECASE)
    if _takes_long(pattern):
        return as_text, "too many repeats or groups for a regular expression; searched as plain text"
    try:
        return re.compile(pattern, re.IGNORECASE), None
    except re.error as error:
        return as_text, f"invalid regular expression ({error}); searched as plain text"


def _takes_long(pattern: str) -> bool:
    # Catastrophic backtracking could take hours, and all pages would wait for it.
    return (
        sum(pattern.count(sign) for sign in "*+?{") > _MAX_REPEATS
        or pattern.count("(") > _MAX_GROUPS
        or re.search(r"\)\s*[*+?{]", pattern) is not None
    )


def _page_number(page: RunPage, pattern: re.Pattern[str]) -> int:
    read(page)
    pages = -(-len(_shown(page, pattern)) // _PER_PAGE)
    if pages <= 1:
        return 0
    return (
        int(st.number_input(f"Page (of {pages})", 1, pages, 1, key="page", bind="query-params", width=140))
        - 1
    )


def _shown(page: RunPage, pattern: re.Pattern[str]) -> list[MetricInfo]:
    found = [info for info in page.store.metrics(page.key) if pattern.search(info.name[:_SEARCHED])]
    if not pattern.pattern:
        # Min and max between records are drawn as a band around the metric; on their own only if searched for.
        names = {info.name for info in found}
        found = [info for info in found if not is_spread(info.name, names)]
    return sorted(found, key=lambda info: (_rank(_group(info)), _group(info), info.name))


def _rank(group: str) -> int:
    """Training metrics first, system metrics last."""
    return {"step": 0, "eval": 1, "epoch": 2, "gpu": 8, "system": 9}.get(group, 3)


def _group(info: MetricInfo) -> str:
    if "/" in info.name:
        return info.name.split("/", 1)[0]
    return "system" if info.name.startswith(_SYSTEM) else info.event


def _charts(
    page: RunPage, options: ChartOptions, pattern: re.Pattern[str], number: int, columns: int
) -> None:
    read(page)
    everything = page.store.metrics(page.key)
    if not everything:
        page_states.no_records(page.card.status.why)
        return
    shown = _shown(page, pattern)
    if not shown:
        st.info(f"None of {count(len(everything))} metrics matches the filter.", icon=":material/search_off:")
        return
    options = replace(options, marks=marks_of(page, options.axis))
    tally = Tally()
    visible = shown[number * _PER_PAGE : (number + 1) * _PER_PAGE]
    for group in dict.fromkeys(_group(info) for info in visible):
        of_group = [info for info in visible if _group(info) == group]
        st.markdown(f"##### {md(group)}  :gray[{len(of_group)}]")
        _grid(page, of_group, options, tally, columns)
    footer(page, tally.drawn, tally.total)


def _grid(
    page: RunPage, infos: Sequence[MetricInfo], options: ChartOptions, tally: Tally, columns: int
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
            pd.DataFrame({options.axis: x, "value": y}), hide_index=True, height=240, alt=f"Points of {name}"
        )
        st.caption(f"{count(series.drawn)} of {count(series.total)} points, as drawn in the chart.")
        st.download_button(
            "All points as CSV",
            lambda: to_csv(page.store.table(page.key, [name]), present=page.store.present(page.key, [name])),
            download_name(page.card.name, name, "csv"),
            "text/csv",
            on_click="ignore",
        )


def _ignore(_: bool) -> None:
    """Discard the return value."""


main()
