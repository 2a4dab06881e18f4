"""A method of one object with something of ours before and behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Surrounded:
    """Is called in place of a method: exactly as that was called, and what that returns or raises goes on as it is.

    It is an object and no function, so that a copy of the owner gets one that calls the copy's own method.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> None:
        self._owner = owner
        self._name = name
        self._before = before
        self._after = after
        # Somebody else may have put something there before.
        self._instead = vars(owner).get(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the method does, with ours around it."""
        if self._before is not None:
            self._before()
        try:
            if self._instead is not None:
                return self._instead(*args, **kwargs)
            return getattr(type(self._owner), self._name)(self._owner, *args, **kwargs)
        finally:
            if self._after is not None:
                self._after()
