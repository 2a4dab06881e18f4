"""Placeholders for what this package does not support of another tool: they warn once, by name, and never raise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from toolkit.telemetry.core.guard import warn

_warned: set[str] = set()
NOT_SUPPORTED: Final = "is not supported here and does nothing"


def warn_once(what: str, why: str) -> None:
    """Warn about `what`, the first time it comes up."""
    if what not in _warned:
        _warned.add(what)
        warn("%s %s; this warning appears once", what, why)


def null_object(name: str, why: str = NOT_SUPPORTED) -> Any:
    """Return a placeholder for `name`: a class if the name is capitalised, else an object."""
    warn_once(name, why)
    return _named(name.rpartition(".")[2])


class _NullClass(type):
    """The type of placeholder classes; their attributes are placeholders too."""

    def __getattr__(cls, name: str) -> Any:
        return _unless_special(cls, name)


class NullObject(metaclass=_NullClass):
    """Accepts any call, attribute, item, arithmetic or `with`, and returns a placeholder; it is empty and false."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _unless_special(self, name)

    def __call__(self, *_: Any, **__: Any) -> NullObject:
        """Accept any call."""
        return NullObject()

    def __getitem__(self, _: Any) -> NullObject:
        return NullObject()

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> NullObject:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __repr__(self) -> str:
        return "<not supported here>"

    def __format__(self, _: str) -> str:
        return repr(self)

    def __float__(self) -> float:
        return math.nan

    def __index__(self) -> int:
        return 0

    def _null(self, _: object) -> NullObject:
        return NullObject()

    def _false(self, _: object) -> bool:
        return False

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _null
    __or__ = __ror__ = _null
    __lt__ = __le__ = __gt__ = __ge__ = _false


def _unless_special(where: object, name: str) -> Any:
    # Python looks up special names itself and relies on what it finds.
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"{where!r} has no {name}")
    return _named(name)


def _named(name: str) -> Any:
    # A class works as a base class, in `isinstance` and in type hints.
    return _NullClass(name, (NullObject,), {}) if name[:1].isupper() else NullObject()
