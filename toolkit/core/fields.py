"""Read a frozen dataclass from a mapping, naming the full dotted key of whatever is wrong."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


class ConfigError(Exception):
    """The configuration is wrong; the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    one_of: tuple[str, ...] = ()


def limited(
    default: Any = MISSING,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    one_of: tuple[str, ...] = (),
) -> Any:
    """Declare a dataclass field whose value must keep to these limits; without a default it must be given."""
    limits = _Limits(at_least=at_least, at_most=at_most, above=above, one_of=one_of)
    return field(default=default, metadata={"limits": limits})


def read_fields(cls: type[_T], value: object, key: str) -> _T:
    """Build `cls` from the mapping `value`, found at the dotted `key`.

    Raises:
        ConfigError: a key is unknown or missing, or a value is not what its field allows.
    """
    if value is None:
        value = {}  # YAML gives None for a section with nothing in it
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a mapping, got {value!r}")
    known = {item.name: item for item in fields(cast(Any, cls))}
    for name in value:
        if name not in known:
            raise ConfigError(
                f"{key}.{name} is not a known key{_closest(str(name), known)}; known: {', '.join(known)}"
            )
    hints = get_type_hints(cls)
    read = {}
    for name, item in known.items():
        if name in value:
            limits = item.metadata.get("limits", _Limits())
            read[name] = _read(hints[name], value[name], f"{key}.{name}", limits)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(
                f"{key}.{name} is missing: {_expected(hints[name], item.metadata.get('limits'))}"
            )
    return cls(**read)


def _read(hint: Any, value: object, key: str, limits: _Limits) -> object:
    if hint is Any:
        return value
    if get_origin(hint) in (types.UnionType, Union):
        if value is None and type(None) in get_args(hint):
            return None
        return _read(_without_none(hint), value, key, limits)
    if is_dataclass(hint) and isinstance(hint, type):
        return read_fields(hint, value, key)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{key} must be a list, got {value!r}")
        of = get_args(hint)[0]
        return tuple(_read(of, item, f"{key}[{place}]", limits) for place, item in enumerate(value))
    converted = _convert(hint, value)
    if converted is None or not _within(converted, limits):
        raise ConfigError(
            f"{key} must be {_expected(hint, limits)}, got {value!r}{_guess(hint, value, limits)}"
        )
    return converted


def _convert(hint: Any, value: object) -> object:
    """Return `value` as the type `hint`, or None if it is something else."""
    if get_origin(hint) is Literal:
        return value if value in get_args(hint) else None
    if hint is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if hint is float:
        return _as_float(value)
    return value if isinstance(value, hint) else None


def _as_float(value: object) -> float | None:
    # YAML 1.1 reads 1e-4 as a text, because it has no dot.
    if isinstance(value, (int, float, str)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None
    return None


def _within(value: object, limits: _Limits) -> bool:
    if isinstance(value, str):
        return not limits.one_of or value in limits.one_of
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return limits.at_least <= value <= limits.at_most and value > limits.above
    return True


def _expected(hint: Any, limits: _Limits | None) -> str:
    limits = limits or _Limits()
    choices = get_args(hint) if get_origin(hint) is Literal else limits.one_of
    if choices:
        return "one of " + ", ".join(str(choice) for choice in choices)
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (
            ("at least", limits.at_least),
            ("above", limits.above),
            ("at most", limits.at_most),
        )
        if math.isfinite(bound)
    ]
    return " ".join((names.get(_without_none(hint), "a list or mapping"), " and ".join(bounds))).strip()


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (types.UnionType, Union):
        return next(option for option in get_args(hint) if option is not type(None))
    return hint


def _guess(hint: Any, value: object, limits: _Limits) -> str:
    choices = [str(choice) for choice in (get_args(hint) if get_origin(hint) is Literal else limits.one_of)]
    return _closest(value, choices) if isinstance(value, str) else ""


def _closest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
