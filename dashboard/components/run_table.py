"""The table of runs, and on a phone a list of cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dashboard.components.chart import PALETTES
from dashboard.components.script import sent_by, show_component
from toolkit.runs.formatting import clean
from toolkit.runs.listing.run_table import Column

_EVENTS: Final = ("picked", "sorted", "columns", "more", "opened")
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

    def handler(event: str) -> Callable[[], None]:
        def handle() -> None:
            if sent := sent_by(key, event):
                on_event(event, sent)

        return handle

    show_component(
        "run_table",
        _HTML,
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
        key=key,
        default=dict.fromkeys(_EVENTS),
        on_picked_change=handler("picked"),
        on_sorted_change=handler("sorted"),
        on_columns_change=handler("columns"),
        on_more_change=handler("more"),
        on_opened_change=handler("opened"),
    )
