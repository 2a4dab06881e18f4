"""A function in the place of one object's method, which is not taken along into copies of that object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class StandIn(functools.partial[Any]):
    """Calls a function where a method was called, under the method's name and with its signature.

    A copy of the object, by `copy.deepcopy` or `pickle`, gets its own method: the function knows the original's only.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.__wrapped__,)  # type: ignore[attr-defined]  # set by `stand_in_for`


def stand_in_for(original: Callable[..., Any], call: Callable[..., Any]) -> StandIn:
    """Return `call`, to be put where the method `original` was."""
    stand_in = StandIn(call)
    functools.update_wrapper(stand_in, original)
    return stand_in


def _itself(method: Callable[..., Any]) -> Callable[..., Any]:
    return method
