"""Colours by meaning; the browser maps them to the light or dark theme."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

SERIES: Final = 6
"""Number of line colours; further curves differ by dash pattern."""

LIGHT: Final[Mapping[str, str]] = {
    "series-0": "#0072B2",
    "series-1": "#D55E00",
    "series-2": "#009E73",
    "series-3": "#B8488F",
    "series-4": "#1B1F24",
    "series-5": "#8E5229",
    "critical": "#C0341D",
    "warning": "#B35900",
    "good": "#00795B",
    "info": "#0072B2",
    "muted": "#6B6F76",
}
DARK: Final[Mapping[str, str]] = {
    "series-0": "#56B4E9",
    "series-1": "#F58231",
    "series-2": "#2EDB9A",
    "series-3": "#E39CC7",
    "series-4": "#FEF6D7",
    "series-5": "#A46AFB",
    "critical": "#FF8A70",
    "warning": "#F0A93B",
    "good": "#3CCBA3",
    "info": "#56B4E9",
    "muted": "#A6ADB5",
}
DASHES: Final = ("solid", "dash", "dot", "dashdot")


def color(name: str, opacity: float = 1.0) -> str:
    """Return the placeholder that the browser replaces with the theme's colour."""
    return f"@{name}" if opacity >= 1.0 else f"@{name}/{opacity:g}"


def series_color(number: int, opacity: float = 1.0) -> str:
    """Return the colour of a curve by its number."""
    return color(f"series-{number % SERIES}", opacity)


def colors_of_runs(keys: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return colour number and dash of each run: by its name, unless another run of the chart has that colour."""
    taken: set[tuple[int, int]] = set()
    found: dict[str, tuple[int, str]] = {}
    for key in keys:
        first = zlib.crc32(key.encode("utf-8", "replace")) % SERIES
        colors = [(first + turn) % SERIES for turn in range(SERIES)]
        pair = next(
            (number, dash)
            for dash in range(len(DASHES) + 1)
            for number in colors
            if (number, dash) not in taken or dash == len(DASHES)
        )
        taken.add(pair)
        found[key] = (pair[0], DASHES[pair[1] % len(DASHES)])
    return found
