"""What the value of an option may be: one `Check` for each kind of value, and the errors they raise."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from typing import Any, Final, Generic, TypeVar

from toolkit.telemetry.runfolder.untrusted import is_number

_T = TypeVar("_T")

_LOGIN: Final = re.compile(r"(://)[^\s/@'\"]{1,200}@")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_EXPONENT: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,4}")
_NOT_SET: Final = re.compile(r"\$\{?[A-Za-z_]")
"""What is left of a variable of the environment that is not set: a folder of that name is not wanted."""
_MOST_WHOLE: Final = 2**63 - 1


class OptionsError(ValueError):
    """An option is wrong: the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class Check(Generic[_T]):
    """What a value may be. Calling it with the whole key and a value returns the value to keep.

    Raises:
        OptionsError: the value is not allowed.
    """

    read: Callable[[str, Any], _T]
    allowed: str
    """What is allowed, in the words of the message and of docs/options.md."""
    accepts: str = ""
    """The type of what may be given, as Python source, where it is wider than what is kept."""
    block: Callable[[], type] | None = None
    """Returns the dataclass of options that a mapping given here is read as."""

    def __call__(self, key: str, value: Any) -> _T:
        """Return the value to keep, or raise `OptionsError`."""
        return self.read(key, value)


def shown(value: Any) -> str:
    """Return `value` as a message shows it."""
    if isinstance(value, int) and value.bit_length() > 1000:
        # Python itself refuses to print the longest of them.
        return f"an integer of {value.bit_length()} bits"
    if hasattr(type(value), "__torch_function__"):
        # Printing a tensor waits for its device, and one whose memory was freed crashes the process.
        return f"a {type(value).__name__}"
    try:
        text = repr(value)[:200]
    except RecursionError:
        return f"a {type(value).__name__} of very many levels"
    # A login in an address is a secret, and the message may be logged.
    return _LOGIN.sub(r"\1***@", text)


def wrong(key: str, value: Any, allowed: str) -> OptionsError:
    """Return the error for a value that is not allowed."""
    return OptionsError(f"{key} is {shown(value)}; it must be {allowed}")


def unknown(
    key: str, value: Any, known: Iterable[str], *, hint: str = "", secret: bool = False
) -> OptionsError:
    """Return the error for a key that does not exist; the value is left out where it may be a `secret`."""
    name, listed = key.rpartition(".")[2], sorted(known)
    close = get_close_matches(name, listed, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else "."
    given = "" if secret else f" (with the value {shown(value)})"
    return OptionsError(f"{key}{given} is not an option{meant} Known: {', '.join(listed)}{hint}")


def variable_name(example: str) -> Check[str]:
    """Return the check of the name of an environment variable, such as `example`, that contains a secret."""

    def read(key: str, value: Any) -> str:
        # `phc_` and `phx_`: a project's key of PostHog, which could be a name.
        if not isinstance(value, str) or not _VARIABLE.fullmatch(value) or value.startswith(("phc_", "phx_")):
            raise OptionsError(
                f"{key} is not the name of an environment variable; it must be one, such as {example} "
                f"(not shown: it may be the secret itself)"
            )
        return value

    return Check(read, "the name of an environment variable")


def where(is_valid: Callable[[Any], bool], allowed: str) -> Check[Any]:
    """Return the check that keeps a value as it is where `is_valid` says so."""

    def read(key: str, value: Any) -> Any:
        if not is_valid(value):
            raise wrong(key, value, allowed)
        return value

    return Check(read, allowed)


anything: Final[Check[Any]] = Check(lambda _, value: value, "anything")
boolean: Final[Check[bool]] = where(lambda value: isinstance(value, bool), "true or false")
text: Final[Check[str]] = where(
    lambda value: isinstance(value, str) and bool(value) and "\0" not in value, "a text that is not empty"
)
not_blank: Final[Check[str]] = where(
    lambda value: isinstance(value, str) and bool(value.strip()), "a text that is not empty"
)


def optional(check: Check[_T]) -> Check[_T | None]:
    """Return the check that also takes None, for an option that is not set."""

    def read(key: str, value: Any) -> _T | None:
        return None if value is None else check(key, value)

    accepts = f"{check.accepts} | None" if check.accepts else ""
    return Check(read, check.allowed, accepts, check.block)


def empty_for_none(check: Check[_T], empty: Callable[[], _T]) -> Check[_T]:
    """Return the check that takes None, as YAML gives for a key without a value, for `empty`."""

    def read(key: str, value: Any) -> _T:
        return empty() if value is None else check(key, value)

    return Check(read, check.allowed, check.accepts, check.block)


def one_of(*choices: _T) -> Check[_T]:
    """Return the check that a value is one of these."""
    allowed = ("one of " if len(choices) > 1 else "") + ", ".join(repr(choice) for choice in choices)

    def read(key: str, value: Any) -> _T:
        for choice in choices:
            if type(value) is not bool and isinstance(value, type(choice)) and value == choice:
                return choice
        error = wrong(key, value, allowed)
        close = get_close_matches(value, map(str, choices), n=1) if isinstance(value, str) else []
        raise OptionsError(f"{error} (did you mean {close[0]!r}?)") if close else error

    return Check(read, allowed)


def boolean_or(word: str) -> Check[bool | str]:
    """Return the check that a value is true, false or this word."""
    return where(
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value == word),
        f"true, false or {word!r}",
    )


