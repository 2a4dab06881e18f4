"""The project's goals for the detectors, and whether the cross-validated figures meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.diagnose_eval.cross_validation import mean_of
from benchmarks.diagnose_eval.markdown import table
from benchmarks.diagnose_eval.scores import INSTABILITY

FEWEST = 3
FEW = 10
"""Fewer events say nothing, or little, about a ratio."""

GOALS: tuple[tuple[str, float | None, float, bool], ...] = (
    ("nan", 1.0, 1.0, False),
    (INSTABILITY, 0.95, 0.88, False),
    ("divergence", None, 0.8, False),
    ("overfit", 0.88, 0.88, True),
    ("exploding_grad", 0.9, 0.9, False),
    ("val_spike", 0.8, 0.8, False),
    ("plateau", 0.75, 0.7, True),
    ("throughput_drop", None, 0.75, False),
    ("low_gpu_util", None, 0.66, False),
)
"""A kind, the precision and recall to reach, and whether runs are counted instead of events."""
FALSE_ALARMS_PER_CLEAN_RUN = 0.02

BEFORE = {
    "nan": "6 of 7, 0",
    INSTABILITY: "22 of 26, 1",
    "divergence": "6 of 6, 1",
    "overfit": "8 of 10, 2",
    "exploding_grad": "no event",
    "val_spike": "2 of 3, 0",
    "plateau": "5 of 9, 2",
    "throughput_drop": "no event",
    "low_gpu_util": "2 of 2, 0",
}
"""What the detectors reached on `dev2` before any of them had been changed with its curves in sight."""


def section(results: Mapping[str, Any]) -> list[str]:
    """Return the goals as a table in Markdown."""
    kinds = results["cross_validation"]["kinds"]
    rows = [_row(goal, kinds[goal[0]]) for goal in GOALS if goal[0] in kinds]
    clean = [split["ours"]["clean"] for split in results["splits"].values()]
    alarms, runs = sum(of["alarms"] for of in clean), sum(of["runs"] for of in clean)
    rate = alarms / max(1, runs)
    rows.append(
        [
            "false alarms per clean run",
            f"≤ {FALSE_ALARMS_PER_CLEAN_RUN:g}",
            f"{rate:.2f} ({alarms} on {runs} runs)",
            "0.00 (0 on 30 runs)",
            "met" if rate <= FALSE_ALARMS_PER_CLEAN_RUN else "**not met**",
        ]
    )
    return [
        "### Goals",
        (
            "Precision and recall, cross-validated on both sets; the fourth column is `dev2` while no detector had "
            "seen it, found of events, false. detectors.md says what is missed."
        ),
        table(["kind", "goal", "ours, cross-validated", "unseen", "verdict"], rows),
    ]


def _row(goal: tuple[str, float | None, float, bool], of: Mapping[str, Any]) -> list[str]:
    kind, precision, recall, of_runs = goal
    totals = [tuple(one[3:] if of_runs else one[:3]) for one in of["totals"]]
    reached = [mean_of(totals, name) for name in ("precision", "recall")]
    is_met = (precision is None or (reached[0] or 0.0) >= precision) and (reached[1] or 0.0) >= recall
    events = totals[0][0]
    verdict = "undecided" if events < FEWEST else "met" if is_met else "**not met**"
    if events < FEW:
        verdict += f"; {_number(events, 'event', 'events')}"
        verdict += f" from {_number(of['repositories'], 'repository', 'repositories')}"
    wanted = f"{precision:.2f} / {recall:.2f}" if precision is not None else f"recall {recall:.2f}"
    return [
        f"`{kind}`" + (", runs" if of_runs else ""),
        wanted,
        f"{_text(reached)} ({_counts(totals)})",
        BEFORE[kind],
        verdict,
    ]


def _number(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _text(ratios: Sequence[float | None]) -> str:
    return " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)


def _counts(totals: Sequence[tuple[int, ...]]) -> str:
    return "; ".join(dict.fromkeys(f"{found} of {events}, {false}" for events, found, false in totals))
