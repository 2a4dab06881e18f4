"""Detection delay: from when an event is visible until the detectors report it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.diagnose_eval.corpus import Rows
from benchmarks.diagnose_eval.ours import Examined
from benchmarks.diagnose_eval.scores import FAMILIES
from toolkit.telemetry.diagnostics.robust import median

EVALS_AFTER_THE_BEST = 4
RISE = 0.1
"""An overfit is visible after this many evaluations past the best, with their median this far above it."""

ROWS_INSIDE = 20
SHARE_INSIDE = 0.5
"""A plateau is visible after this many records, if they are this share of all records so far."""

_SIGNALS = {"overfit": "val_loss", "val_spike": "val_loss", "exploding_grad": "grad_norm", "nan": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """One event that was found."""

    records: int
    """Records of its metric, from when it is visible until it was reported."""
    share: float
    """The same in steps, as a share of the run."""


def delays(
    labels: Sequence[Mapping[str, Any]], rows: Rows, examined: Examined
) -> dict[str, list[Delay | None]]:
    """Return the delay of each found sure event, by kind; None if it is unknown when it became visible."""
    steps = sorted(row["global_step"] for row in rows)
    span = max(1, steps[-1] - steps[0])
    distinct = sorted(set(steps))
    gaps = [later - earlier for earlier, later in itertools.pairwise(distinct)]
    early = max(2 * median(gaps) if gaps else 2, 0.02 * span)
    found: dict[str, list[Delay | None]] = {}
    for label in labels:
        if label["certainty"] != "sure":
            continue
        for family, kinds in FAMILIES.items():
            if label["kind"] not in kinds:
                continue
            reported = _reported_at(label, kinds, early, 0.05 * span, examined)
            if reported is None:
                continue
            seen = seen_from(label, rows)
            found.setdefault(family, []).append(
                None if seen is None else _between(seen, reported, label, rows, span)
            )
    return found


def seen_from(label: Mapping[str, Any], rows: Rows) -> int | None:
    """Return the step from which the event is visible in the records so far."""
    start = int(label["start_step"])
    if label["kind"] == "overfit":
        return _overfit_seen(start, rows)
    if label["kind"] == "plateau":
        return _plateau_seen(start, int(label["end_step"]), rows)
    return start


def _overfit_seen(start: int, rows: Rows) -> int | None:
    best = math.inf
    since: list[float] = []
    for row in rows:
        loss = row.get("val_loss")
        if loss is None or not math.isfinite(loss):
            continue
        if loss < best:
            best, since = loss, []
            continue
        since.append(loss)
        is_high = len(since) >= EVALS_AFTER_THE_BEST and median(since) >= best + RISE * abs(best)
        if is_high and row["global_step"] >= start:
            return int(row["global_step"])
    return None


def _plateau_seen(start: int, end: int, rows: Rows) -> int | None:
    logged = inside = 0
    for row in rows:
        if row.get("train_loss") is None:
            continue
        logged += 1
        inside += start <= row["global_step"] <= end
        if inside >= ROWS_INSIDE and inside >= SHARE_INSIDE * logged:
            return int(row["global_step"])
    return None


def _reported_at(
    label: Mapping[str, Any], kinds: Sequence[str], early: float, late: float, examined: Examined
) -> float | None:
    """Return the step at which the event was reported, its start if already open then; None if never."""
    first, last = label["start_step"] - early, label["end_step"] + late
    states: dict[str, bool] = {}
    for telling in examined.tellings:
        if telling.step < first:
            states[telling.finding.id] = telling.is_loud and telling.finding.kind in kinds
        elif telling.finding.kind in kinds and telling.is_loud and telling.finding.start_step <= last:
            return telling.step if not any(states.values()) else float(label["start_step"])
    return float(label["start_step"]) if any(states.values()) else None


def _between(seen: int, reported: float, label: Mapping[str, Any], rows: Rows, span: int) -> Delay:
    if reported <= seen:
        return Delay(records=0, share=0.0)
    name = _SIGNALS.get(label["kind"], "train_loss")
    records = {row["global_step"] for row in rows if name is None or row.get(name) is not None}
    if not any(seen < step <= reported for step in records):
        records = {row["global_step"] for row in rows}
    return Delay(records=sum(seen < step <= reported for step in records), share=(reported - seen) / span)
