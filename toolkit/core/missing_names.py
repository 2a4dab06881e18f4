"""Names that a class does not have, with a hint at what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

_C = TypeVar("_C", bound=type)


def hint_at_missing(hints: Mapping[str, str]) -> Callable[[_C], _C]:
    """Return a decorator: looking up one of these names on the class raises AttributeError with its hint.

    `__getattr__` would do the same, but Python looks up every attribute of a class that has one the slow way.
    """

    def decorate(owner: _C) -> _C:
        for name, hint in hints.items():
            setattr(owner, name, _Missing(name, hint))
        return owner

    return decorate


class _Missing:
    """In the place of an attribute. An object may still have one of its own under the name."""

    __slots__ = ("_hint", "_name")

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, instance: object, owner: type) -> NoReturn:
        found_on = f"type object {owner.__name__!r}" if instance is None else f"{owner.__name__!r} object"
        raise AttributeError(
            f"{found_on} has no attribute {self._name!r}: {self._hint}",
            name=self._name,
            obj=owner if instance is None else instance,
        )
