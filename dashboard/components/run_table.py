"""The table of runs, and on a phone a list of cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from dashboard.components.chart import PALETTES
from dashboard.components.script import component_key, loader
from toolkit.runs.formatting import clean
from toolkit.runs.listing.run_table import Column

_EVENTS: Final = ("picked", "sorted", "columns", "more", "opened")
_STYLE: Final = """
.trt { overflow: auto; max-height: max(24rem, calc(100vh - 17.5rem)); border: 1px solid var(--st-border-color);
  border-radius: var(--st-base-radius); font-size: 0.875rem; font-variant-numeric: tabular-nums; }
.trt table { border-collapse: separate; border-spacing: 0; width: 100%; margin: 0; }
.trt th, .trt td { padding: 0.36rem 0.6rem; border: 0; border-bottom: 1px solid var(--st-border-color);
  text-align: left; white-space: nowrap; max-width: 20rem; overflow: hidden; text-overflow: ellipsis;
  vertical-align: middle;
  background: var(--st-background-color); color: var(--st-text-color); }
.trt tbody tr:last-child td { border-bottom: 0; }
.trt thead th { position: sticky; top: 0; z-index: 2 !important; font-weight: 600; font-size: 0.8rem;
  background: var(--st-secondary-background-color); }
.trt tbody tr:hover td, .trt tbody tr.trt-picked td { background: var(--st-secondary-background-color); }
.trt th.trt-number, .trt td.trt-number { text-align: right; }
.trt .trt-pick { width: 2.2rem; min-width: 2.2rem; padding-right: 0; cursor: pointer; }
.trt .trt-pick input { display: block; margin: 0; width: 1rem; height: 1rem; cursor: pointer;
  accent-color: var(--st-primary-color); }
.trt td.trt-name, .trt th.trt-name { min-width: 11rem; }
.trt-dot {
  display: inline-block; width: 0.65rem; height: 0.65rem; border-radius: 50%; margin-right: 0.5rem; flex: none; }
.trt a.trt-link { color: var(--st-link-color); text-decoration: none; font-weight: 500; unicode-bidi: isolate; }
.trt a.trt-link:hover { text-decoration: underline; }
.trt a.trt-link:focus-visible, .trt button:focus-visible, .trt input:focus-visible {
  outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
.trt-also { opacity: 0.75; font-size: 0.78rem; margin-left: 0.5rem; }
.trt-best td.trt-name::after { content: "best"; font-size: 0.7rem; font-weight: 600; margin-left: 0.5rem;
  padding: 0.05rem 0.35rem; border: 1px solid currentColor; border-radius: 0.6rem; }
.trt td.trt-marked { font-weight: 700; }
.trt button.trt-sort { all: unset; cursor: pointer; }
.trt button.trt-sort:focus-visible { outline: 2px solid var(--st-primary-color); }
.trt-arrow { margin-left: 0.25rem; }
.trt button.trt-pin { all: unset; cursor: pointer; position: absolute; right: 0; top: 0; bottom: 0;
  padding: 0.4rem 0.5rem; opacity: 0; font-size: 0.8rem; background: var(--st-secondary-background-color); }
.trt th:hover button.trt-pin, .trt button.trt-pin:focus-visible,
.trt button.trt-pin[aria-pressed="true"] { opacity: 1; }
.trt-grip { position: absolute; top: 0; right: 0; width: 6px; height: 100%; cursor: col-resize; touch-action: none; }
.trt-grip:hover { background: var(--st-border-color); }
.trt td.trt-progress { min-width: 7.5rem; }
.trt-bar { display: inline-block; width: 3.4rem; height: 0.4rem; border-radius: 0.2rem; overflow: hidden;
  background: var(--st-border-color); vertical-align: middle; margin-right: 0.45rem; }
.trt-bar > span { display: block; height: 100%; background: var(--st-primary-color); }
.trt td.trt-spark { min-width: 6.5rem; padding-top: 0; padding-bottom: 0; }
.trt td.trt-spark svg { width: 6rem; height: 1.5rem; display: block; }
.trt td.trt-spark polyline { fill: none; stroke: var(--st-primary-color); stroke-width: 1.5; stroke-linejoin: round; }
.trt-tag { display: inline-block; padding: 0 0.45rem; margin-right: 0.25rem; border-radius: 0.6rem; font-size: 0.78rem;
  border: 1px solid var(--st-border-color); }
.trt-more { display: block; width: 100%; padding: 0.6rem; border: 0; background: transparent; cursor: pointer;
  color: var(--st-link-color); font: inherit; }
.trt-more[hidden] { display: none; }
@media (max-width: 640px) {
  .trt { max-height: none; border: 0; overflow: visible; }
  .trt thead { display: none; }
  .trt tbody tr { display: flex; flex-wrap: wrap; align-items: center; position: relative; column-gap: 0.9rem;
    border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); margin-bottom: 0.6rem;
    padding: 0.45rem 0.6rem 0.45rem 2.4rem; }
  .trt td { display: none; border: 0; padding: 0.1rem 0; max-width: none; background: transparent !important; }
  .trt tbody tr.trt-picked { background: var(--st-secondary-background-color); }
  .trt td.trt-pick { display: block; position: absolute; left: 0; top: 0; bottom: 0; width: 2.4rem;
    padding: 0.75rem 0 0 0.7rem; }
  .trt td.trt-name { display: flex; align-items: center; flex: 1 0 100%; white-space: normal; min-height: 2rem;
    overflow-wrap: anywhere; font-size: 0.95rem; min-width: 0; }
  .trt td.trt-phone { display: block; }
  .trt td.trt-phone:empty { display: none; }
  .trt td.trt-progress { min-width: 0; }
  .trt td.trt-phone.trt-number { text-align: left; }
  .trt td.trt-phone.trt-number::before { content: attr(data-label) " "; opacity: 0.75; font-size: 0.78rem;
    font-weight: 400; }
}
"""
_HTML: Final = (
    '<div class="trt" tabindex="-1"><style></style><table><thead></thead><tbody></tbody></table>'
    '<button type="button" class="trt-more" hidden></button></div>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumn:
    """A column as it is shown."""

    column: Column
    width: int | None = None
    pinned: bool = False
    on_phone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, or one group of runs."""

    key: str
    name: str
    href: str
    cells: Sequence[Any]
    """One for each column."""
    colour: str | None = None
    also: str = ""
    """Behind the name, where several runs have the same one."""
    place: str = ""
    is_best: bool = False


