"""One metric of all ranks as a heat map: which rank is slow, and since when."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dashboard.charts.packing import packed_grid
from dashboard.charts.palette import color
from dashboard.data.run_store import RankGrid

MAX_ROWS: Final = 256
"""More ranks are folded: a row of less than two pixels cannot be seen."""
_ROW_PX: Final = 22
_FULL_ROWS: Final = 24
"""With more rows than that they become lower, not the chart higher."""


def ranks_per_row(grid: RankGrid) -> int:
    """Return how many ranks share a row."""
    return max(1, -(-len(grid.ranks) // MAX_ROWS))


def rank_heatmap_height(grid: RankGrid) -> int:
    """Return the height of the heat map in pixels."""
    return 60 + _ROW_PX * min(len(grid.ranks), _FULL_ROWS)


def rank_heatmap_figure(grid: RankGrid) -> dict[str, Any]:
    """Return the heat map. A cell shows its mean; a row of several ranks shows, in each cell, the slowest of them."""
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
        str(first) if first == last else f"{first} to {last}"
        for first, last in zip(ranks[begins].tolist(), ranks[ends].tolist(), strict=True)
    ]
    slowest = grid.slowest(1)[0]
    row = int(np.searchsorted(ranks, slowest.rank)) // per_row
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
            "annotations": [_pointer(slowest.rank, row)] if len(names) > _FULL_ROWS else [],
        },
    }


def _pointer(rank: int, row: int) -> dict[str, Any]:
    """Return an arrow at a row that is too low to have its name beside it."""
    return {
        "xref": "paper",
        "x": 0.5,
        "yref": "y",
        "y": row,
        "text": f"rank {rank}",
        "arrowcolor": color("muted"),
        "ax": 0,
        "ay": 24 if row < 40 else -24,
    }
