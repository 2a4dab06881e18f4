"""Puts a context manager around each call of a function, a method or a property."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

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

    return keep_cache_methods(call, function)


def keep_cache_methods(wrapper: Any, function: _F) -> _F:
    """Return `wrapper` with `cache_info` and its like, where `function` is one of `functools.lru_cache`."""
    for name in ("cache_info", "cache_clear", "cache_parameters"):
        if hasattr(function, name):
            setattr(wrapper, name, getattr(function, name))
    return wrapper  # type: ignore[no-any-return]  # as declared
