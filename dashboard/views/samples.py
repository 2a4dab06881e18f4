"""Samples page: what the model generates over the steps, what it answers, and logged histograms, tables and texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import streamlit as st

from toolkit.telemetry.runfolder.records import COMPLETION, HISTOGRAM, SAMPLE, TABLE, Record
from toolkit.telemetry.runs.columns.export import shown_frame
from toolkit.telemetry.runs.files.logged_tables import (
    MAX_ROWS,
    LoggedTable,
    histogram_map,
    matching_rows,
    read_csv,
    table_of,
)
from toolkit.telemetry.runs.files.sample_files import MAX_FILE
from toolkit.telemetry.runs.files.samples import MAX_SAMPLES, matching_series, samples_of_run
from toolkit.telemetry.runs.formatting import clean, count, md
from toolkit.telemetry.runs.store import Refused

from .. import session
from ..charts.heatmaps import histogram_figure
from ..components import page_states
from ..components.chart import draw_chart
from ..components.frame import RunPage, live, open_run, read
from ..components.page_states import section
from ..components.pictures import View, step_by_step
from ..components.samples.completions import draw_completions

_MAX_RECORDS: Final = 4_000
_MAX_SERIES: Final = 100
_MAX_TEXTS: Final = 50
_MAX_MAPS: Final = 12
_SAMPLES, _COMPLETIONS = "Samples", "Completions"
_VIEWS: Final[Mapping[str, View]] = {"Step by step": "step", "All": "all"}


_IN_CODE: Final = """\
log.log_sample(step, path, prompt="a red fox")
log.log_image("validation", image)
log.log_table("predictions", rows)
log.log_histogram("weights", values)
log.log_completion(step, prompt=question, completion=answer, reward=score)
"""


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    kinds = _kinds(page)
    session.is_changed(f"_kinds {page.key}", kinds)
    if not kinds:
        # Refreshes itself until there are some.
        live(page, "The samples", lambda: _none_yet(page))
    elif len(kinds) == 1:
        _DRAWN[kinds[0]](page)
    else:
        shown = session.pick_one("Shown", kinds, default=kinds[0], key="show")
        _DRAWN[shown](page)


def _kinds(page: RunPage) -> tuple[str, ...]:
    """Return which parts the page has for this run."""
    counts = page.store.count_events(page.key)
    has = {_SAMPLES: any(counts.get(kind) for kind in (SAMPLE, HISTOGRAM, TABLE, "text"))}
    has[_COMPLETIONS] = bool(counts.get(COMPLETION))
    return tuple(name for name in has if has[name])


def _redraw_for_new_kinds(page: RunPage) -> None:
    read(page)
    if session.is_changed(f"_kinds {page.key}", _kinds(page)):
        st.rerun()


def _none_yet(page: RunPage) -> None:
    _redraw_for_new_kinds(page)
    tool = page.card.logged_by
    with st.container(border=True):
        st.markdown("**No samples yet.**" if page.card.live else "**No samples.**")
        if tool is not None:
            st.caption(f"This {md(tool, 40)} log has no images, texts, tables, histograms or completions.")
            return
        st.caption("Images, tables, histograms and completions that the loop logs are shown here:")
        st.code(_IN_CODE, language="python", wrap_lines=True)
        st.caption(
            "With TelemetryCallback, completions of TRL's GRPO, RLOO, DPO, KTO, ORPO and CPO trainers are collected"
            " automatically: every 100 steps, or as set with `completions: {interval: 100}`."
        )


def _draw_samples(page: RunPage) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        search = st.text_input(
            "Search",
            key="prompt",
            bind="query-params",
            placeholder="search prompts and names",
            label_visibility="collapsed",
        )
        view = session.pick_one("Samples shown", tuple(_VIEWS), default="Step by step", key="view")
    needle = search.strip().lower()
    live(page, "The samples", lambda: _samples(page, needle, _VIEWS[view]))
    live(page, "The histograms", lambda: _histograms(page, needle))
    # No timer, because it has inputs; the samples redraw the page when a table is new.
    st.fragment(lambda: page_states.guarded("The tables", lambda: _tables(page, needle)))()
    live(page, "The texts", lambda: _texts(page, needle))


def _samples(page: RunPage, search: str, view: View) -> None:
    _redraw_for_new_kinds(page)
    counts = page.store.count_events(page.key)
    if session.is_changed(f"_tables {page.key}", counts.get(TABLE, 0)):
        st.rerun()
    series = samples_of_run(page.store, page.key)
    if not series:
        return
    found = matching_series(series, search)
    if not found:
        st.info("No prompts match.")
        return
    step_by_step(page.key, found[:_MAX_SERIES], view=view, key=f"_samples {page.key}")
    if len(found) > _MAX_SERIES:
        st.caption(f"Showing {_MAX_SERIES} of {count(len(found))} prompts; use the search to find others.")
    if counts.get(SAMPLE, 0) > MAX_SAMPLES:
        st.caption(f"Showing the newest {count(MAX_SAMPLES)} of {count(counts[SAMPLE])} samples.")


def _by_name(records: Sequence[Record], search: str) -> dict[str, list[Record]]:
    """Return the records by their name, each newest first, and the names in the order in which they were logged."""
    found: dict[str, list[Record]] = {}
    for record in reversed(records):
        found.setdefault(str(record.get("name", "")), []).insert(0, record)
    return {name: of_name for name, of_name in found.items() if search in name.lower()}


def _step(record: Record) -> str:
    step = record.get("global_step")
    return f"step {step:,}" if isinstance(step, int) else "no step"


# ---------------------------------------------------------------- histograms


def _histograms(page: RunPage, search: str) -> None:
    found = _by_name(page.store.events(page.key, (HISTOGRAM,), limit=_MAX_RECORDS), search)
    maps = {name: histogram_map(records) for name, records in list(found.items())[:_MAX_MAPS]}
    if not maps:
        return
    section("Histograms")
    for number, (name, histogram) in enumerate(maps.items()):
        if number % 2 == 0:
            cells = st.columns(2, gap="medium")
        with cells[number % 2]:
            if histogram is None:
                section(md(name, 100) or "histogram", level=3)
                st.caption(
                    "These histograms cannot be read: each needs counts, and one edge more than counts."
                )
                continue
            about = [f"{count(histogram.logged)} logged"]
            if len(histogram.steps) < histogram.logged:
                about.append(f"{count(len(histogram.steps))} drawn")
            if histogram.not_finite:
                about.append(f"{count(histogram.not_finite)} values NaN or infinite")
            section(f"{md(name, 100) or 'histogram'} :gray[{', '.join(about)}]", level=3)
            draw_chart(
                histogram_figure(histogram),
                key=f"_histogram {page.key} {name}",
                label=f"Histogram of {name[:100]} over the steps",
                name=f"histogram {name}",
            )
    if len(found) > _MAX_MAPS:
        st.caption(f"Showing {_MAX_MAPS} of {count(len(found))} histograms; use the search to find others.")


# ---------------------------------------------------------------- tables


def _tables(page: RunPage, search: str) -> None:
    found = _by_name(page.store.events(page.key, (TABLE,), limit=_MAX_RECORDS), search)
    if not found:
        return
    section("Tables")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        name = st.selectbox(
            "Table", list(found), format_func=lambda name: f"{clean(name)[:100]}", key="_table"
        )
        records = found.get(str(name)) or next(iter(found.values()))
        record = records[0]
        if len(records) > 1:
            at = st.select_slider(
                "Logged at",
                range(len(records) - 1, -1, -1),
                value=0,
                format_func=lambda number: _step(records[number]) if number < len(records) else "",
                key=f"_table_step {name}",
            )
            record = records[int(at)]
        needle = st.text_input("Filter rows", key="_table_filter")
    _table(page, str(name), record, needle.strip().lower())


def _table(page: RunPage, name: str, record: Record, needle: str) -> None:
    try:
        table = _load_table(page, record)
    except Refused as error:
        st.caption(f"{_step(record)}: {md(str(error))}")
        return
    if table is None:
        content = record.get("content")
        _text_box(content if isinstance(content, str) else json.dumps(content, indent=1, default=str))
        return
    shown = matching_rows(table, needle) if needle else table
    st.dataframe(shown_frame(shown.columns), hide_index=True, alt=f"table {name[:100]}")
    about = f"{_step(record)} · {count(table.total)} rows" + (
        f", {count(shown.total)} match" if needle else ""
    )
    if table.total > MAX_ROWS:
        about += f"; the first {count(MAX_ROWS)} are shown"
    st.caption(about)


def _load_table(page: RunPage, record: Record) -> LoggedTable | None:
    path = record.get("path")
    if isinstance(path, str):
        return read_csv(page.store.read_file(page.key, path, max_bytes=MAX_FILE))
    return table_of(record.get("content"))


# ---------------------------------------------------------------- texts


def _texts(page: RunPage, search: str) -> None:
    """Show the newest text of each name; other tools log them."""
    matching = _by_name(page.store.events(page.key, ("text",), limit=_MAX_RECORDS), search)
    if not matching:
        return
    section("Texts")
    for name, found in list(matching.items())[:_MAX_TEXTS]:
        newest = found[0]
        with st.expander(f"{md(name, 100) or 'text'} :gray[{_step(newest)}, {count(len(found))} logged]"):
            content = newest.get("content", newest.get("text"))
            _text_box(content if isinstance(content, str) else json.dumps(content, indent=1, default=str))
    if len(matching) > _MAX_TEXTS:
        st.caption(f"Showing {_MAX_TEXTS} of {count(len(matching))}; use the search to find others.")


def _text_box(text: str) -> None:
    st.code(clean(text)[:20_000], language=None, wrap_lines=True)


_DRAWN: Final[Mapping[str, Callable[[RunPage], None]]] = {
    _SAMPLES: _draw_samples,
    _COMPLETIONS: draw_completions,
}
