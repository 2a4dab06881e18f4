"""One metric of all ranks of a run, aggregated by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.fleet.commits import Commit
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.rank_grid import LARGEST_STEP, MAX_CELLS, RankCells, width_for

_RANGE: Final = np.dtype(
    [
        ("count", "<u8"),
        ("sum", "<u8"),
        ("last", "<u4"),
        ("valid", "<u8"),
        ("low", "<f8"),
        ("high", "<f8"),
    ]
)
_POINT: Final = np.dtype([("rank", "<u4"), ("n", "<u4"), ("step", "<f8"), ("value", "<f8")])
_FEW_POINTS: Final = 400_000
"""So many are added up here, which is less work than in the engine."""
_CELL: Final = np.dtype([("rank", "<u4"), ("cell", "<i8"), ("mean", "<f8"), ("high", "<f8")])


def rank_grid_of(
    link: EngineLink, run_id: str, taken: Mapping[int, Commit], metric: str, buckets: int
) -> RankGrid:
    """Return one metric of every rank, each value once however often it was sent.

    Raises:
        EngineError: the engine does not answer.
    """
    gens = {file.gen for file in taken.values()}
    newest = f"gen = {next(iter(gens))}"
    if len(gens) > 1:
        pairs = ", ".join(f"({rank}, {file.gen})" for rank, file in taken.items())
        newest = f"(rank, gen) IN ({pairs})"
    if not gens:
        return RankGrid(metric=metric)
    of_metric = (
        f"run_id = {quote(run_id)} AND metric = {quote(metric.encode('utf-8', 'replace'))} AND {newest}"
    )
    points = link.array(
        f"SELECT rank, n, step, value FROM points WHERE {of_metric} LIMIT {_FEW_POINTS + 1}", _POINT
    )
    if len(points) <= _FEW_POINTS:
        return _grid_of_points(points, metric, buckets)
    valid = f"isFinite(value) AND step >= 0 AND step < {LARGEST_STEP:.0f}"
    ranges = link.array(
        f"SELECT count(), sum(n), max(n), countIf({valid}), minIf(step, {valid}), maxIf(step, {valid}) "
        f"FROM points WHERE {of_metric} GROUP BY rank",
        _RANGE,
    )
    found = ranges[ranges["valid"] > 0]
    if not len(found):
        return RankGrid(metric=metric)
    low, high = float(found["low"].min()), float(found["high"].max())
    width = width_for(low, high, max(1, min(buckets, MAX_CELLS)), 1.0)
    first, last = int(low // width), int(high // width)
    # The values of a rank are numbered from 1 on. To take each once is half of the work, and rarely needed.
    highest_n = ranges["last"].astype(np.uint64)
    is_once = bool(
        (ranges["count"] == highest_n).all() and (ranges["sum"] == highest_n * (highest_n + 1) // 2).all()
    )
    once = f"points WHERE {of_metric} AND {valid}"
    if not is_once:
        once = f"(SELECT rank, n, step, value FROM {once} ORDER BY rank, n LIMIT 1 BY rank, n) AS once"
    cells = link.array(
        f"SELECT rank, toInt64(floor(step / {width:.0f})) AS cell, sum(value) / count(), max(value) FROM {once} "
        "GROUP BY rank, cell",
        _CELL,
    )
    # A value that came between the two questions may be outside.
    cells = cells[(cells["cell"] >= first) & (cells["cell"] <= last)]
    ranks, rows = np.unique(cells["rank"], return_inverse=True)
    mean = np.full((len(ranks), last - first + 1), np.nan)
    highest = mean.copy()
    mean[rows, cells["cell"] - first] = cells["mean"]
    highest[rows, cells["cell"] - first] = cells["high"]
    return RankGrid(
        metric=metric,
        ranks=tuple(ranks.tolist()),
        first_step=first * width,
        cell_steps=width,
        mean=mean,
        high=highest,
    )


def _grid_of_points(points: npt.NDArray[Any], metric: str, buckets: int) -> RankGrid:
    # Rows with the same key have the same values.
    keys = points["rank"].astype(np.uint64) << np.uint64(32) | points["n"]
    if not (keys[1:] > keys[:-1]).all():
        points = points[np.unique(keys, return_index=True)[1]]
    cells = RankCells()
    ranks, begins = np.unique(points["rank"], return_index=True)
    for rank, own in zip(ranks.tolist(), np.split(points, begins[1:]), strict=False):
        cells.add(rank, own["step"], own["value"])
    return cells.grid(metric, buckets)
