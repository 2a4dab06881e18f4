"""Numbers on the command line: what is not one is refused in plain words, with what is allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

_MOST: Final = 1_000_000_000
_AGE: Final = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)(?P<unit>s|min|h|d|w)")
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def whole(low: int = 1, high: int = _MOST) -> Callable[[str], int]:
    """Return what reads a whole number between two limits."""

    def read(text: str) -> int:
        number = text.strip()
        if number.isascii() and number.isdigit() and len(number) < 20 and low <= int(number) <= high:
            return int(number)
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a whole number from {low:,} to {high:,}")

    return read


def seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < _MOST:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number of seconds above 0")
    return number


def age(text: str) -> float:
    """Return an age in seconds, such as 12h or 30d."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number with a unit, such as 12h, 30d or 4w")
    return float(match["number"]) * _UNITS[match["unit"]]
