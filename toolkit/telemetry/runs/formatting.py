"""Numbers, times and untrusted text for people."""

from __future__ import annotations

import html
import math
import re
import string
from datetime import datetime, timezone

from toolkit.telemetry.runfolder.untrusted import clean as clean

NO_VALUE = "–"  # noqa: RUF001 - a dash as wide as a digit, as tables have it
"""Shown if there is no value."""


def short_number(x: float | None) -> str:
    """Return `x` with 4 significant digits; digits before the point are never rounded away below a million."""
    value, odd = _finite(x)
    if odd is None and 999.95 <= abs(value) < 999_999.5:
        return f"{value:,.0f}"
    return odd or _significant(value, 4, at_least=1e-4, below=999.95)


def learning_rate(x: float | None) -> str:
    """Return `x` as learning rates are written, such as 2.04e-4."""
    value, odd = _finite(x)
    return odd or _significant(value, 3, at_least=0.1, below=999.5)


def count(n: int | None) -> str:
    """Return `n` with commas between thousands."""
    return NO_VALUE if n is None else f"{n:,d}"


def size(n_bytes: float | None) -> str:
    """Return a size in bytes, kB, MB, GB …: a GB is 10^9 bytes."""
    value, odd = _finite(n_bytes)
    if odd is not None:
        return odd
    if abs(value) < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:,.4g} PB"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 320 ms, 48 s, 2 h 14 m, 3 d 2 h."""
    value, odd = _finite(seconds)
    if odd is not None:
        return odd
    sign, value = ("-", -value) if value < 0 else ("", value)
    if 0 < value < 0.9995:
        return f"{sign}{value * 1000:.3g} ms"
    parts = _units(value + 0.0005)
    # "0 s" on its own is fine; after a larger unit a zero is left out.
    return sign + " ".join(f"{n} {unit}" for i, (n, unit) in enumerate(parts) if n or not i)


def ago(seconds: float | None) -> str:
    """Return an age in its largest unit: 3 s ago. A time in the future is shown as ahead."""
    value, odd = _finite(seconds)
    if odd is not None:
        return odd
    if abs(value) < 1:
        return "just now"
    n, unit = _units(abs(value))[0]
    return f"{n} {unit} ago" if value > 0 else f"{n} {unit} ahead"


def clock(t: float | None, *, now: float | None = None) -> str:
    """Return the local time at `t`; with `now`, a time of the same day has no date."""
    if t is None:
        return NO_VALUE
    when = _local(t)
    if when is None:
        return short_number(t)
    today = None if now is None else _local(now)
    if today is not None and today.date() == when.date():
        return f"{when:%H:%M:%S}"
    return f"{when:%Y-%m-%d %H:%M:%S}"


def cut(text: str, limit: int) -> str:
    """Return `text` with at most `limit` characters; an ellipsis shows that it was longer."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def _finite(x: float | None) -> tuple[float, str | None]:
    """Return `x` as a float, and its text if it is not a finite number."""
    if x is None:
        return 0.0, NO_VALUE
    try:
        value = float(x)
    except OverflowError:  # a whole number of more than 308 digits
        return 0.0, "> 1e308" if x > 0 else "< -1e308"
    if math.isnan(value):
        return value, "NaN"
    if math.isinf(value):
        return value, "+Inf" if value > 0 else "-Inf"
    return value, None


def _significant(value: float, digits: int, *, at_least: float, below: float) -> str:
    """Return `value` with so many digits, as a plain number within these limits."""
    if value == 0:
        return "0"
    if at_least <= abs(value) < below:
        return f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def _units(seconds: float) -> list[tuple[int, str]]:
    whole = int(seconds)
    if whole >= _DAY:
        return [(whole // _DAY, "d"), (whole % _DAY // _HOUR, "h")]
    if whole >= _HOUR:
        return [(whole // _HOUR, "h"), (whole % _HOUR // _MINUTE, "m")]
    if whole >= _MINUTE:
        return [(whole // _MINUTE, "m"), (whole % _MINUTE, "s")]
    return [(whole, "s")]


def _local(t: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(t, tz=timezone.utc).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


DEFAULT_LENGTH = 200


def md(text: str, limit: int = DEFAULT_LENGTH) -> str:
    """Return one line of Markdown that Streamlit shows as `text` itself: no link, image, colour, formula or icon.

    Truncated at `limit` characters before escaping; newlines and tabs become spaces.
    """
    # Four leading spaces make a code block, and a newline may start any kind of block.
    line = cut(" ".join(clean(text).split()), limit)
    # Streamlit searches for these after the backslashes are removed.
    line = _FOUND_IN_PLAIN_TEXT.sub(lambda found: found[0][:1] + _JOINER + found[0][1:], line)
    line = _WEB_ADDRESS.sub(lambda found: found[0] + _JOINER, line)
    return line.translate(_BACKSLASHED)


def html_text(text: str, limit: int = DEFAULT_LENGTH) -> str:
    """Return `text` for Plotly, which interprets names and labels as HTML."""
    return html.escape(cut(clean(text), limit), quote=False)


# CommonMark allows a backslash before any punctuation, so all of it is escaped.
_BACKSLASHED = {ord(character): "\\" + character for character in string.punctuation}

# Invisible, and allows no line break: separates two characters.
_JOINER = "\N{WORD JOINER}"

# :smile: and :material_home:, https://, name@host, and arrows such as ->, which Streamlit replaces.
_FOUND_IN_PLAIN_TEXT = re.compile(
    r":(?=[\w+-]+:) | :(?=//) | @(?=[\w-]) | (?<!\S)(?:<->|->|<-|--|>=|<=|~=)(?!\S)", re.VERBOSE
)
_WEB_ADDRESS = re.compile(r"www(?=\.)", re.IGNORECASE)
