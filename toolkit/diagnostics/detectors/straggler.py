"""One rank that takes longer than the others."""

from __future__ import annotations

import math

from toolkit.diagnostics.incident import Incident, IncidentBook
from toolkit.diagnostics.robust import Window, median
from toolkit.diagnostics.signals import STEP_TIME, Row, name_of
from toolkit.diagnostics.thresholds import (
    RANK_CHECK_EVERY,
    RANK_LOOKS,
    RANK_WINDOW,
    SLOW_RANK,
    SLOW_RANK_OVER,
)
from toolkit.runfolder.records import STEP

_KIND = "straggler"
_MOST_RANKS = 1024
"""Ranks that are compared; beyond it the first ones tell enough."""


class Straggler:
    """Speaks when a rank's steps take longer than those of the other ranks, where their records are given too.

    Ranks that wait for each other within the time they log all look equally slow: then there is nothing to see.
    """

    signals: tuple[str, ...] = (STEP_TIME,)
    all_ranks = True

    def __init__(self, book: IncidentBook) -> None:
        self._book = book
        self._ranks: dict[int, _Rank] = {}

    def restart(self, step: int) -> None:
        """Ranks may run elsewhere now."""
        for rank in self._ranks.values():
            if rank.incident is not None:
                self._book.close(rank.incident, resolved_step=step)
        self._ranks = {}

    def take(self, row: Row) -> None:
        """Add a rank's step time to its others."""
        if not row.rank and not self._ranks:
            return
        seconds = row.values[STEP_TIME]
        if row.event != STEP or not 0.0 < seconds < math.inf:
            return
        rank = self._ranks.get(row.rank)
        if rank is None:
            if len(self._ranks) >= _MOST_RANKS:
                return
            rank = self._ranks[row.rank] = _Rank()
        rank.add(seconds, row.step)
        if rank.records % RANK_CHECK_EVERY == 0 and rank.records >= RANK_WINDOW:
            self._look(rank, row)

    def _look(self, rank: _Rank, row: Row) -> None:
        others = [
            other.times.median
            for other in self._ranks.values()
            if other is not rank and other.records >= RANK_WINDOW
        ]
        if not others:
            return
        ratio = rank.times.median / median(others)
        if rank.incident is not None:
            if ratio < SLOW_RANK_OVER:
                self._book.close(rank.incident, resolved_step=row.step)
                rank.incident = None
            else:
                rank.incident.count += RANK_CHECK_EVERY
                rank.incident.end_step = row.step
            return
        if ratio <= SLOW_RANK:
            rank.slow_looks = 0
            return
        if not rank.slow_looks:
            rank.slow_since = rank.block_step
        rank.slow_looks += 1
        if rank.slow_looks == RANK_LOOKS:
            rank.slow_looks = 0
            rank.incident = self._book.open(
                _KIND,
                name_of(STEP_TIME, row.record),
                start_step=rank.slow_since,
                noticed_step=row.step,
                count=RANK_LOOKS * RANK_CHECK_EVERY,
                which=row.rank,
                rank=float(row.rank),
                ratio=round(ratio, 2),
            )


class _Rank:
    """The latest step times of one rank."""

    def __init__(self) -> None:
        self.times = Window(RANK_WINDOW)
        self.records = 0
        self.block_step = 0
        """The first step since the last look: with those before, it makes the window's newer half."""
        self.slow_looks = 0
        self.slow_since = 0
        self.incident: Incident | None = None

    def add(self, seconds: float, step: int) -> None:
        if self.records % RANK_CHECK_EVERY == 0:
            self.block_step = step
        self.times.push(seconds)
        self.records += 1
