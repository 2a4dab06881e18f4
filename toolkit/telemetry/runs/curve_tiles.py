"""What a store answers about a curve in tiles: a chart asks for the pieces it lacks, at the level it draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FACTOR: Final = 4
"""A bucket of level k has so many of level k - 1; level 0 are the logged points."""
TILE: Final = 512
"""Buckets of a tile."""
FIT: Final = 800
"""Buckets of a whole curve, where a question does not say how many."""
AXES: Final = ("step", "time", "elapsed", "epoch", "progress")
METRIC_AXIS: Final = "metric:"
"""Before the name of the metric that is the x axis: its last known value at each record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileQuery:
    """Which part of a curve is asked for: all of it, some tiles, or what is new."""

    fit: int = FIT
    """With neither tiles nor `after`: the whole curve, in at most so many buckets."""
    tiles: tuple[tuple[int, int, int], ...] | None = None
    """Piece, level and number of each tile."""
    after: tuple[int, ...] | None = None
    """How many points of each piece are known already."""
    version: str = ""
    """Which curve the other fields are about; of a curve that has changed since, all is answered."""
    times: bool = False
    """Whether the wall times are wanted as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive points of one session that all count, or that a later session all superseded."""

    session: int
    is_superseded: bool
    points: int
    first_x: float
    last_x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive buckets of one level of a piece."""

    piece: int
    level: int
    first: int
    """The number of its first bucket."""
    x: npt.NDArray[np.float64]
    """Of the first point of each bucket."""
    values: tuple[npt.NDArray[np.floating], ...]
    """Level 0: the logged values. Else minimum, maximum and mean of the finite ones, NaN where there is none."""
    weight: npt.NDArray[np.float32]
    """The steps of each bucket: those of its records with a finite value, and those folded into them."""
    bad: npt.NDArray[np.uint32] | None = None
    """How many values of each bucket are not finite; None at level 0."""
    time: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteRun:
    """Consecutive points that are all NaN, or all the same infinity."""

    kind: Literal["NaN", "Infinity", "-Infinity"]
    first_x: float
    last_x: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteRange:
    """Two or more consecutive points of which none is a number."""

    first_x: float
    last_x: float
    kinds: Mapping[str, int]
    """How many of them are NaN, Infinity and -Infinity."""

    @property
    def count(self) -> int:
        """How many points it has."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTiles:
    """One curve, as far as it was asked for."""

    version: str
    """Changes when its pieces change in another way than growing at their end."""
    pieces: tuple[Piece, ...] = ()
    """In the order of the file."""
    smooth: bool = False
    """Whether smoothing hides noise and nothing else."""
    low: float | None = None
    high: float | None = None
    non_finite: tuple[NonFiniteRun, ...] | None = None
    """None where it was not asked for: with the whole curve, or new points of which some are not finite."""
    ranges: tuple[NonFiniteRange, ...] | None = None
    blocks: tuple[Block, ...] = ()
    computed: float = 1.0
    """How much of a formula was computed before the deadline of the answer; the next question continues."""
    problem: str | None = None
    """Why there is less than was asked for, as a sentence."""
