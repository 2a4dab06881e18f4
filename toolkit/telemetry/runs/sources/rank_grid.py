"""Reads a few metrics of all ranks of a run into cells of equal width, each record once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from toolkit.telemetry.runfolder.reader import Cursor
from toolkit.telemetry.runs.columns.line_parser import parse_block
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.record_source import RecordSource
from toolkit.telemetry.runs.store import Floats

MAX_CELLS: Final = 128
"""Finer cells than that are folded in pairs; a grid of fewer cells is folded from these."""
STEP_PARTS: Final = (
    "sec_per_step",
    "time/data_loading",
    "time/forward",
    "time/backward",
    "time/optimizer_update",
)
"""How long a step and its parts took. All are read together, because they are looked at together."""

_BLOCK_BYTES: Final = 4 * 1024 * 1024
_LOOK_EVERY_S: Final = 0.5
"""A page asks for several metrics in a row; a thousand files are looked at once for all of them."""
_FIRST_ROWS: Final = 8
LARGEST_STEP: Final = 2.0**53


class RankCells:
    """Sum, number and maximum of one metric's values, by rank and cell. Cells widen in powers of two as steps grow."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}
        self._first = 0
        """The number of the first cell: a cell begins at its number times the width."""
        self._width = 1.0
        self._low, self._high = np.inf, -np.inf
        self._sum = np.zeros((_FIRST_ROWS, MAX_CELLS))
        self._count = np.zeros((_FIRST_ROWS, MAX_CELLS), dtype=np.int64)
        self._max = np.full((_FIRST_ROWS, MAX_CELLS), -np.inf)

    @property
    def nbytes(self) -> int:
        """Memory used."""
        return self._sum.nbytes + self._count.nbytes + self._max.nbytes

    def add(self, rank: int, steps: Floats, values: Floats) -> None:
        """Add values of one rank at these steps; those that do not count are left out."""
        # NaN is not smaller than anything.
        counts = np.isfinite(values) & (steps >= 0) & (steps < LARGEST_STEP)
        if not counts.all():
            steps, values = steps[counts], values[counts]
        if not len(steps):
            return
        self._make_room(float(steps.min()), float(steps.max()))
        row = self._row(rank)
        cells = np.floor(steps / self._width).astype(np.int64) - self._first
        self._sum[row] += np.bincount(cells, weights=values, minlength=MAX_CELLS)
        self._count[row] += np.bincount(cells, minlength=MAX_CELLS)
        np.maximum.at(self._max[row], cells, values)

    def grid(self, metric: str, buckets: int) -> RankGrid:
        """Return the cells, folded so that there are at most `buckets`."""
        if not self._row_of:
            return RankGrid(metric=metric)
        width = width_for(self._low, self._high, max(1, min(buckets, MAX_CELLS)), self._width)
        first, last = int(self._low // width), int(self._high // width)
        ranks = sorted(self._row_of)
        rows = [self._row_of[rank] for rank in ranks]
        # The new cell of each of the old ones; those after the last have no values.
        into = np.minimum(
            (self._first + np.arange(MAX_CELLS)) // int(width / self._width) - first, last - first
        )
        into = np.maximum(into, 0)
        edges = np.searchsorted(into, np.arange(last - first + 1))
        counts = np.add.reduceat(self._count[rows], edges, axis=1)
        sums = np.add.reduceat(self._sum[rows], edges, axis=1)
        highs = np.maximum.reduceat(self._max[rows], edges, axis=1)
        with np.errstate(invalid="ignore"):
            mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return RankGrid(
            metric=metric,
            ranks=tuple(ranks),
            first_step=first * width,
            cell_steps=width,
            mean=mean,
            high=np.where(counts > 0, highs, np.nan),
        )

    def _row(self, rank: int) -> int:
        row = self._row_of.setdefault(rank, len(self._row_of))
        if row == len(self._sum):
            self._sum = np.concatenate((self._sum, np.zeros_like(self._sum)))
            self._count = np.concatenate((self._count, np.zeros_like(self._count)))
            self._max = np.concatenate((self._max, np.full_like(self._max, -np.inf)))
        return row

    def _make_room(self, low: float, high: float) -> None:
        """Move and widen the cells so that steps from `low` to `high` have one."""
        self._low, self._high = min(self._low, low), max(self._high, high)
        width = width_for(self._low, self._high, MAX_CELLS, self._width)
        first = int(self._low // width)
        if not self._row_of:
            self._first, self._width = first, width
            return
        if width == self._width and first == self._first:
            return
        old = np.flatnonzero(self._count.any(axis=0))
        into, begins = np.unique((self._first + old) // int(width / self._width) - first, return_index=True)
        for name, ufunc, empty in (
            ("_sum", np.add, 0.0),
            ("_count", np.add, 0),
            ("_max", np.maximum, -np.inf),
        ):
            before = getattr(self, name)
            after = np.full_like(before, empty)
            after[:, into] = ufunc.reduceat(before[:, old], begins, axis=1)
            setattr(self, name, after)
        self._first, self._width = first, width


def width_for(low: float, high: float, cells: int, at_least: float) -> float:
    """Return the smallest power of two, from `at_least` on, with which `cells` cells hold all steps."""
    width = at_least
    while high // width - low // width + 1 > cells:
        width *= 2
    return width


@dataclass(slots=True)
class _RankFile:
    source: RecordSource
    cursor: Cursor = field(default_factory=Cursor)
    pending: int = 1
    """Bytes not read yet: unknown before the first block, but not zero."""


class RankReader:
    """Reads the ranks of one run, continuing where it stopped. Thread-safe."""

    def __init__(self, source_of: Callable[[int], RecordSource]) -> None:
        self._source_of = source_of
        self._busy = threading.Lock()
        self._lock = threading.Lock()
        self._files: dict[int, _RankFile] = {}
        self._cells: dict[str, RankCells] = {}
        self._metrics: tuple[str, ...] = STEP_PARTS
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._files = {}
            self._cells = {name: RankCells() for name in self._metrics}
        self._next_look = 0.0

    @property
    def nbytes(self) -> int:
        """Memory used."""
        with self._lock:
            return sum(cells.nbytes for cells in self._cells.values())

    def read(self, ranks: Sequence[int], metric: str, buckets: int, wait_s: float) -> RankGrid:
        """Read new records of `ranks`, for at most about `wait_s`, and return one metric of all of them."""
        # While another thread reads, what there is so far is returned.
        if self._busy.acquire(blocking=False):
            try:
                if metric not in self._metrics:
                    self._metrics = (*self._metrics, metric)
                    self._forget()
                self._read_on(ranks, time.perf_counter() + wait_s)
            finally:
                self._busy.release()
        with self._lock:
            cells = self._cells.get(metric)
            grid = cells.grid(metric, buckets) if cells is not None else RankGrid(metric=metric)
            return replace(grid, fraction_read=self._fraction(ranks))

    def _fraction(self, ranks: Sequence[int]) -> float:
        done = sum(file.cursor.offset for file in self._files.values())
        left = sum(file.pending for file in self._files.values())
        # A file that was not opened yet counts like the ones that were.
        opened = sum(file.cursor.offset > 0 or not file.pending for file in self._files.values())
        share = done / (done + left) if done + left else 1.0
        return share * min(1.0, opened / len(ranks)) if ranks else 1.0

    def _read_on(self, ranks: Sequence[int], until: float) -> None:
        began = time.perf_counter()
        if began < self._next_look and len(self._files) >= len(ranks):
            return
        # Before the lock is taken: a store takes its own, and asks for `nbytes` while it holds that.
        sources = {rank: self._source_of(rank) for rank in ranks}
        if any(self._files[rank].source != source for rank, source in sources.items() if rank in self._files):
            # A rank moved to another node; what its old file had cannot be subtracted from the maxima.
            self._forget()
        with self._lock:
            for rank, source in sources.items():
                if rank not in self._files:
                    self._files[rank] = _RankFile(source)
        # A block of each in turn, the least read first: a part of every rank says more than all of a few.
        waiting = sorted(ranks, key=lambda rank: self._files[rank].cursor.offset)
        while waiting:
            more = []
            for number, rank in enumerate(waiting, 1):
                if self._read_block(rank):
                    more.append(rank)
                if time.perf_counter() >= until and (more or number < len(waiting)):
                    return
            waiting = more
        ended = time.perf_counter()
        self._next_look = ended + _LOOK_EVERY_S + 5 * (ended - began)

    def _read_block(self, rank: int) -> bool:
        """Read one block of a rank's file and return whether there is more."""
        file = self._files.get(rank)
        if file is None:
            # Forgotten just now, because another file was replaced.
            return False
        try:
            block = file.source.read_block(file.cursor, max_bytes=_BLOCK_BYTES)
        except OSError:
            # A missing or broken file has no values; the page's header shows why if it is the run's own.
            file.pending = 0
            return False
        if block.replaced and file.cursor.offset:
            # What the old file had cannot be subtracted from the maxima.
            self._forget()
            return False
        has_moved = block.cursor.offset > file.cursor.offset
        parsed = parse_block(block)
        with self._lock:
            for name in self._metrics:
                if name in parsed.metrics:
                    rows, values = parsed.metrics[name]
                    self._cells[name].add(rank, parsed.step[rows], values)
            file.cursor = block.cursor
            # If nothing moved there is only an incomplete line.
            file.pending = block.pending_bytes if has_moved else 0
        return has_moved and block.pending_bytes > 0
