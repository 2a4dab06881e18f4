"""Numbers and lengths of time as they stand in a message."""

from __future__ import annotations

import math
from typing import Any, Final


def short_number(value: Any) -> str | None:
    """Return a number with four significant digits; None where there is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: 48 s, 2 h 14 m, 3 d 2 h."""
    left = max(0, round(min(seconds, _LONGEST_S)))
    parts = []
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        parts.append((count, unit))
    first = next((i for i, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [f"{count} {unit}" for count, unit in parts[first : first + 2] if count]
    return " ".join(shown) or "0 s"


def cut(text: str, longest: int) -> str:
    """Return `text`, without its end where it has more than `longest` letters."""
    return text if len(text) <= longest else text[: longest - 2].rstrip() + " …"


def cut_bytes(text: str, longest: int) -> str:
    """Return `text` shortened to so many bytes of UTF-8, in whole letters."""
    if len(text.encode("utf-8", "replace")) <= longest:
        return text
    return text.encode("utf-8", "replace")[: longest - 4].decode("utf-8", "ignore").rstrip() + " …"


def one_line(text: str) -> str:
    """Return `text` on one line, without letters that command a terminal or a chat."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_LONGEST_S: Final = 1e10
