"""Waits for what a process or a thread does, for as long as a slow machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

_Found = TypeVar("_Found")

PATIENCE_S = 120.0
"""How long a test waits for something that takes a short time, unless the machine pauses."""

TIME_TO_CLOSE_S = 60.0
"""A busy machine is no disk that does not answer: what a run has for its end in tests, unless one says otherwise."""


def wait_until(
    condition: Callable[[], _Found],
    process: Any = None,
    *,
    timeout_s: float = PATIENCE_S,
    pause: Callable[[], object] = lambda: time.sleep(0.01),
) -> _Found:
    """Return what `condition` returns once it is true; fail after `timeout_s`, or when `process` has ended.

    `process` is a Popen or a process of `tests/fork_server.py`; the failure shows what it printed.
    `pause` is for a loop that must run meanwhile, such as the browser's.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := _now(condition)):
        if process is not None and process.poll() is not None:
            # It may have done it just before it ended.
            if found := _now(condition):
                return found
            raise AssertionError(f"the process ended with {process.poll()}: {_output(process)}")
        if time.monotonic() > deadline:
            if process is not None:
                process.kill()
            raise AssertionError(f"not within {timeout_s:g} s. {_output(process)}")
        pause()
    return found


def _now(condition: Callable[[], _Found]) -> _Found | None:
    """Return what `condition` returns; None where the file that it reads is not there yet."""
    try:
        return condition()
    except FileNotFoundError:
        return None


def _output(process: Any) -> str:
    if process is None:
        return ""
    return "\n".join(str(text)[-4000:] for text in process.communicate() if text)
