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
    """One key and its value in each configuration, or `MISSING`."""

    key: str
    values: tuple[Any, ...]
    differs: bool


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


def diff(configs: Sequence[Mapping[str, Any]], *, only_differing: bool = False) -> list[DiffRow]:
    """Return every key of `configs` with its value in each, in the order in which the keys first appear.

    Values are compared by meaning: 1 is 1.0 and NaN is NaN, but 1 is neither True nor "1".
    """
    flats = [flatten(config) for config in configs]
    rows = []
    for key in dict.fromkeys(key for flat in flats for key in flat):
        values = tuple(flat.get(key, MISSING) for flat in flats)
        differs = not all(_same(values[0], value) for value in values[1:])
        if differs or not only_differing:
            rows.append(DiffRow(key=key, values=values, differs=differs))
    return rows


def to_yaml(mapping: Mapping[str, Any]) -> str:
    """Return `mapping` as YAML that `yaml.safe_load` accepts; other objects become text."""
    return yaml.dump(_plain(mapping, 1), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """A safe dumper whose strings survive a round trip."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Without double quotes PyYAML writes these Unicode line breaks unescaped and reads them as a space.
        style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


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


def _plain(value: Any, depth: int) -> Any:
    # PyYAML would write a list that occurs twice as an anchor, and rejects unknown types.
    if isinstance(value, (Mapping, list, tuple)) and depth > MAX_DEPTH + 1:
        return CUT
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            # A numpy float is a float, but not to PyYAML.
            return kind(value)
    return None if value is None else str(value)
