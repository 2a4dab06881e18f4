"""One metric of all ranks as a heat map: which rank is slow, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dashboard.charts.packing import packed_grid
from dashboard.charts.palette import color
from toolkit.runs.rank_grid import RankGrid

MAX_ROWS: Final = 256
"""More ranks are folded: a row of less than two pixels cannot be seen."""
_ROW_PX: Final = 22
_FULL_ROWS: Final = 24
"""With more rows than that they become lower, not the chart higher."""
_MAX_POINTERS: Final = 6


def ranks_per_row(grid: RankGrid) -> int:
    """Return how many ranks share a row."""
    return max(1, -(-len(grid.ranks) // MAX_ROWS))


def rank_heatmap_height(grid: RankGrid) -> int:
    """Return the height of the heat map in pixels."""
    return 60 + _ROW_PX * min(len(grid.ranks), _FULL_ROWS)


def rank_heatmap_figure(grid: RankGrid, marks: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return the heat map. A cell shows its mean; a row of several ranks shows, in each cell, the slowest of them.

    `marks` are a symbol and a word for ranks with a problem, shown beside their rows.
    """
    marks = marks or {}
    per_row = ranks_per_row(grid)
    ranks = np.array(grid.ranks)
    begins = np.arange(0, len(ranks), per_row)
    if per_row > 1:
        # NaN counts as less than any value, and a cell without one stays empty.
        filled = np.where(np.isnan(grid.mean), -np.inf, grid.mean)
        best = np.stack([start + filled[start : start + per_row].argmax(axis=0) for start in begins.tolist()])
    else:
        best = np.repeat(begins[:, None], grid.mean.shape[1], axis=1)
    cells = np.arange(grid.mean.shape[1])
    mean, high = grid.mean[best, cells], grid.high[best, cells]
    ends = np.minimum(begins + per_row, len(ranks)) - 1
    names = [
        _row_name(first, last, marks)
        for first, last in zip(ranks[begins].tolist(), ranks[ends].tolist(), strict=True)
    ]
    # Rows that are too low for their names have an arrow instead.
    pointed = {
        grid.slowest(1)[0].rank: "",
        **{rank: mark for rank, mark in marks.items() if rank in grid.ranks},
    }
    pointers = [
        _pointer(rank, mark, int(np.searchsorted(ranks, rank)) // per_row)
        for rank, mark in list(pointed.items())[:_MAX_POINTERS]
    ]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": (grid.first_step + (cells + 0.5) * grid.cell_steps).tolist(),
                "y": names,
                "z": packed_grid(mean),
                "customdata": packed_grid(np.stack((ranks[best].astype(np.float64), high), axis=-1)),
                "colorscale": [[0, color("info", 0.1)], [1, color("critical")]],
                "hovertemplate": (
                    "rank %{customdata[0]}, step %{x:,.0f}: mean %{z:.3~g} s, "
                    "longest %{customdata[1]:.3~g} s<extra></extra>"
                ),
                "colorbar": {"thickness": 8, "title": {"text": "s"}},
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "step"}, "showgrid": False},
            "yaxis": {
                "title": {"text": "rank", "standoff": 8},
                "fixedrange": True,
                "showgrid": False,
                "type": "category",
                "autorange": "reversed",
                "nticks": _FULL_ROWS,
            },
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "uirevision": "ranks",
            "annotations": pointers if len(names) > _FULL_ROWS else [],
        },
    }


def _row_name(first: int, last: int, marks: Mapping[int, str]) -> str:
    if first == last:
        return f"{first} {marks[first]}" if first in marks else str(first)
    marked = [f"{rank} {mark}" for rank, mark in marks.items() if first <= rank <= last]
    return f"{first} to {last}" + "".join(f", {each}" for each in marked[:2])


def _pointer(rank: int, mark: str, row: int) -> dict[str, Any]:
    """Return an arrow at a row that is too low to have its name beside it."""
    return {
        "xref": "paper",
        "x": 0.5,
        "yref": "y",
        "y": row,
        "text": f"rank {rank} {mark}".rstrip(),
        "arrowcolor": color("muted"),
        "ax": 0,
        "ay": 24 if row < 40 else -24,
    }
