"""What an option may be, and the sentence that says so where it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

Check = Callable[[str, Any], None]
"""Called with an option's whole name and its value; raises `OptionsError` where the value is wrong."""

_LOGIN = re.compile(r"(://)[^\s/@'\"]{1,200}@")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


class OptionsError(ValueError):
    """The caller's configuration is wrong: the message names the key, its value and what is allowed."""


def shown(value: Any) -> str:
    """Return `value` as it stands in a message."""
    if isinstance(value, int) and value.bit_length() > 1000:
        # Python itself refuses to write out the longest of them.
        return f"an integer of {value.bit_length()} bits"
    if hasattr(type(value), "__torch_function__"):
        # To be written out, a tensor waits for its device; one that was freed takes the process along.
        return f"a {type(value).__name__}"
    # A login in an address is a secret, and a message may end up in anybody's log.
    return _LOGIN.sub(r"\1***@", repr(value)[:200])


def wrong(name: str, value: Any, allowed: str) -> OptionsError:
    """Return the error that says what `name` is and what it must be."""
    return OptionsError(f"{name} is {shown(value)}; it must be {allowed}")


def boolean(name: str, value: Any) -> None:
    """Require true or false."""
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")


def boolean_or(word: str) -> Check:
    """Return the check that a value is true, false or this word."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, bool) and value != word:
            raise wrong(name, value, f"true, false or {word!r}")

    return check


def text(name: str, value: Any) -> None:
    """Require a text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise wrong(name, value, "a text that is not empty")


def text_or_none(name: str, value: Any) -> None:
    """Require a text, or nothing."""
    if value is not None:
        text(name, value)


def tags(name: str, value: Any) -> None:
    """Require a tuple of texts."""
    if not isinstance(value, tuple) or not all(isinstance(tag, str) for tag in value):
        raise wrong(name, list(value) if isinstance(value, tuple) else value, "a list of texts")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Require a text or several, and return them."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
        raise wrong(name, list(value) if isinstance(value, tuple) else value, "a list of texts")
    return tuple(value)


def perf_tag(name: str, value: Any) -> None:
    """Require a text, several, or nothing."""
    if value is not None and not (isinstance(value, tuple) and not value):
        texts(name, value)


def file_or_flag(name: str, value: Any) -> None:
    """Require true, false or the name of a file."""
    if not isinstance(value, bool):
        text(name, value)


def address(name: str, value: Any) -> None:
    """Require an address for HTTP, or nothing."""
    if value is not None:
        text(name, value)
        if not value.startswith(("http://", "https://")):
            given = value if "@" not in value else "an address with a login (not shown)"
            raise wrong(name, given, "an address such as http://localhost:4318/v1/traces")


def only_or_except(name: str, value: Any) -> None:
    """Require a filter by name."""
    if not isinstance(value, Mapping):
        raise wrong(name, value, "{only: [names]} or {except: [names]}")
    for key in value:
        if key not in ("only", "except"):
            raise wrong(f"{name}.{str(key)[:100]}", value[key], "under one of the keys only, except")
        texts(f"{name}.{key}", value[key])
    if len(value) > 1:
        raise wrong(name, dict(value), "either {only: [names]} or {except: [names]}, not both")


def is_variable_name(value: Any) -> TypeGuard[str]:
    """Say whether `value` can be the name of an environment variable."""
    return isinstance(value, str) and _VARIABLE.fullmatch(value) is not None


def anything(name: str, value: Any) -> None:
    """Checked together with others."""


def block(name: str, value: Any, allowed: Mapping[str, Check]) -> dict[str, Any]:
    """Require a mapping whose keys are among `allowed` and whose values pass their checks, and return it."""
    if not isinstance(value, Mapping):
        raise wrong(name, value, f"true, false or a mapping of {', '.join(allowed)}")
    for key, part in value.items():
        if key not in allowed:
            raise wrong(f"{name}.{str(key)[:100]}", part, f"under one of the keys {', '.join(allowed)}")
        allowed[key](f"{name}.{key}", part)
    return dict(value)


def one_of(*allowed: str | None) -> Check:
    """Return the check that a value is one of these."""

    def check(name: str, value: Any) -> None:
        if not (value is None or isinstance(value, str)) or value not in allowed:
            raise wrong(
                name, value, "one of " + ", ".join(repr(item) for item in allowed if item is not None)
            )

    return check


def whole(low: int, high: int) -> Check:
    """Return the check that a value is a whole number within these bounds."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(name, value, f"a whole number from {low} to {high}")

    return check


def number(low: float, high: float) -> Check:
    """Return the check that a value is a number within these bounds."""

    def check(name: str, value: Any) -> None:
        # A comparison with NaN is never true, and one with a huge integer needs no float of it.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise wrong(name, value, f"a number from {low:g} to {high:g}")

    return check
