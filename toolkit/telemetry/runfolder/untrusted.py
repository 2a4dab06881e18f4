"""Numbers, texts and mappings out of JSON that anyone may have written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeGuard

from toolkit.telemetry.runfolder.safefile import open_regular

MAX_DEPTH: Final = 32
"""The parser accepts a thousand levels, at which code that shows or writes them fails."""
LARGEST_WHOLE: Final = 2**53
"""From here on a double, and so every reader in JavaScript, cannot distinguish two integers."""

# Control characters, lone surrogates, and marks that reverse the text direction.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` with unprintable characters replaced by �; newlines and tabs stay."""
    return _UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a number, NaN and infinity included; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_in(value: object) -> float | None:
    """Return `value` as a float; None if it is not a number, or an integer beyond every float."""
    if not is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def finite_in(value: object) -> float | None:
    """Return `value` as a finite float; None if it is not one."""
    number = number_in(value)
    return number if number is not None and math.isfinite(number) else None


def whole_in(value: object) -> int | None:
    """Return `value` if it is an integer that a double represents exactly, else None."""
    return value if type(value) is int and -LARGEST_WHOLE < value < LARGEST_WHOLE else None


def texts_in(value: object) -> list[str]:
    """Return the texts in a list; none if `value` is not a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, (list, tuple)) else []


def mapping_in(value: object) -> dict[str, Any]:
    """Return `value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings_in(value: object) -> list[dict[str, Any]]:
    """Return the mappings in a list; none if `value` is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def leaves(
    value: object, *, depth: int, items: Callable[[Sequence[Any]], Sequence[Any]] = lambda _: ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield path and value of all that nested mappings hold, in their order and without recursion.

    `items` returns what is looked at of a list, each under its number. What is empty, or more than `depth` levels down,
    is a value itself.
    """
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        inside: list[tuple[str | int, Any]] = []
        if isinstance(value, Mapping):
            inside = [(str(key), item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            inside = [*enumerate(items(value))]
        if inside and len(path) < depth:
            waiting += [((*path, key), item) for key, item in reversed(inside)]
        elif path:
            yield path, value


def read_object(
    path: Path, max_bytes: int, invalid: type[ValueError], *, only_name: bool = False
) -> dict[str, Any]:
    """Return the JSON object in the file at `path`; `only_name` as in `open_regular`.

    Raises:
        OSError: it cannot be read.
        ValueError: of the type `invalid`: it is too large, or is not one object.
    """
    with os.fdopen(open_regular(path, only_name=only_name), "rb") as file:
        data = file.read(max_bytes + 1)
    return parse_object(data, str(path), max_bytes, invalid)


def parse_object(data: bytes, name: str, max_bytes: int, invalid: type[ValueError]) -> dict[str, Any]:
    """Return the JSON object in `data`, the content of the file called `name`.

    Raises:
        ValueError: of the type `invalid`: it is too large, or is not one object.
    """
    # Not at the top: a program of ours that lacks packages says which, and needs this file for that.
    import orjson

    if len(data) > max_bytes:
        raise invalid(f"{name} is larger than {max_bytes} bytes")
    try:
        mapping = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid(f"{name} is not JSON: {error}") from error
    if not isinstance(mapping, dict):
        raise invalid(f"{name} holds a {type(mapping).__name__}, not an object")
    if depth_of(mapping) > MAX_DEPTH:
        raise invalid(f"{name} is nested too deeply")
    return mapping


def depth_of(value: Any) -> int:
    """Return how deep the containers in `value` are nested, up to the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, (dict, list, tuple))
        ]
    return depth
