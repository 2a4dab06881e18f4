"""The input and the result of each part of the dashboard benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import Claim

COLUMNS = ("what", "median", "each round")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly to measure."""

    records: int = 1_000_000
    rounds: int = 7
    refreshes: int = 24
    list_rounds: int = 5


QUICK = Plan(records=100_000, rounds=1, refreshes=4, list_rounds=2)


@dataclass(slots=True)
class Part:
    """Rows, figures, claims and notes of one part."""

    rows: list[list[str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_ratio(self, what: str, values: Sequence[float], base: Sequence[float], limit: float) -> None:
        """Add a row and a claim for `values` as multiples of `base`, measured in the same rounds."""
        ratios = [value / one for value, one in zip(values, base, strict=True)]
        text = f"{what}, against an empty page"
        self.claim(text, self.add(text, ratios, "x"), limit, "x")

    def claim(self, text: str, measured: float, limit: float, unit: str) -> None:
        """Add a target."""
        self.claims.append(Claim(text=text, measured=measured, limit=limit, unit=unit))

    def add(self, what: str, values: Sequence[float], unit: str) -> float:
        """Add a row for `values` and return their median."""
        middle = statistics.median(values)
        # For a long series, show only its range.
        each = values if len(values) <= 5 else (min(values), max(values))
        between = " " if len(values) <= 5 else " … "
        self.rows.append([what, f"{_short(middle)} {unit}", between.join(_short(value) for value in each)])
        return middle


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
