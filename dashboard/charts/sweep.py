"""The runs of a sweep as parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from toolkit.telemetry.runs.formatting import html_text, short_number
from toolkit.telemetry.runs.settings import as_number, setting_text
from toolkit.telemetry.runs.statistics import mid_ranks
from toolkit.telemetry.runs.sweep.answer import is_log_scale
from toolkit.telemetry.runs.sweep.runs import Direction

from .palette import color

_SCALE: Final = ((0.0, color("series-1")), (1.0, color("series-0")))
"""From the best to the worst."""
_MAX_TICKS: Final = 8


def parallel_figure(
    rows: Sequence[Sequence[Any]], names: Sequence[str], metric: str, direction: Direction
) -> dict[str, Any]:
    """Return one line for each run through its settings, the metric last; drag along an axis to filter.

    The last of each row is the metric. Every value must be there. A line has the colour of its place among all: by
    their values, a single diverged run would give all others one colour.
    """
    columns = list(zip(*rows, strict=True))
    sign = 1.0 if direction == "min" else -1.0
    ranks = mid_ranks(sign * np.array(columns[-1], dtype=np.float64))
    return {
        "data": [
            {
                "type": "parcoords",
                "line": {
                    "color": ranks.tolist(),
                    "colorscale": [list(stop) for stop in _SCALE],
                    "cmin": 1,
                    "cmax": len(ranks),
                },
                "dimensions": [
                    _dimension(name, values) for name, values in zip((*names, metric), columns, strict=True)
                ],
                "labelangle": -22,
                "labelside": "top",
                "unselected": {"line": {"color": color("muted"), "opacity": 0.12}},
            }
        ],
        "layout": {"margin": {"l": 44, "r": 44, "t": 78, "b": 18}},
    }


def short_key(key: str, length: int) -> str:
    """Return the end of a long name, which is what tells settings apart."""
    return key if len(key) <= length else f"…{key[-(length - 1) :]}"


def _dimension(name: str, values: Sequence[Any]) -> dict[str, Any]:
    label = html_text(short_key(name, 18))
    numbers = [as_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(values) or len(set(known)) <= _MAX_TICKS:
        return {"label": label, **_even(values, known if len(known) == len(values) else None)}
    if is_log_scale(known):
        return {
            "label": label,
            "values": [math.log10(number) for number in known],
            **_log_ticks(min(known), max(known)),
        }
    return {"label": label, "values": known, **_linear_ticks(min(known), max(known))}


def _even(values: Sequence[Any], numbers: Sequence[float] | None) -> dict[str, Any]:
    """Return values at equal distances: numbers in their order, texts by name."""
    order = sorted(set(numbers)) if numbers is not None else sorted({setting_text(value) for value in values})
    places: dict[Any, int] = {value: place for place, value in enumerate(order)}
    every = max(1, -(-len(order) // _MAX_TICKS))
    of_runs = numbers if numbers is not None else [setting_text(value) for value in values]
    whole = numbers is not None and all(number == int(number) for number in numbers)
    texts = [setting_text(int(value) if whole else value) for value in order]
    return {
        "values": [places[value] for value in of_runs],
        "tickvals": list(range(0, len(order), every)),
        "ticktext": [html_text(short_key(text, 14)) for text in texts[::every]],
        "range": [-0.15, max(len(order) - 0.85, 0.15)],
    }


def _linear_ticks(low: float, high: float) -> dict[str, Any]:
    if not low < high:
        return {"tickvals": [low], "ticktext": [short_number(low)]}
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    ticks = [place * step for place in range(first, math.floor(high / step) + 1)]
    return {"tickvals": ticks, "ticktext": [short_number(tick) for tick in ticks]}


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, -(-len(decades) // _MAX_TICKS))
    shown = list(decades)[::every]
    return {"tickvals": shown, "ticktext": [setting_text(10.0**power) for power in shown]}
