"""Values whose own code raises or never ends."""

from __future__ import annotations

from collections import UserDict


class EvilClass:
    """Raises when asked for its class."""

    @property
    def __class__(self):
        raise RuntimeError("evil")


class EndlessMapping(UserDict):
    """Has items without end."""

    def items(self):
        while True:
            yield "k", {}


class EndlessList(list):
    """Has values without end."""

    def __iter__(self):
        while True:
            yield 1
