"""What stands in for the parts of another tool that are not here: said once, by name, and nothing is ever raised."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any, Final

_log = logging.getLogger("toolkit.telemetry")
_said: set[str] = set()
NOT_SUPPORTED: Final = "is not supported here and does nothing"


def say_once(what: str, why: str) -> None:
    """Warn of `what`, the first time that it comes up."""
    if what not in _said:
        _said.add(what)
        _log.warning("[telemetry] %s %s; this is said once", what, why)


def stand_in(name: str, why: str = NOT_SUPPORTED) -> Any:
    """Return something to use in place of `name`: a class where the name is one's, else an object."""
    say_once(name, why)
    return _named(name.rpartition(".")[2])


class _StandInClass(type):
    """The type of stand-ins for classes: what is looked up on such a class is a stand-in too."""

    def __getattr__(cls, name: str) -> Any:
        return _unless_special(cls, name)


class StandIn(metaclass=_StandInClass):
    """Takes any call, attribute, item, sum or `with`, and gives back a stand-in; empty, false, and never an error."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _unless_special(self, name)

    def __call__(self, *_: Any, **__: Any) -> StandIn:
        """Take any call."""
        return StandIn()

    def __getitem__(self, _: Any) -> StandIn:
        return StandIn()

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> StandIn:
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

    def _another(self, _: object) -> StandIn:
        return StandIn()

    def _no(self, _: object) -> bool:
        return False

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _another
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __or__ = __ror__ = _another
    __lt__ = __le__ = __gt__ = __ge__ = _no


def _unless_special(where: object, name: str) -> Any:
    # Python itself asks for special names, and takes an answer for a promise.
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"{where!r} has no {name}")
    return _named(name)


def _named(name: str) -> Any:
    # A class can be inherited from, asked for with `isinstance` and put into a type hint.
    return _StandInClass(name, (StandIn,), {}) if name[:1].isupper() else StandIn()
