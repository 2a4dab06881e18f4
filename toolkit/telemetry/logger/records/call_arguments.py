"""Arguments of a call that are not where they belong, and what they mean there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from toolkit.telemetry.logger.records.folded_metrics import WELL_KNOWN
from toolkit.telemetry.runfolder.records import NAN_INF_DETECTED


def fields_by_name(record: Mapping[str, Any], scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `log_step` by name; metrics may be a mapping in the place of the loss."""
    given = {name: record[name] for name in WELL_KNOWN if name in record}
    metrics = given.pop("train_loss") if type(given.get("train_loss")) is dict else {}
    if record[NAN_INF_DETECTED] is not False:
        given[NAN_INF_DETECTED] = record[NAN_INF_DETECTED]
    fields = {**given, **scalars, **metrics}
    if type(fields.get("train_loss")) is dict:
        # Else it would be taken for metrics again.
        fields["x_train_loss"] = fields.pop("train_loss")
    return {name: value for name, value in fields.items() if type(name) is str and name != "global_step"}


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
