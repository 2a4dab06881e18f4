"""Tables of our own: of runs, on a phone a list of cards, and of a few facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final
from urllib.parse import quote

from toolkit.telemetry.runs.formatting import clean, count, short_number
from toolkit.telemetry.runs.listing.run_table import Column
from toolkit.telemetry.runs.store import RunCard

from ..charts.palette import PALETTES
from .script import sent_by, show_component

_MAX_TEXT: Final = 2_000
"""Characters of a fact."""
_EVENTS: Final = ("picked", "sorted", "columns", "more", "opened", "hidden", "starred")
_HTML: Final = (
    '<div class="trt" tabindex="-1"><style></style><table><thead></thead><tbody></tbody></table>'
    '<button type="button" class="trt-more" hidden></button></div>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumn:
    """A column as it is shown."""

    column: Column
    pinned: bool = False
    on_phone: bool = False
    is_main: bool = False
    """Whether it is what the runs are judged by."""


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
    """After the name, where several runs have the same one."""
    place: str = ""
    is_best: bool = False
    dash: str = "solid"
    """How its curve is drawn; it is shown where that is not solid."""
    is_hidden: bool | None = None
    """Whether its curve is hidden, for a row with an eye; None without one."""
    is_baseline: bool | None = None
    """Whether the others are compared with it; None without a star to choose it."""


def row_of(card: RunCard, cells: Sequence[Any] = (), **more: Any) -> Row:
    """Return the row of a run, with a link to it."""
    href = f"overview?run={quote(card.key, safe='', errors='replace')}"
    return Row(key=card.key, name=clean(card.name), href=href, cells=cells, **more)


def run_table(
    rows: Sequence[Row],
    columns: Sequence[ShownColumn],
    *,
    key: str,
    on_event: Callable[[str, Mapping[str, Any]], None] = lambda _event, _sent: None,
    **shown: Any,
) -> None:
    """Show what `table_data` returns of `rows`, `columns` and `shown`.

    `on_event` gets `picked` (keys), `sorted` (by), `columns` (move and before, or pin), `more` (rows
    shown so far), `opened` (key, of a row whose link is a query), `hidden` (keys) and `starred` (key),
    before the page is drawn again.
    """

    def handler(event: str) -> Callable[[], None]:
        def handle() -> None:
            if sent := sent_by(key, event):
                on_event(event, sent)

        return handle

    show_component(
        "run_table",
        _HTML,
        data=table_data(rows, columns, **shown),
        key=key,
        default=dict.fromkeys(_EVENTS),
        **{f"on_{event}_change": handler(event) for event in _EVENTS},
    )


def table_html(rows: Sequence[Row], columns: Sequence[ShownColumn], **shown: Any) -> str:
    """Return the same table as HTML, which our script fills without Streamlit."""
    return f'<div data-table="{escape(json.dumps(table_data(rows, columns, **shown)))}">{_HTML}</div>'


def table_data(
    rows: Sequence[Row],
    columns: Sequence[ShownColumn],
    *,
    label: str,
    total: int,
    sort: str = "",
    picked: Sequence[str] | None = None,
    picked_at: float = 0.0,
    is_compact: bool = False,
) -> dict[str, Any]:
    """Return what the browser is sent for `rows`, of `total`; rows can be selected unless `picked` is None."""
    return {
        "columns": [
            {
                "id": shown.column.id,
                "label": clean(shown.column.label),
                "kind": shown.column.kind,
                "sorts": shown.column.sorts,
                "help": clean(shown.column.help),
                "pinned": shown.pinned or shown.column.kind == "name",
                "phone": shown.on_phone,
                "main": shown.is_main,
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
                "dash": row.dash,
                "hidden": row.is_hidden,
                "star": row.is_baseline,
            }
            for row in rows
        ],
        "total": total,
        "sort": sort,
        "compact": is_compact,
        "selectable": picked is not None,
        "picked": list(picked or ()),
        "picked_at": picked_at,
        "label": clean(label),
        "palettes": PALETTES,
    }


def fact_table(
    facts: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
    label: str,
    *,
    key: str = "",
    hints: Mapping[str, str] | None = None,
) -> None:
    """Show a few facts, as rows or by column; `label` names the table for screen readers.

    A pair of a share and a text is a bar with the text next to it.
    """
    columns: Mapping[str, Sequence[Any]] = (
        facts
        if isinstance(facts, Mapping)
        else {name: [row[name] for row in facts] for name in (facts or [{}])[0]}
    )
    show_component(
        "run_table",
        _HTML,
        data={
            "facts": True,
            "columns": [
                {"id": name, "label": clean(name), "kind": _kind(cells), "help": (hints or {}).get(name, "")}
                for name, cells in columns.items()
            ],
            "rows": [
                {"key": str(number), "cells": [_shown(value) for value in row]}
                for number, row in enumerate(zip(*columns.values(), strict=True))
            ],
            "total": 0,
            "picked": [],
            "label": clean(label),
            "palettes": PALETTES,
        },
        key=key or f"_facts {label}",
    )


def _kind(cells: Sequence[Any]) -> str:
    known = [cell for cell in cells if cell is not None]
    if known and all(isinstance(cell, tuple) for cell in known):
        return "progress"
    return "number" if known and all(isinstance(cell, (int, float)) for cell in known) else "text"


def _shown(cell: Any) -> Any:
    if isinstance(cell, int):
        return count(cell)
    if isinstance(cell, float):
        return short_number(cell)
    return "" if cell is None else list(cell) if isinstance(cell, tuple) else clean(str(cell)[:_MAX_TEXT])
