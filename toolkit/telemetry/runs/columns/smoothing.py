"""Decides which metrics a chart may smooth; the browser smooths, in dashboard/components/curves/smooth.js."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from toolkit.telemetry.diagnostics.metric_aliases import LR, VAL_LOSS, signal_of
from toolkit.telemetry.runfolder.records import EPOCH, EVAL
from toolkit.telemetry.runs.store import Floats

FOLDED: Final = "steps_folded"
"""The metric that says how many steps a record covers."""
MOST_FOLDED: Final = 1e9

_WORDS: Final = re.compile(r"[a-z]+")
_EVALUATION: Final = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_SCHEDULE: Final = frozenset({"lr", "schedule", "scheduler", "warmup"})
_COUNTERS: Final = frozenset(
    {"epoch", "step", "global_step", "iteration", "steps_folded", "tokens", "num_tokens", "tokens_seen"}
)
_FIRST_LOOK: Final = 4096
_LEAST_NOISE: Final = 5e-4
"""Less noise than this fraction of the value range cannot be seen: such a curve is a schedule."""
_CONSTANT: Final = 1e-9


def may_be_smoothed(name: str, event: str, parts: list[Floats]) -> bool:
    """Return whether smoothing this metric hides noise and nothing else; `parts` are its values by session.

    Evaluations, learning rates, schedules, counters and constants are drawn as they were logged.
    """
    if event in (EVAL, EPOCH) or signal_of(name) in (LR, VAL_LOSS):
        return False
    lower = name.lower()
    words = set(_WORDS.findall(lower))
    if words & _EVALUATION or words & _SCHEDULE or {"learning", "rate"} <= words:
        return False
    if lower.rsplit("/", 1)[-1] in _COUNTERS:
        return False
    return any(_is_noisy(values) for values in parts)


def _is_noisy(values: Floats) -> bool:
    if len(values) < 3 or (_is_monotonic(values[:_FIRST_LOOK]) and _is_monotonic(values)):
        return False
    at = np.linspace(0, len(values) - 3, min(len(values) - 2, _FIRST_LOOK)).astype(np.int64)
    triples = np.stack([values[at], values[at + 1], values[at + 2]])
    triples = triples[:, np.isfinite(triples).all(axis=0)]
    if not triples.shape[1]:
        return False
    low, high = np.percentile(triples[0], (1, 99)).tolist()
    if high - low <= _CONSTANT * max(abs(low), abs(high)):
        # A few values differ from all others: an average would invent values between them.
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        bends = np.abs(triples[0] - 2.0 * triples[1] + triples[2])
    # Of many a noisy metric most values are equal: a fifth of them tells it from a schedule.
    return bool(np.percentile(bends, 80) > _LEAST_NOISE * (high - low))


def _is_monotonic(values: Floats) -> bool:
    finite = values[np.isfinite(values)]
    return bool((finite[1:] >= finite[:-1]).all() or (finite[1:] <= finite[:-1]).all())
