"""A benchmark's printed report and its JSON."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "build" / "bench"
"""The last run of each benchmark, a file each; `python -m benchmarks.figures` copies full ones into the documents."""

_PACKAGES = ("orjson", "torch", "trackio", "wandb", "tensorboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A target of the project and its measured value."""

    text: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False
    too_noisy: bool = False
    """The machine was too busy to decide."""

    @property
    def verdict(self) -> str:
        """Whether the target was reached: held, missed or undecided."""
        if self.too_noisy:
            return "undecided"
        reached = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "held" if reached else "missed"

    def __str__(self) -> str:
        wanted = f"{'at least' if self.at_least else 'at most'} {self.limit:g}{self.unit}"
        return f"{self.verdict.upper():9}  {self.text}: {self.measured:.3g}{self.unit} ({wanted})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a benchmark: printed rows and their claims."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: dict[str, Any]
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()

    def show(self) -> None:
        """Print the table, the notes and the claims."""
        print(f"\n{self.title}\n")
        print(_aligned([self.columns, *self.rows]))
        for note in self.notes:
            print(f"  {note}")
        for claim in self.claims:
            print(f"  {claim}")
        sys.stdout.flush()

    def save(self, *, quotable: bool) -> None:
        """Write the figures to `build/bench/<name>.json`, unless nothing was measured."""
        if not self.rows:
            return
        RESULTS.mkdir(parents=True, exist_ok=True)
        claims = [{**asdict(claim), "verdict": claim.verdict} for claim in self.claims]
        found = {
            "measured": time.strftime("%Y-%m-%d"),
            "quotable": quotable,
            "machine": machine(),
            **asdict(self),
            "claims": claims,
        }
        text = json.dumps(found, indent=1, ensure_ascii=False)
        (RESULTS / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Describe the machine for readers of the figures, without identifying it."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of `values` are below."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of `values` and the two quartiles."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def interval_of_median(values: Sequence[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, by resampling."""
    draw = random.Random(0)
    medians = [statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples)]
    return percentile(medians, 0.025), percentile(medians, 0.975)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  "
        + row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    return "\n".join([lines[0], "  " + "-" * (len(lines[0]) - 2), *lines[1:]])
