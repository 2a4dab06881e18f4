"""Arguments of a call that are not where they belong, and what they mean there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeGuard

from toolkit.runfolder.records import NAN_INF_DETECTED
from toolkit.telemetry.records.folded_metrics import WELL_KNOWN


def fields_by_name(
    record: Mapping[str, Any], scalars: Mapping[str, Any], *, is_needed: bool
) -> dict[str, Any] | None:
    """Return the arguments of a `log_step` by name; None if they are in their places, unless `is_needed`.

    Metrics may be a mapping in the place of the loss, or as in ai-toolkit's telemetry fork, which logs
    `log_step(global_step, epoch, metrics)`.
    """
    given = {name: record[name] for name in WELL_KNOWN if name in record}
    loss, by_position, by_name = given.get("train_loss"), given.get("lr"), scalars.get("metrics")
    metrics = next((found for found in (by_position, by_name) if _are_metrics(found)), None)
    if type(loss) is dict:
        metrics = given.pop("train_loss")
    elif metrics is not None and "train_loss" in given:
        given["epoch"] = given.pop("train_loss")
    if metrics is None and not is_needed:
        return None
    if record[NAN_INF_DETECTED] is not False:
        given[NAN_INF_DETECTED] = record[NAN_INF_DETECTED]
    fields = {**given, **scalars}
    if metrics is not None:
        fields = {name: value for name, value in fields.items() if value is not metrics} | metrics
        for name in ("train_loss", "lr", "metrics"):
            # Else it would be taken for metrics again.
            if type(fields.get(name)) is dict:
                fields[f"x_{name}"] = fields.pop(name)
    return {name: value for name, value in fields.items() if type(name) is str and name != "global_step"}


def _are_metrics(given: Any) -> TypeGuard[dict[str, Any]]:
    return type(given) is dict and "train_loss" in given


def spread(metrics: Any) -> Mapping[str, Any]:
    """Return metrics that came as one argument; something else of that name is a metric itself."""
    if metrics is None or isinstance(metrics, Mapping):
        return metrics or {}
    return {"metrics": metrics}


def not_the_step(step: Any, other: Any, kinds: Any) -> tuple[Any, Any]:
    """Return a step and the argument after it: what is of its kind, and comes alone, is not the step."""
    return (None, step) if other is None and isinstance(step, kinds) else (step, other)


def event_name(event: Any) -> str:
    """Return what to call an event; a thing that is no name is not asked for its text: a tensor's waits for its GPU."""
    if isinstance(event, str):
        return str.__str__(event)
    if isinstance(event, (int, float, Enum)):
        return str(event)
    return f"<{type(event).__name__}>"
