"""A benchmark's printed report and its JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
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
        # Not for the children that import this: it would count as already imported by a logger.
        import pandas as pd

        print(f"\n{self.title}\n")
        if self.rows:
            print(pd.DataFrame([*map(list, self.rows)], columns=list(self.columns)).to_string(index=False))
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


SLOWDOWN = "slowdown: median over pairs with and without the logger, then the two quartiles"
# Beyond this, "no difference" would only mean that the machine was busy.
_WIDEST_MARGIN = 0.01


def slowdown(ratios: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles of slowdowns, as figures."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"slowdown": middle, "slowdown_q1": low, "slowdown_q3": high}


def slowdown_cells(found: Mapping[str, float]) -> list[str]:
    """Return the two cells of a table with a slowdown."""
    return [f"{found['slowdown']:+.2%}", f"{found['slowdown_q1']:+.2%} … {found['slowdown_q3']:+.2%}"]


def no_slower(text: str, ours: Mapping[str, float], noise: Mapping[str, float]) -> Claim:
    """Return the target to be no slower than two equal loops without logging differ, as far as they tell."""
    # Two medians are never equal: the question is whether the difference exceeds the noise.
    margin = (noise["slowdown_q3"] - noise["slowdown_q1"]) / 2
    return Claim(
        text=f"{text}, against half the spread of two loops without logging",
        measured=round(ours["slowdown"] * 100, 3),
        limit=round(margin * 100, 3),
        unit=" %",
        too_noisy=margin > _WIDEST_MARGIN,
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
