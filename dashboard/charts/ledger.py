"""The time ledger as bars and as a table, with the colours of its entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from toolkit.telemetry.reports.ledger_labels import label_of, percent
from toolkit.telemetry.runs.formatting import NO_VALUE, duration
from toolkit.telemetry.timing import names
from toolkit.telemetry.timing.ledger import Ledger, Line

from .palette import entry_color

_HATCHED: Final = frozenset({names.STALLED, names.REWORK})
"""Lost time is also hatched, so that it is recognisable without colours."""

_MIN_VISIBLE: Final = 0.0005
"""A smaller fraction is less than a pixel wide; the table still has it."""
_MIN_LABELLED: Final = 0.08
"""A smaller fraction has no room for its number on a phone."""


def bar_of(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return the parts of one bar, from left to right."""
    return [
        {
            "words": label_of(line.entry),
            "share": round(line.share, 6),
            "color": entry_color(line.entry),
            "hatched": line.entry in _HATCHED,
            "text": percent(line.share) if line.share >= _MIN_LABELLED and line.entry not in _HATCHED else "",
            "title": f"{label_of(line.entry)}: {duration(line.seconds)}, {percent(line.share)}",
            "about": percent(line.share),
        }
        for line in lines
        if line.share >= _MIN_VISIBLE
    ]


def table_of(ledger: Ledger) -> dict[str, Any]:
    """Return the entries with any time, with an energy column if known."""
    with_energy = ledger.kwh is not None
    rows = [
        {
            "color": entry_color(line.entry),
            "hatched": line.entry in _HATCHED,
            "cells": [
                label_of(line.entry) + (" *" if line.inferred else ""),
                duration(line.seconds),
                percent(line.share),
                *([NO_VALUE if line.kwh is None else f"{line.kwh:.3g}"] if with_energy else []),
            ],
        }
        for line in ledger.lines
        if line.seconds > 0
    ]
    total = ["total", duration(ledger.wall_s), "100 %"]
    rows.append(
        {"color": None, "hatched": False, "cells": [*total, f"{ledger.kwh or 0.0:.3g}"][: 3 + with_energy]}
    )
    return {"head": ["", "time", "of total", *(["kWh"] if with_energy else [])], "rows": rows}
