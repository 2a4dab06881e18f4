"""Decorators: a context manager around each call of a function, and hints at names that a class does not have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def decorated_inside(thing: Any, decorate: Callable[[Any], Any]) -> Any:
    """Return a static or class method or a property with the function inside decorated; None for a function.

    A class stays as it is: a function in its place would be no class any more.
    """
    if isinstance(thing, (staticmethod, classmethod)):
        return type(thing)(decorate(thing.__func__))
    if isinstance(thing, property):
        return thing if thing.fget is None else thing.getter(decorate(thing.fget))
    if isinstance(thing, functools.cached_property):
        return type(thing)(decorate(thing.func))
    return thing if isinstance(thing, type) or not callable(thing) else None


def wrap_calls(function: _F, make: Callable[[], AbstractContextManager[Any]]) -> _F:
    """Return `function` with a context manager from `make` around each call.

    For a coroutine function the block lasts until it has been awaited, for a generator function until its iteration
    ends. Any other function, one that returns an async generator among them, is wrapped for the call alone.
    """
    inside = decorated_inside(function, lambda found: wrap_calls(found, make))
    if inside is not None:
        return inside  # type: ignore[no-any-return]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await function(*args, **kwargs)

        return call_async  # type: ignore[return-value]

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def iterate(*args: Any, **kwargs: Any) -> Any:
            with make():
                return (yield from function(*args, **kwargs))

        return iterate  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with make():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


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
