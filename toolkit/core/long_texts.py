"""A long text, cut in its middle."""

from __future__ import annotations

_ROOM_FOR_THE_NOTE = 40


def both_ends(text: str, longest: int) -> str:
    """Return `text` in at most `longest` characters: its beginning, how much is left out, and its end.

    The exception of a worker process begins with who failed, and ends with why. A word that would be cut is left out
    with the rest: half a secret does not look like one.
    """
    if len(text) <= longest:
        return text
    half = max(0, (longest - _ROOM_FOR_THE_NOTE) // 2)
    first = text[:half].rpartition(" ")[0]
    last = text[len(text) - half :].partition(" ")[2]
    return f"{first} … {len(text) - len(first) - len(last):,} characters … {last}"
