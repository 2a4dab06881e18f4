"""Every logged point of the curves in a chart, as a CSV file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from toolkit.runfolder.table.columns import write_csv
from toolkit.runs.formatting import clean
from toolkit.runs.store import Floats, Series, XAxis

_MAX_ROWS: Final = 1_000_000


class TooManyRows(ValueError):  # noqa: N818 - the name says what happened
    """There are more points than a browser is sent at once; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoints:
    """A curve: the name of its run, and every point of it."""

    run: str
    series: Series


def curves_to_csv(curves: Sequence[CurvePoints], axis: XAxis, window: tuple[float, float] | None) -> bytes:
    """Return the logged points of `curves` inside `window`, a row for each: run, metric, session, x and value.

    `superseded` is 1 for points of a session that a later one has taken over from. The digits are enough for the same
    float64; values that are not finite are `nan`, `inf` or `-inf`. A name that a spreadsheet would treat as a formula
    gets a leading apostrophe.

    Raises:
        TooManyRows: there are more than a browser is sent at once.
    """
    parts = [
        (curve, segment, superseded)
        for curve in curves
        for superseded, segments in enumerate((curve.series.segments, curve.series.superseded))
        for segment in segments
    ]
    if sum(len(segment.x) for _, segment, _ in parts) > _MAX_ROWS:
        raise TooManyRows(
            f"These curves have more than {_MAX_ROWS:,} points. Zoom in, or export the run with `telemetry export`."
        )
    text = io.StringIO()
    write_csv(text, [("run", "metric", "session", axis, "value", "superseded")])
    for curve, segment, superseded in parts:
        x, y = segment.x, segment.y
        if window is not None:
            inside = (x >= min(window)) & (x <= max(window))
            x, y = x[inside], y[inside]
        run, metric = clean(curve.run), clean(curve.series.metric)
        write_csv(
            text,
            (
                (run, metric, segment.session, place, value, superseded)
                for place, value in zip(_numbers(x), y.tolist(), strict=True)
            ),
        )
    return text.getvalue().encode("utf-8", "replace")


def _numbers(x: Floats) -> list[float] | list[int]:
    """Return steps as whole numbers."""
    if np.isfinite(x).all() and np.all(x % 1 == 0) and np.all(np.abs(x) < 2**53):
        return [int(value) for value in x.tolist()]
    return [float(value) for value in x.tolist()]
