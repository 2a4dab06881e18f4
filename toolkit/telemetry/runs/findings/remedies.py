"""Remedies for a finding that a live run offers, and whether they helped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from toolkit.telemetry.diagnostics.catalogue import LOWER_LR, SAVE, SAVE_AND_STOP, STOP
from toolkit.telemetry.diagnostics.finding import Finding, declared_remedies
from toolkit.telemetry.runfolder.control import as_id
from toolkit.telemetry.runfolder.metrics import TRAIN_LOSSES, metric_direction
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, FINDING, Record
from toolkit.telemetry.runfolder.untrusted import finite_in
from toolkit.telemetry.runs.settings import setting_text
from toolkit.telemetry.runs.store import Floats, RunStore

RECORDS_COMPARED: Final = 20
"""Records before and after a change whose medians are compared."""

_ACTIONS: Final = {SAVE: "Save now", STOP: "Stop", SAVE_AND_STOP: "Save and stop"}
_FACTORS: Final = ("lr_scale", "lr_multiplier")
"""Knobs with a default of 1."""

_JUDGED_BY_LOSS: Final = frozenset({"lr_problem", "loss_scale"})
"""Kinds whose own metric is set by the change or changes anyway: the loss shows whether it helped."""

_SIGNIFICANT: Final = 0.05
_MAX_CHANGES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A request to the run, as a button."""

    label: str
    request: Mapping[str, Any]
    stops: bool = False
    """Whether it ends the run."""
    saves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change that the run applied after a finding, and its effect on a metric."""

    what: str
    step: int | None
    metric: str
    before: float | None
    """Median of the records before it; None if there are none."""
    after: float | None
    records_after: int
    verdict: str = ""
    """better, worse or same; empty while it is too early to say."""


def remedy_for(alert: Finding, control: Mapping[str, Any], lr_now: float | None = None) -> Offer | None:
    """Return the first remedy of the alert that the run has declared and that would change something.

    A learning-rate knob is halved within its bounds; `lr_now` is used if the knob has no value.
    """
    for declared in declared_remedies(alert.remedies, control):
        name = declared.name
        if declared.is_knob:
            offer = _halved(name, declared.about, lr_now) if name in LOWER_LR else None
            if offer is not None:
                return offer
        elif name in _ACTIONS:
            return Offer(
                label=_ACTIONS[name],
                request={"actions": (name,)},
                stops=name in (STOP, SAVE_AND_STOP),
                saves=name != STOP,
            )
    return None


def _halved(name: str, about: Mapping[str, Any], lr_now: float | None) -> Offer | None:
    if about.get("type") != "float" or about.get("choices") is not None:
        return None
    now = finite_in(about.get("value"))
    if now is None:
        now = 1.0 if name in _FACTORS else lr_now
    if now is None or now <= 0:
        return None
    low, high = finite_in(about.get("low")), finite_in(about.get("high"))
    half = now / 2
    new = half if low is None else max(half, low)
    new = new if high is None else min(new, high)
    if not new < now:
        return None
    word = "Halve" if new == half else "Lower"
    return Offer(
        label=f"{word} {name}: {setting_text(now)} → {setting_text(new)}",
        request={"knobs": {name: new}},
    )


def effects_on(store: RunStore, key: str, alert: Finding) -> list[Effect]:
    """Return the knob changes since the alert was noticed and their effects, newest first."""
    if alert.noticed_step is None:
        return []
    metric = _judged_by(store, key, alert)
    if metric is None:
        return []
    turned = [
        record
        for record in store.events(key, (CONTROL_CHANGE,), limit=50)
        if is_knob_change_after(record, alert.noticed_step)
    ]
    return [_effect(store, key, metric, record) for record in turned[:_MAX_CHANGES]]


def own_answer(store: RunStore, key: str, alert: Finding) -> Record | None:
    """Return the run's answer to the request that `on_finding` made for this alert."""
    wanted = as_id(f":{alert.id}")
    for record in store.events(key, (CONTROL_CHANGE,), limit=50):
        if record.get("source") == FINDING and str(record.get("id")).endswith(wanted):
            return record
    return None


def is_knob_change_after(record: Record, step: int) -> bool:
    """Return whether a record is a knob change at `step` or later."""
    at = record.get("global_step")
    return (
        record.get("status") in ("applied", "clamped")
        and bool(_knobs_in(record))
        and isinstance(at, int)
        and at >= step
        and isinstance(record.get("time"), (int, float))
    )


def _judged_by(store: RunStore, key: str, alert: Finding) -> str | None:
    names = {info.name for info in store.metrics(key)}
    candidates = TRAIN_LOSSES if alert.kind in _JUDGED_BY_LOSS else (alert.metric, *TRAIN_LOSSES)
    return next((name for name in candidates if name in names), None)


def _effect(store: RunStore, key: str, metric: str, record: Record) -> Effect:
    before, after = store.values_around(key, metric, float(record["time"]), RECORDS_COMPARED)
    effect = Effect(
        what=knob_changes_text(record),
        step=record.get("global_step"),
        metric=metric,
        before=_median(before),
        after=_median(after),
        records_after=len(after),
    )
    if len(after) < RECORDS_COMPARED or effect.before is None or effect.after is None:
        return effect
    return replace(effect, verdict=_verdict(metric, effect.before, effect.after))


def _verdict(metric: str, before: float, after: float) -> str:
    if not math.isfinite(after):
        return "worse" if math.isfinite(before) else "same"
    if not math.isfinite(before):
        return "better"
    if abs(after - before) <= _SIGNIFICANT * max(abs(before), 1e-300):
        return "same"
    return "better" if (after > before) == (metric_direction(metric) == "max") else "worse"


def _median(values: Floats) -> float | None:
    if not len(values):
        return None
    finite = values[np.isfinite(values)]
    # If most of them are NaN or infinite, so is the result.
    return float(np.median(finite)) if 2 * len(finite) > len(values) else math.nan


def knob_changes_text(record: Record) -> str:
    """Return the knob changes in a run's answer as text; empty if there are none."""
    parts = []
    for name, change in _knobs_in(record).items():
        old = f"{setting_text(change['old'])} → " if change.get("old") is not None else "→ "
        parts.append(f"{name} " + old + setting_text(change["new"]) if "new" in change else name)
    return ", ".join(parts)


def _knobs_in(record: Record) -> dict[str, dict[str, Any]]:
    """Return the knobs of an answer; a record has flat keys such as `knobs/lr_scale/old`."""
    found: dict[str, dict[str, Any]] = {}
    for field, value in record.items():
        kind, _, rest = field.partition("/")
        name, _, part = rest.rpartition("/")
        if kind == "knobs" and name and part in ("old", "new"):
            found.setdefault(name, {})[part] = value
    nested = record.get("knobs")
    for name, change in nested.items() if isinstance(nested, dict) else ():
        found.setdefault(str(name), dict(change) if isinstance(change, Mapping) else {})
    return found
