"""A chart of curves as SVG, as the browser would draw it: before its script runs, and where it gets no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toolkit.telemetry.reports.svg import SIZE, Axis, band_html, frame_html, grid_html, text_html, x_axis
from toolkit.telemetry.runs.curve_tiles import Block, CurveTiles, NonFiniteRun
from toolkit.telemetry.runs.store import Floats

PicturedCurve: TypeAlias = tuple[str, tuple[str, str], bool, Callable[..., CurveTiles]]
"""Its label, its colour in both themes, whether it is the baseline, and what returns its tiles on an `axis`."""

_FEW, _FEWEST_SMOOTHED = 40, 200
_HALF_WIDTH: Final = 0.03
_CELLS: Final = 200
_LARGE_PX: Final = 200
_MOST_ODD: Final = 100


def curve_picture(
    curves: Sequence[PicturedCurve], height: int, *, is_marked: bool = False, has_legend: bool = True
) -> str:
    """Return a chart of logged values and their smoothed lines, over steps or else time, as HTML with SVG.

    With `is_marked` there is room for words above it. Empty without any value.
    """
    has_legend = has_legend and len(curves) > 1
    lines: list[tuple[str, Floats, Floats]] = []
    ends: list[float] = []
    odd: list[NonFiniteRun] = []
    axis = "step"
    for _, colours, is_baseline, tiles_on in sorted(curves, key=lambda curve: curve[2]):
        tiles = tiles_on(axis=axis)
        if not tiles.blocks and not lines:
            # Measurements of the machine have no step.
            axis = "elapsed"
            tiles = tiles_on(axis=axis)
        counted = [block for block in tiles.blocks if not tiles.pieces[block.piece].is_superseded]
        if not counted:
            continue
        raw, x, mean, weight = _points(counted)
        is_many = sum(piece.points for piece in tiles.pieces) >= _FEWEST_SMOOTHED
        smoothed = _smoothed(x, mean, weight) if tiles.smooth and is_many else None
        shown = raw if smoothed is None else smoothed
        if is_baseline:
            # Below the others, and no further than they go.
            own = _around(lines)
            inside = (shown[0] >= own.low) & (shown[0] <= own.high)
            if not lines or not inside.any():
                continue
            raw = shown = shown[0][inside], shown[1][inside]
            lines.insert(0, (_drawn_as("line smooth", colours), *shown))
        else:
            lines += [] if smoothed is None else [(_drawn_as("pale", colours), *raw)]
            lines.append((_drawn_as("line" if smoothed is None else "line smooth", colours), *shown))
        ends += _core(raw, shown)
        odd += tiles.non_finite or ()
    values = np.concatenate([y[np.isfinite(y)] for *_, y in lines]) if lines else np.empty(0)
    if not len(values):
        return ""
    y_range, is_fitted = _range(values, ends)
    across, upright = _around(lines), Axis(*y_range)
    top = 20 if is_fitted or is_marked or odd else 8
    box = height - (23 if has_legend else 0) - 26 - top
    ticks = (6 if height > _LARGE_PX else 3, max(2, box // 34))
    left = max(28, 6 * max(len(text) for _, text in upright.ticks(ticks[1])) + 10)
    plot = grid_html(across, upright, ticks) + "".join(
        [f'<path {attributes} d="{_path(x, y, across, upright)}"/>' for attributes, x, y in lines]
        + [band_html(across, one.first_x, one.last_x, "nan", one.kind) for one in odd[-_MOST_ODD:]]
    )
    legend = "".join(
        f"<li><i {_drawn_as('key', colours)}></i>{text_html(label, 60)}</li>" for label, colours, *_ in curves
    )
    words = ", ".join(label for label, *_ in curves)
    named = ("step" if axis == "step" else "seconds since the start") if height > _LARGE_PX else ""
    return (
        f'<div class="telemetry-curves-picture" style="--box:{box}px;--left:{left}px;--top:{top}px">'
        f"{f'<ul class=legend>{legend}</ul>' if has_legend else ''}"
        f"{frame_html(across, upright, plot, words, named, most=ticks)}</div>"
    )


def _drawn_as(name: str, colours: tuple[str, str]) -> str:
    return f'class="{name}" style="color:light-dark({text_html(",".join(colours))})"'


def _path(x: Floats, y: Floats, across: Axis, upright: Axis) -> str:
    """Return a line through the finite points, with gaps where a value is not a number."""
    finite = np.isfinite(x) & np.isfinite(y)
    begins = finite & ~np.concatenate(([False], finite[:-1]))
    left = np.round(SIZE * (x - across.low) / (across.high - across.low), 1)[finite]
    top = np.round(SIZE * (upright.high - y) / (upright.high - upright.low), 1)[finite]
    at = zip(begins[finite].tolist(), left.tolist(), np.clip(top, -SIZE, 2 * SIZE).tolist(), strict=True)
    return "".join(f"{'M' if begin else 'L'}{px:g} {py:g}" for begin, px, py in at)


def _around(lines: Sequence[tuple[str, Floats, Floats]]) -> Axis:
    return x_axis([edge for _, x, _ in lines for edge in (float(x.min()), float(x.max()))])


def _points(blocks: Sequence[Block]) -> tuple[tuple[Floats, Floats], Floats, Floats, Floats]:
    """Return what is drawn (values, or the extremes of buckets), and the means with their weights."""
    drawn = [
        (np.repeat(one.x, min(2, len(one.values))), np.stack(one.values[:2], axis=1).ravel())
        for one in blocks
    ]
    raw = np.concatenate([x for x, _ in drawn]), np.concatenate([y for _, y in drawn])
    mean = np.concatenate([one.values[-1] for one in blocks])
    x, weight = np.concatenate([one.x for one in blocks]), np.concatenate([one.weight for one in blocks])
    finite = np.isfinite(x) & np.isfinite(mean)
    return raw, x[finite], mean[finite], weight[finite]


def _smoothed(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats] | None:
    """Return a line as the chart of the browser has: local lines, which spikes do not count for."""
    span = float(x[-1] - x[0])
    if span <= 0 or (np.diff(x) < 0).any():
        return None
    apart = np.zeros(len(y))
    apart[2:-2] = np.abs(y[2:-2] - np.median(sliding_window_view(y, 5), axis=1))
    limit = 4 * float(np.percentile(apart, 90))
    trust = (1 - np.minimum(1, apart / limit) ** 2) ** 2 if limit > 0 else 1.0
    at = np.linspace(x[0], x[-1], _CELLS)
    # At an end only one side is known: twice the width keeps the line as calm there as elsewhere.
    half = _HALF_WIDTH * span
    half = half * (2 - np.clip(np.minimum(at - x[0], x[-1] - at) / half, 0, 1))
    off = x - at[:, None]
    share = np.clip(1 - (off / half[:, None]) ** 2, 0, None) ** 2 * (weight * trust)
    w, s1, s2 = share.sum(1), (share * off).sum(1), (share * off * off).sum(1)
    t0, t1 = share @ y, (share * off) @ y
    determinant = w * s2 - s1 * s1
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(determinant > 1e-9 * w * s2, (s2 * t0 - s1 * t1) / determinant, t0 / w)
    return at, found


def _core(raw: tuple[Floats, Floats], line: tuple[Floats, Floats]) -> list[float]:
    """Return the ends of the range that most of a curve is in, and its end always."""
    found = []
    for x, y in (raw, line):
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if len(y):
            found += np.quantile(y, (0.02, 0.96) if len(y) > _FEW else (0, 1)).tolist()
            end = y[x >= x.max() - 0.05 * (x.max() - x.min())]
            found += [float(end.min()), float(end.max())] if line[1] is not raw[1] else []
    return found


def _range(values: Floats, ends: Sequence[float]) -> tuple[tuple[float, float], bool]:
    """Return the y range of a chart, and whether it leaves out a few extremes that would fill it."""
    least, most, low, high = float(values.min()), float(values.max()), min(ends), max(ends)
    room = 0.05 * (most - least) or 0.2 * abs(most) or 1.0
    size = high - low
    if size <= 0 or most - least <= 2 * size:
        return (least - room, most + room), False
    near = values[(values >= low - size) & (values <= high + size)]
    room = 0.08 * float(near.max() - near.min())
    return (float(near.min()) - room, float(near.max()) + room), True
