"""The attributes of a span or an event for other tools: flat, and of plain types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Plain = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]

_LARGEST_WHOLE: Final = 2**63 - 1


def plain_attributes(attributes: Any, prefix: str = "") -> dict[str, Plain]:
    """Return `attributes` flattened to dotted names, without nulls.

    A list has one type throughout, as OpenTelemetry and OneLogger require; a mixed one becomes a list of strings.
    """
    plain: dict[str, Plain] = {}
    if not isinstance(attributes, Mapping):
        return plain
    for name, value in attributes.items():
        if isinstance(value, Mapping):
            plain.update(plain_attributes(value, f"{prefix}{name}."))
        elif isinstance(value, list | tuple):
            plain[f"{prefix}{name}"] = _list(value)
        elif value is not None:
            plain[f"{prefix}{name}"] = _scalar(value)
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