def whole_number(value: Any) -> int | None:
    """Return an integer of Python or numpy as an int, else None; a tensor is not read, as that waits for its device."""
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, Integral) else None


def whole(low: int, high: int | None = None) -> Check[int]:
    """Return the check that a value is a whole number within these bounds."""
    allowed = f"a whole number of {low} or more" if high is None else f"a whole number from {low} to {high}"
    most = _MOST_WHOLE if high is None else high

    def read(key: str, value: Any) -> int:
        number = whole_number(value)
        if number is None or not low <= number <= most:
            raise wrong(key, value, allowed)
        return number

    return Check(read, allowed)


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Check[float]:
    """Return the check that a value is a finite number within these bounds."""
    if low > -math.inf and high < math.inf:
        allowed = f"a number from {low:.9g} to {high:.9g}"
    else:
        bounds = [f"of {low:.9g} or more"] if low > -math.inf else []
        bounds += [f"above {above:.9g}"] if above > -math.inf else []
        bounds += [f"at most {high:.9g}"] if high < math.inf else []
        allowed = " ".join(("a number", " and ".join(bounds))).strip()

    def read(key: str, value: Any) -> float:
        # YAML 1.1 reads 1e-4 as a text, because it has no dot.
        given = float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
        # No comparison with NaN is true, and a huge integer is compared without making a float of it.
        if not is_number(given) or not (
            low <= given <= high and above < given < math.inf and given > -math.inf
        ):
            raise wrong(key, value, allowed)
        try:
            return float(given)
        except OverflowError:
            raise wrong(key, value, allowed) from None

    return Check(read, allowed)


def _texts(key: str, value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, str) and item for item in given):
        raise wrong(key, list(value) if isinstance(value, tuple) else value, texts.allowed)
    return tuple(given)


texts: Final[Check[tuple[str, ...]]] = Check(_texts, "a list of texts", "str | Sequence[str]")
"""One text or several; a tuple is kept."""


def _tags(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(tag, str) for tag in value):
        raise wrong(key, value, tags.allowed)
    return tuple(value)


tags: Final[Check[tuple[str, ...]]] = Check(_tags, "a list of texts", "Sequence[str]")
"""A list of texts; a single text is refused."""


def _path(key: str, value: Any) -> str:
    given = text(key, os.fspath(value) if isinstance(value, os.PathLike) else value)
    expanded = os.path.expanduser(os.path.expandvars(given))
    if _NOT_SET.search(expanded) or expanded.startswith("~"):
        raise wrong(key, value, "a path whose variables are set and whose user is known")
    return expanded


path: Final[Check[str]] = Check(_path, text.allowed, "str | os.PathLike[str]")
"""A path, in which `~` and variables such as `$HOME` are expanded."""


def _boolean_or_path(key: str, value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, (str, os.PathLike)) or value == "" or "\0" in os.fspath(value):
        raise wrong(key, value, boolean_or_path.allowed)
    return _path(key, value)


boolean_or_path: Final[Check[bool | str]] = Check(
    _boolean_or_path, "true, false or the path of a file", "bool | str | os.PathLike[str]"
)


def _address(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")) or "\0" in value:
        is_login = isinstance(value, str) and "@" in value
        raise wrong(key, "an address with a login (not shown)" if is_login else value, address.allowed)
    return value


address: Final[Check[str]] = Check(_address, "an address such as http://localhost:4318/v1/traces")


def _only_or_except(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(key, value, only_or_except.allowed)
    for name in value:
        if name not in ("only", "except"):
            raise unknown(f"{key}.{str(name)[:100]}", value[name], ("only", "except"))
        texts(f"{key}.{name}", value[name])
    if len(value) > 1:
        raise wrong(key, dict(value), f"either {only_or_except.allowed}, not both")
    return dict(value)


only_or_except: Final[Check[Mapping[str, Any]]] = Check(
    _only_or_except, "{only: [names]} or {except: [names]}", "Mapping[str, Any]"
)
"""A filter by name."""


def called(check: Check[_T]) -> Check[_T]:
    """Return the check that also takes a function without arguments, which is called for the value."""

    def read(key: str, value: Any) -> _T:
        # Known only when the run begins, such as the job's number on a cluster.
        return check(key, value() if callable(value) else value)

    return Check(read, check.allowed, f"Callable[[], Any] | {check.accepts or 'str | None'}", check.block)


HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")


def is_this_machine(host: str) -> bool:
    """Say whether `host` is a loopback address or `localhost`; `127.example.org` is another machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
