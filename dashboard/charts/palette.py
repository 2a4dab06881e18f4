"""Colours by meaning; the browser maps them to the light or dark theme."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from toolkit.telemetry.runs.store import RunCard
from toolkit.telemetry.timing import names

SERIES: Final = 6
"""Number of line colours; further curves differ by dash pattern."""

RUN_COLOURS: Final = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#F58231"),
    ("#00795B", "#2EDB9A"),
    ("#B8488F", "#E39CC7"),
    ("#6A3FB5", "#B79CFF"),
    ("#8E5229", "#D2A679"),
    ("#007C89", "#4DD0E1"),
    ("#A3333D", "#FF8A80"),
    ("#4F6D00", "#C5D86D"),
    ("#3B4CC0", "#8FA2FF"),
    ("#8A5A00", "#FFD54F"),
    ("#565B63", "#B0B7C3"),
)
"""Colours of runs in the light and the dark theme; a run keeps its own wherever it is shown."""
_TWINS: Final = (6, 9, 10)
"""Too near to others to be given to a run; some have one of them in their labels."""
_CHOICE: Final = tuple(f"run-{number}" for number in range(len(RUN_COLOURS)) if number not in _TWINS)
_FAR: Final = 11.0
"""Colours that are nearer to each other, in hundredths of Oklab, are easily mistaken for each other."""
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
    "pale": "#AEB6BE",
    **{f"run-{number}": pair[0] for number, pair in enumerate(RUN_COLOURS)},
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
    "pale": "#565F69",
    **{f"run-{number}": pair[1] for number, pair in enumerate(RUN_COLOURS)},
}
PALETTES: Final = {"light": dict(LIGHT), "dark": dict(DARK)}
ENTRIES: Final[Mapping[str, tuple[str, float]]] = {
    names.IN_TRAINING: ("series-0", 1.0),
    names.IN_DATA_WAIT: ("series-1", 1.0),
    names.IN_VALIDATION: ("series-2", 1.0),
    names.IN_CHECKPOINT: ("series-3", 1.0),
    names.IN_SAMPLING: ("series-5", 1.0),
    names.IN_STARTUP: ("series-0", 0.45),
    names.IN_CONTROL: ("muted", 1.0),
    names.IN_OTHER: ("run-9", 1.0),
    names.STALLED: ("series-4", 1.0),
    names.REWORK: ("critical", 1.0),
    names.UNACCOUNTED: ("muted", 0.4),
}
"""Colour and opacity of the entries of the time ledger, and of their spans. Training has the strongest colour."""
DASHES: Final = ("solid", "dash", "dot", "dashdot")


def color(name: str, opacity: float = 1.0) -> str:
    """Return the placeholder that the browser replaces with the theme's colour; plotly takes it for a colour, too."""
    return f"var(--{name})" if opacity >= 1.0 else f"var(--{name}/{opacity:g})"


def entry_color(entry: str, opacity: float = 1.0) -> str:
    """Return the colour of an entry of the time ledger."""
    name, own = ENTRIES.get(entry, ("muted", 1.0))
    return color(name, own * opacity)


def series_color(number: int) -> str:
    """Return the colour of a curve by its number."""
    return color(f"series-{number % SERIES}")


def looks_of_runs(cards: Sequence[RunCard]) -> dict[str, tuple[str, str]]:
    """Return colour and dash by key: at most six colours far from each other, and runs of one colour in other dashes.

    A run keeps its own colour if that is far from those of the runs before it, or gets the farthest one that is left.
    """
    own = {card.key: run_colour(card) for card in cards}
    found: dict[str, str] = {}
    for key, name in own.items():
        if len(found) < SERIES and all(_apart(name, other) >= _FAR for other in found.values()):
            found[key] = name
    for key, name in own.items():
        if key not in found:
            used = Counter(found.values())
            if len(used) < SERIES:
                found[key] = max(_CHOICE, key=lambda one: min(_apart(one, other) for other in used))
            else:
                least = min(used.values())
                found[key] = min(
                    (one for one in used if used[one] == least), key=lambda one: _apart(name, one)
                )
    looks: dict[str, tuple[str, str]] = {}
    for key in own:
        times = sum(one[0] == found[key] for one in looks.values())
        looks[key] = found[key], DASHES[times] if times < len(DASHES) else f"{2 * times}px,3px,1px,3px"
    return looks


@lru_cache(maxsize=4096)
def _apart(one: str, two: str) -> float:
    """Return how far two colours are from each other for the eye, in the theme in which they are nearer."""
    return min(
        100 * math.dist(*(_oklab(theme.get(name, name)) for name in (one, two))) for theme in (LIGHT, DARK)
    )


@lru_cache(maxsize=256)
def _oklab(colour: str) -> tuple[float, float, float]:
    """Return `#rrggbb` in the space Oklab, where equal distances look equal."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def run_colour(card: RunCard) -> str:
    """Return the run's colour, the same on every page: the one in its labels, else one that follows from its key.

    It is a name of this palette, for `color`, or `#rrggbb`.
    """
    if card.colour is not None and (card.colour.startswith("#") or card.colour in LIGHT):
        return card.colour
    return _CHOICE[zlib.crc32(card.key.encode("utf-8", "replace")) % len(_CHOICE)]


def free_colours(cards: Sequence[RunCard]) -> dict[str, str]:
    """Return a colour by key for those of `cards` that have none in their labels: one that no other of them has."""
    taken = Counter(run_colour(card) for card in cards if card.colour is not None)
    found: dict[str, str] = {}
    for card in cards:
        if card.colour is None:
            first = _CHOICE.index(run_colour(card))
            order = _CHOICE[first:] + _CHOICE[:first]
            found[card.key] = min(order, key=lambda name: taken[name])
            taken[found[card.key]] += 1
    return found
