"""Flattens configurations and compares them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from toolkit.telemetry.runfolder.untrusted import is_number, leaves

MAX_DEPTH = 12
MAX_KEYS = 5_000

CUT: Final = "…"
"""Replaces values nested too deeply, and is the last key of a mapping with too many."""


class Missing(enum.Enum):
    """The type of `MISSING`."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""The value of a key that a configuration does not have; not the same as null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One key whose value differs, and that value in each configuration, or `MISSING`."""

    key: str
    values: tuple[Any, ...]


def flatten(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return `mapping` on one level, with keys such as `a.b` and `a[0]`, in its own order.

    A key that contains a dot or a bracket is quoted, so that keys stay unique. An empty list or mapping is a value.
    At most `MAX_KEYS` keys and `MAX_DEPTH` levels are included.
    """
    flat: dict[str, Any] = {}
    for path, value in leaves(mapping, depth=MAX_DEPTH, items=list):
        if len(flat) == MAX_KEYS:
            flat[CUT] = f"more than {MAX_KEYS} keys"
            break
        flat[_name_of(path)] = CUT if value and isinstance(value, (Mapping, list, tuple)) else value
    return flat


def diff(configs: Sequence[Mapping[str, Any]]) -> list[DiffRow]:
    """Return the keys whose values differ between `configs`, in the order in which the keys first appear.

    Values are compared by meaning: 1 is 1.0 and NaN is NaN, but 1 is neither True nor "1".
    """
    flats = [flatten(config) for config in configs]
    rows = []
    for key in dict.fromkeys(key for flat in flats for key in flat):
        values = tuple(flat.get(key, MISSING) for flat in flats)
        if not all(_same(values[0], value) for value in values[1:]):
            rows.append(DiffRow(key=key, values=values))
    return rows


def to_yaml(mapping: Mapping[str, Any]) -> str:
    """Return `mapping`, as a record has it, as YAML."""
    return yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=100)


def _name_of(path: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_part(part)}" for part in path).removeprefix(
        "."
    )


def _part(text: str) -> str:
    if text and not any(character in '.[]"' for character in text) and text != CUT:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _same(a: Any, b: Any) -> bool:
    if is_number(a) and is_number(b):
        return bool(a == b) or (_is_nan(a) and _is_nan(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return list(a) == list(b)
    return type(a) is type(b) and bool(a == b)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