def run_table(
    rows: Sequence[Row],
    columns: Sequence[ShownColumn],
    *,
    key: str,
    label: str,
    total: int,
    sort: str = "",
    picked: Sequence[str] | None = None,
    picked_at: float = 0.0,
    on_event: Callable[[str, Mapping[str, Any]], None],
) -> None:
    """Show `rows`, of `total`; rows can be selected unless `picked` is None.

    `on_event` gets `picked` (keys), `sorted` (by), `columns` (move and before, resize and width, or pin), `more` (rows
    shown so far) and `opened` (key), before the page is drawn again.
    """
    component = st.components.v2.component(
        "telemetry_run_table", html=_HTML, css=_STYLE, js=loader("run_table"), isolate_styles=False
    )
    name = component_key(key)

    def handler(event: str) -> Callable[[], None]:
        def handle() -> None:
            state = st.session_state.get(name)
            sent = state.get(event) if state else None
            if isinstance(sent, Mapping):
                on_event(event, sent)

        return handle

    component(
        data={
            "columns": [
                {
                    "id": shown.column.id,
                    "label": clean(shown.column.label),
                    "kind": shown.column.kind,
                    "sorts": shown.column.sorts,
                    "help": clean(shown.column.help),
                    "width": shown.width,
                    "pinned": shown.pinned or shown.column.kind == "name",
                    "phone": shown.on_phone,
                }
                for shown in columns
            ],
            "rows": [
                {
                    "key": row.key,
                    "name": clean(row.name),
                    "href": row.href,
                    "cells": row.cells,
                    "colour": row.colour,
                    "also": clean(row.also),
                    "folder": clean(row.place),
                    "best": row.is_best,
                }
                for row in rows
            ],
            "total": total,
            "sort": sort,
            "selectable": picked is not None,
            "movable": picked is not None,
            "picked": list(picked or ()),
            "picked_at": picked_at,
            "label": clean(label),
            "palettes": PALETTES,
        },
        key=name,
        default=dict.fromkeys(_EVENTS),
        on_picked_change=handler("picked"),
        on_sorted_change=handler("sorted"),
        on_columns_change=handler("columns"),
        on_more_change=handler("more"),
        on_opened_change=handler("opened"),
    )
