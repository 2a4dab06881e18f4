"""The time ledger as bars: which part of the time each entry is, and how it is painted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dashboard.charts.palette import color
from dashboard.data.ledger_labels import percent, words_of
from dashboard.data.formatting import NOTHING, duration
from toolkit.timing import names
from toolkit.timing.ledger import Ledger, Line

# Training has the strongest colour, and no other entry has one near it. What should not be there at all is hatched too,
# so that it is told apart without colours.
_COLORS: Final[Mapping[str, str]] = {
    names.IN_TRAINING: color("series-0"),
    names.IN_DATA_WAIT: color("series-1"),
    names.IN_VALIDATION: color("series-2"),
    names.IN_CHECKPOINT: color("series-3"),
    names.IN_SAMPLING: color("series-5"),
    names.IN_STARTUP: color("series-0", 0.45),
    names.IN_CONTROL: color("muted"),
    names.STALLED: color("series-4"),
    names.REWORK: color("critical"),
    names.UNACCOUNTED: color("muted", 0.4),
}
_HATCHED: Final = frozenset({names.STALLED, names.REWORK})

_TO_SEE: Final = 0.0005
"""A smaller share is no pixel wide; the table has it all the same."""
_TO_WRITE: Final = 0.08
"""A smaller share has no room for its number on a phone."""


def bar_of(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return the parts of one bar, from left to right."""
    return [
        {
            "words": words_of(line.entry),
            "share": round(line.share, 6),
            "color": _COLORS.get(line.entry, color("muted")),
            "hatched": line.entry in _HATCHED,
            "text": percent(line.share) if line.share >= _TO_WRITE and line.entry not in _HATCHED else "",
            "title": f"{words_of(line.entry)}: {duration(line.seconds)}, {percent(line.share)}",
            "about": percent(line.share),
        }
        for line in lines
        if line.share >= _TO_SEE
    ]


def table_of(ledger: Ledger) -> dict[str, Any]:
    """Return the lines that hold any time, with a column for energy where it is known."""
    with_energy = ledger.kwh is not None
    rows = [
        {
            "color": _COLORS.get(line.entry, color("muted")),
            "hatched": line.entry in _HATCHED,
            "cells": [
                words_of(line.entry) + (" *" if line.inferred else ""),
                duration(line.seconds),
                percent(line.share),
                *([NOTHING if line.kwh is None else f"{line.kwh:.3g}"] if with_energy else []),
            ],
        }
        for line in ledger.lines
        if line.seconds > 0
    ]
    total = ["together", duration(ledger.wall_s), "100 %"]
    rows.append(
        {"color": None, "hatched": False, "cells": [*total, f"{ledger.kwh or 0.0:.3g}"][: 3 + with_energy]}
    )
    return {"head": ["", "time", "share", *(["kWh"] if with_energy else [])], "rows": rows}
