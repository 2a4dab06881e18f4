"""The input and the result of each part of the dashboard benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """Rows, claims and notes."""

    rows: list[list[str]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, values: Sequence[float], unit: str, limit: float | None = None) -> None:
        """Add a row for `values`, and a target for their median."""
        middle = statistics.median(values)
        # For a long series, show only its range.
        each = values if len(values) <= 5 else (min(values), max(values))
        between = " " if len(values) <= 5 else " … "
        self.rows.append([what, f"{_short(middle)} {unit}", between.join(_short(value) for value in each)])
        if limit is not None:
            self.claims.append(Claim(text=what, measured=middle, limit=limit, unit=f" {unit}".rstrip()))

    def add_ratio(
        self, what: str, values: Sequence[float], base: Sequence[float], limit: float | None = None
    ) -> None:
        """Add a row for `values` as multiples of `base`, measured in the same rounds."""
        ratios = [value / one for value, one in zip(values, base, strict=True)]
        self.add(f"{what}, against an empty page", ratios, "x", limit)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
