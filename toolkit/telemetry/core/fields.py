"""Options as fields of a frozen dataclass: default, description and allowed values in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from toolkit.telemetry.core.checks import Check, OptionsError, unknown, wrong

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")
_KEY = "option"


class Option(NamedTuple):
    """What a field says about itself, besides its name, type and default."""

    description: str
    """One line, as docs/options.md shows it."""
    check: Check[Any]


def option(default: _T, description: str, check: Check[_T]) -> _T:
    """Declare a field of a dataclass with its default, a one-line description and what it may be."""
    about = {_KEY: Option(description, check)}
    if isinstance(default, dict):
        return cast("_T", field(default_factory=default.copy, metadata=about))
    return field(default=default, metadata=about)


def required(description: str, check: Check[_T]) -> _T:
    """Declare a field that must be given."""
    return cast("_T", field(metadata={_KEY: Option(description, check)}))


def options_of(cls: type) -> Mapping[str, Option]:
    """Return the options that `cls` declares, by name; fields that are not options are left out."""
    return {item.name: item.metadata[_KEY] for item in fields(cls) if _KEY in item.metadata}


def check_fields(instance: Any, key: str) -> None:
    """Check every option of a frozen dataclass that has just been made, and set what its check returns.

    Raises:
        OptionsError: a value is wrong; the message names `key.name`.
    """
    for name, about in options_of(type(instance)).items():
        object.__setattr__(instance, name, about.check(f"{key}.{name}", getattr(instance, name)))


def require_known(cls: type, given: Mapping[Any, Any], key: str) -> None:
    """Raise `OptionsError` for the first key of `given` that is not an option of `cls`."""
    known = options_of(cls)
    for name, value in given.items():
        if name not in known:
            hint: str = getattr(cls, "UNKNOWN_HINT", "")
            raise unknown(_dotted(key, str(name)[:100]), value, known, hint=hint, secret=bool(hint))


def read_fields(cls: type[_T], key: str, value: object) -> _T:
    """Build `cls` from the mapping `value`, found at the dotted `key`, which is empty for a whole file.

    Raises:
        OptionsError: a key is unknown or missing, or a value is not what its option allows.
    """
    if value is None:
        value = {}  # what YAML gives for a section without content
    if not isinstance(value, Mapping):
        raise wrong(key, value, f"a mapping of {', '.join(options_of(cls))}")
    require_known(cls, value, key)
    read = {}
    for item in fields(cast(Any, cls)):
        about: Option | None = item.metadata.get(_KEY)
        if about is None:
            continue
        if item.name in value:
            read[item.name] = about.check(_dotted(key, item.name), value[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise OptionsError(f"{_dotted(key, item.name)} is required; it must be {about.check.allowed}")
    return cls(**read)


def _dotted(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def nested(cls: type[_T]) -> Check[_T]:
    """Return the check that a value is a mapping of the options of `cls`, which is built from it."""
    return Check(lambda key, value: read_fields(cls, key, value), "a mapping", block=lambda: cls)


def each(check: Check[_T]) -> Check[tuple[_T, ...]]:
    """Return the check that a value is a list whose items pass `check`."""

    def read(key: str, value: Any) -> tuple[_T, ...]:
        if not isinstance(value, list):
            raise wrong(key, value, allowed)
        return tuple(check(f"{key}[{place}]", item) for place, item in enumerate(value))

    allowed = f"a list, each item {check.allowed}"
    return Check(read, allowed, block=check.block)


class Block:
    """The base of a block of options that `true` and `false` switch on and off, and a mapping sets in detail."""

    UNKNOWN_HINT: ClassVar[str] = ""
    """Added to the error for an unknown key, whose value is then not shown: it may be a secret."""
    WORD: ClassVar[str] = ""
    """A field that its bare name switches on, such as `spans: all`."""

    @classmethod
    def from_block(cls, key: str, value: Any) -> Self:
        """Return the options that the block `key` states. A mapping switches it on unless it says otherwise.

        Raises:
            OptionsError: a key or value is wrong.
        """
        given: Any = {} if value is None else {"enabled": value} if isinstance(value, bool) else value
        if cls.WORD and isinstance(value, str) and value == cls.WORD:
            given = {cls.WORD: True}
        if not isinstance(given, Mapping):
            raise wrong(key, value, f"{_toggle_words(cls)} of {', '.join(options_of(cls))}")
        if value is not None:
            given = {"enabled": True, **given}
        return read_fields(cls, key, given)


def toggle(cls: type[Block]) -> Check[bool | Mapping[str, Any]]:
    """Return the check that a value is true, false or a mapping of the options of `cls`; it is kept as given."""

    def read(key: str, value: Any) -> Any:
        cls.from_block(key, value)
        return value

    accepts = f"bool{' | str' if cls.WORD else ''} | Mapping[str, Any] | None"
    return Check(read, _toggle_words(cls), accepts, lambda: cls)


def _toggle_words(cls: type[Block]) -> str:
    return f"true, false, {cls.WORD!r} or a mapping" if cls.WORD else "true, false or a mapping"
