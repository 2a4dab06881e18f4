"""The input and the result of each part of the dashboard benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import Claim

COLUMNS = ("what", "median", "each round", "x our cold opening", "x our warm opening")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly to measure."""

    records: int = 1_000_000
    tensorboard_records: int = 100_000
    rounds: int = 3
    refreshes: int = 60
    list_rounds: int = 5


QUICK = Plan(records=100_000, tensorboard_records=5_000, rounds=1, refreshes=10, list_rounds=2)


@dataclass(slots=True)
class Part:
    """Rows, figures, claims and notes of one part."""

    rows: list[list[str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, values: Sequence[float], unit: str, openings: Openings | None = None) -> float:
        """Add a row for `values` and return their median; `openings` is what to compare with."""
        middle = statistics.median(values)
        ratios = ["", ""]
        if openings is not None:
            ratios = [f"{middle / ours:.1f}" for ours in (openings.cold_s, openings.warm_s)]
        # For a long series, show only its range.
        each = values if len(values) <= 5 else (min(values), max(values))
        between = " " if len(values) <= 5 else " … "
        self.rows.append(
            [what, f"{_short(middle)} {unit}", between.join(_short(value) for value in each), *ratios]
        )
        return middle


@dataclass(frozen=True, slots=True)
class Openings:
    """How long the dashboard takes to show a whole run: cold, and with cached columns."""

    cold_s: float
    warm_s: float
    read_cold_s: float
    """The same without a page: reading the run and building its curves, in a fresh process."""
    read_warm_s: float


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
