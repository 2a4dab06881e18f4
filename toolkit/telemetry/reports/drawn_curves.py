"""Curves of a store as a chart of a report: the runs, groups, axis and difference that a page shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from toolkit.telemetry.reports.document import SECONDS, Chart, Colour, Curve, Line, NonFinite, Point
from toolkit.telemetry.reports.stored_run import curve_of
from toolkit.telemetry.runs.columns.group_curve import GroupCurve, Statistic, group_curve
from toolkit.telemetry.runs.curve_tiles import CurveTiles, TileQuery
from toolkit.telemetry.runs.store import RunStore, Series

_BANDS: Final = {
    "mean": "mean and one standard deviation",
    "median": "median and quartiles",
    "range": "mean, minimum and maximum",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """A run, or a group of runs, as one line."""

    label: str
    colour: Colour
    members: Sequence[tuple[str, str]]
    """Key and metric of each run."""
    dash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnView:
    """How the charts of a page are drawn."""

    axis: str = "step"
    window: tuple[float, float] | None = None
    log_x: bool = False
    log_y: bool = False
    statistic: Statistic = "mean"


def drawn_chart(
    store: RunStore,
    title: str,
    lines: Sequence[DrawnLine],
    view: DrawnView,
    *,
    base: str | None = None,
    points: int = 1_000,
    large: bool = False,
) -> Chart | None:
    """Return a chart of `lines`, minus the line with the label `base` if there is one; None without any value.

    A single run has its logged values, or the extremes of an interval; groups and differences are computed from means.
    """
    query, buckets = TileQuery(fit=max(2, points // 2)), max(1, points // 4)
    is_grouped = any(len(line.members) > 1 for line in lines)
    computed = {
        line.label: group_curve(
            [_means(store.tiles(key, metric, query, axis=view.axis)) for key, metric in line.members],
            view.statistic,
        )
        for line in lines
        if base is not None or is_grouped
    }
    level = computed.get(base) if base is not None else None
    drawn = []
    for line in lines:
        series = [store.series(key, metric, axis=view.axis, buckets=buckets) for key, metric in line.members]
        curve = replace(_logged(series, line.label, view.axis), metric=title)
        band: tuple[tuple[float, float, float], ...] = ()
        if line.label in computed:
            group = computed[line.label] if level is None else computed[line.label].minus(level)
            curve, band = _computed(group, curve)
        if curve.parts:
            drawn.append(Line(label=line.label, curve=curve, colour=line.colour, dash=line.dash, band=band))
    if not drawn:
        return None
    said = [f"Each line is a group: {_BANDS[view.statistic]}."] if is_grouped else []
    said += [f"Difference from {base}."] if level is not None else []
    return Chart(
        title=f"{title}, difference from {base}" if level is not None else title,
        lines=drawn,
        window=view.window,
        large=large,
        log_x=view.log_x,
        log_y=True if view.log_y and level is None else None if level is None else False,
        note=" ".join(said),
    )


def _logged(found: Sequence[Series], label: str, axis: str) -> Curve:
    """Return the curve of the first of `found`, with the counts of all."""
    curve = curve_of(
        found[0],
        run=label,
        axis=SECONDS if axis == "elapsed" else axis,
        records=sum(one.total for one in found),
        last=float(found[0].segments[-1].y[-1]) if found[0].segments else math.nan,
    )
    odd = [NonFinite(run.first_x, run.last_x, run.count) for one in found for run in one.non_finite]
    return replace(curve, not_finite=tuple(odd))


def _means(tiles: CurveTiles) -> tuple[np.ndarray, np.ndarray]:
    """Return the points that count: means of ranges, or the logged values themselves."""
    blocks = [block for block in tiles.blocks if not tiles.pieces[block.piece].is_superseded]
    if not blocks:
        return np.empty(0), np.empty(0)
    return np.concatenate([block.x for block in blocks]), np.concatenate(
        [block.values[-1] for block in blocks]
    )


def _computed(group: GroupCurve, of: Curve) -> tuple[Curve, tuple[tuple[float, float, float], ...]]:
    """Return the line of a group as a curve with the counts of its runs, and its band."""
    points = tuple(Point(x, y) for x, y in zip(group.x.tolist(), group.y.tolist(), strict=True))
    curve = replace(of, parts=(points,) if points else (), last=points[-1].y if points else math.nan)
    rows = zip(group.x.tolist(), group.low.tolist(), group.high.tolist(), strict=True)
    return curve, tuple(rows) if (group.high > group.low).any() else ()
