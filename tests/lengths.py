"""How much a test tries: enough for every push, and far more under `make faults` and `make fuzz`."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

_Amount = TypeVar("_Amount")

LONG_VARIABLE = "TELEMETRY_LONG"


def is_long() -> bool:
    """Whether this is a long run, which no one waits for."""
    return os.environ.get(LONG_VARIABLE, "") not in ("", "0")


def longer(usual: _Amount, long: _Amount) -> _Amount:
    """Return `usual`, or `long` in a long run."""
    return long if is_long() else usual


in_make_faults = pytest.mark.skipif(not is_long(), reason="in make faults")
"""A test that takes long and whose claim has a shorter proof, or parts of one, in `make test`."""
