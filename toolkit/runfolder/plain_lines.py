"""Lines of records with the same fields, taken apart into columns without making records of them.

Nearly all lines of a run are steps with the same fields, and every value is a number. One pattern for all the fields
takes two thirds of the time of parsing, and a reader that needs the text of the numbers, or only some of them, saves
the rest. To make a pattern takes up to four milliseconds, in which no other thread runs: only for many lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MOST_PATTERNS = 64


def texts_in(line: bytes) -> tuple[str, ...]:
    """Return what is in quotes in a line: of a plain record `event`, its event, and the names of the other fields.

    Empty if the line cannot be that of a plain record.
    """
    if b"\\" in line:
        return ()
    try:
        texts = tuple(b'"'.join(line.split(b'"')[1::2]).decode("utf-8").split('"'))
    except UnicodeDecodeError:
        return ()
    return texts if len(texts) > 3 and texts[0] == "event" else ()


class PlainLines:
    """Takes lines apart; keeps the patterns."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, ...], re.Pattern[bytes]] = {}

    def columns_of(self, lines: Sequence[bytes], texts: tuple[str, ...]) -> list[Sequence[bytes]] | None:
        """Return the values of each field after the event, or None if not all lines have just these texts.

        A value is the text between its colon and the next comma or the last brace: whether it is a number is not known.
        """
        pattern = self._patterns.get(texts)
        if pattern is None:
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            pattern = self._patterns[texts] = _pattern_for(texts)
        found = pattern.findall(b"\n".join(lines))
        return list(zip(*found, strict=True)) if len(found) == len(lines) else None


def _pattern_for(texts: tuple[str, ...]) -> re.Pattern[bytes]:
    _, event, *others, last = (re.escape(text.encode("utf-8")) for text in texts)
    values = b"".join(b',"%b":([^,]+)' % name for name in others)
    return re.compile(b'^\\{"event":"%b"%b,"%b":([^,}]+)\\}$' % (event, values, last), re.MULTILINE)
