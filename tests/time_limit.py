"""One thread that ends a process whose test takes too long; pytest-timeout by itself starts and joins one per test."""

from __future__ import annotations

import threading
from time import monotonic, sleep  # as they are now: tests replace those of the module
from typing import Any

import pytest

_LOOK_EVERY_S = 1.0


class _TimeLimit:
    """What runs now, and until when it may."""

    def __init__(self) -> None:
        self._of: tuple[float, Any, Any] | None = None
        self._is_watched = False

    def begin(self, item: Any, settings: Any) -> None:
        self._of = (monotonic() + settings.timeout, item, settings)
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch, name="time limit of tests", daemon=True).start()

    def end(self) -> None:
        self._of = None

    def _watch(self) -> None:
        from pytest_timeout import timeout_timer

        while True:
            sleep(_LOOK_EVERY_S)
            of = self._of
            if of is not None and monotonic() > of[0]:
                timeout_timer(*of[1:])


_limit = _TimeLimit()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    """Begin the time of a test, in place of what pytest-timeout does."""
    if settings.method != "thread":
        return None
    _limit.begin(item, settings)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: Any) -> None:
    """End the time of a test."""
    _limit.end()
