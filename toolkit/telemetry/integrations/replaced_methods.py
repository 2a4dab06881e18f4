"""Methods of single objects that stand in for their class's own, until they are put back."""

from __future__ import annotations

from typing import Any, Final

_NOTHING: Final = object()


class ReplacedMethods:
    """What was put on a framework's objects, so that all of it can be taken away again."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, method: Any) -> None:
        """Let `owner` use `method`."""
        self._put.append((owner, name, method, vars(owner).get(name, _NOTHING)))
        vars(owner)[name] = method

    def put_back(self) -> None:
        """Let every owner use what it had before, unless somebody has put something else there since."""
        while self._put:
            owner, name, method, before = self._put.pop()
            if vars(owner).get(name) is not method:
                continue
            if before is _NOTHING:
                del vars(owner)[name]
            else:
                vars(owner)[name] = before
