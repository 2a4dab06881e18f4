"""The numbers of a record that other tools can show, and the attributes of a span."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.runfolder import records as kinds
from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.metrics import NOT_METRICS, as_float
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.untrusted import MAX_DEPTH, leaves

_PREFIXES: Final = {kinds.STEP: "", kinds.EVAL: "eval/", kinds.EPOCH: "epoch/", kinds.SYSTEM: "system/"}
_NOT_METRICS: Final = NOT_METRICS - {"epoch"}


def scalars_of(record: Record) -> dict[str, float]:
    """Return the metrics of a step, eval, epoch or system record; other kinds of record have none.

    A step's metrics keep their names, the others go under `eval/`, `epoch/` and `system/`. A metric that was not
    finite comes back as the NaN or infinity it was; a boolean is 0 or 1, an integer beyond a double NaN.
    """
    event = record.get("event")
    prefix = _PREFIXES.get(event) if isinstance(event, str) else None
    if prefix is None:
        return {}
    return {
        prefix + name.removeprefix(prefix): as_float(value)
        for name, value in with_non_finite(record).items()
        # The number of the epoch is not a metric of it.
        if isinstance(value, (int, float)) and name not in _NOT_METRICS and not (prefix and name == "epoch")
    }


def without_envelope(record: Record) -> dict[str, object]:
    """Return the fields of a record without those that every record has; of the packages only well-known ones."""
    fields = {name: value for name, value in record.items() if name not in kinds.ENVELOPE}
    return {**fields, "packages": kinds.well_known(fields["packages"])} if "packages" in fields else fields


Plain = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]

_LARGEST_WHOLE: Final = 2**63 - 1


def plain_attributes(attributes: Any) -> dict[str, Plain]:
    """Return `attributes` flattened to dotted names, without nulls.

    A list has one type throughout, as OpenTelemetry and OneLogger require; a mixed one becomes a list of strings.
    """
    plain: dict[str, Plain] = {}
    for path, value in leaves(attributes, depth=MAX_DEPTH):
        name = ".".join(map(str, path))
        if isinstance(value, list | tuple):
            plain[name] = _list(value)
        elif value is not None and not isinstance(value, Mapping):
            plain[name] = _scalar(value)
    return plain


def _list(values: list[Any] | tuple[Any, ...]) -> Plain:
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return [float(value) for value in values]
    if len(kinds) == 1 and kinds <= {str, bool, int, float}:
        found: Any = [_scalar(value) for value in values]
        return found  # type: ignore[no-any-return]
    return [str(value) for value in values]


def _scalar(value: Any) -> str | bool | int | float:
    if isinstance(value, int) and not -_LARGEST_WHOLE <= value <= _LARGEST_WHOLE:
        return float(value)
    return value if isinstance(value, str | bool | int | float) else str(value)
