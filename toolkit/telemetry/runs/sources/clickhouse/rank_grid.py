"""One metric of all ranks of a run, aggregated by the engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.telemetry.fleet.commits import Commit
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.sources.clickhouse.link import EngineLink
from toolkit.telemetry.runs.sources.clickhouse.list_sql import ONE_THREAD
from toolkit.telemetry.runs.sources.rank_grid import LARGEST_STEP, MAX_CELLS, width_for


def rank_grid_of(
    link: EngineLink, run_id: str, taken: Mapping[int, Commit], metric: str, buckets: int
) -> RankGrid:
    """Return one metric of every rank, each value once however often it was sent.

    Raises:
        EngineError: the engine does not answer.
    """
    if not taken:
        return RankGrid(metric=metric)
    gens = {file.gen for file in taken.values()}
    # A thousand pairs take the engine several times as long.
    newest = (
        f"gen = {min(gens)}"
        if len(gens) == 1
        else "(rank, gen) IN ({})".format(", ".join(f"({rank}, {file.gen})" for rank, file in taken.items()))
    )
    where = (
        f"WHERE run_id = {quote(run_id)} AND metric = {quote(metric.encode('utf-8', 'replace'))} "
        f"AND {newest} AND isFinite(value) AND step >= 0 AND step < {LARGEST_STEP:.0f}"
    )
    # Values that are there twice change no limits, and need not be merged for them.
    found = link.rows(f"SELECT min(step), max(step) FROM points {where} HAVING count() > 0 {ONE_THREAD}")
    if not found:
        return RankGrid(metric=metric)
    low, high = map(float, found[0])
    width = width_for(low, high, max(1, min(buckets, MAX_CELLS)), 1.0)
    first, last = int(low // width), int(high // width)
    cells = link.rows(
        f"SELECT rank, toInt64(floor(step / {width:.0f})) AS cell, sum(value) / count(), max(value) "
        f"FROM points FINAL {where} "
        # A value that came between the two questions may be outside.
        f"GROUP BY rank, cell HAVING cell BETWEEN {first} AND {last} {ONE_THREAD}"
    )
    taken_ranks, places, means, highs = np.array(cells, dtype=np.float64).reshape(-1, 4).T
    ranks, rows = np.unique(taken_ranks.astype(int), return_inverse=True)
    mean = np.full((len(ranks), last - first + 1), np.nan)
    highest = mean.copy()
    mean[rows, places.astype(int) - first] = means
    highest[rows, places.astype(int) - first] = highs
    return RankGrid(
        metric=metric,
        ranks=tuple(ranks.tolist()),
        first_step=first * width,
        cell_steps=width,
        mean=mean,
        high=highest,
    )
