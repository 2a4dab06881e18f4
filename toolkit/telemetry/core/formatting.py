"""Numbers, durations and long texts as people read them."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from toolkit.telemetry.runfolder.untrusted import is_number

_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_LONGEST_S: Final = 1e10
_ROOM_FOR_THE_NOTE: Final = 40


def short_number(value: Any) -> str | None:
    """Return a number with four significant digits; None for anything else."""
    if not is_number(value):
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 48 s, 2 h 14 m, 3 d 2 h."""
    left = max(0, round(min(seconds, _LONGEST_S)))
    parts = []
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        parts.append((count, unit))
    first = next((i for i, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [f"{count} {unit}" for count, unit in parts[first : first + 2] if count]
    return " ".join(shown) or "0 s"


def utc_minute(timestamp: float) -> str:
    """Return a time that reads the same in all time zones: 2026-05-18 14:00 UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(0.0, min(timestamp, _LONGEST_S))))


def both_ends(text: str, longest: int) -> str:
    """Return `text` in at most `longest` characters: its beginning, how much is left out, and its end.

    The exception of a worker process begins with who failed and ends with why. A word that would be cut is left out
    entirely: half a secret is not recognised as one.
    """
    if len(text) <= longest:
        return text
    half = max(0, (longest - _ROOM_FOR_THE_NOTE) // 2)
    first = text[:half].rpartition(" ")[0]
    last = text[len(text) - half :].partition(" ")[2]
    return f"{first} … {len(text) - len(first) - len(last):,} characters … {last}"


def cut(text: str, longest: int) -> str:
    """Return `text`, truncated to `longest` characters."""
    return text if len(text) <= longest else text[: longest - 2].rstrip() + " …"


def one_line(text: str) -> str:
    """Return `text` on one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def words(text: str) -> frozenset[str]:
    """Return the words of `text`: a set of many names that stays readable in the source."""
    return frozenset(text.split())
