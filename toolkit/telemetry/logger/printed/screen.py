"""What a terminal would show of a stream, line by line: what is overwritten is gone, and colours are not kept."""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = (
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[()][0-9A-B]|\x1b[=>78cDEHM]"
)
_CONTROL: Final = re.compile(rf"{_ESCAPES}|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Escape sequences of terminals, control characters, and halves of characters, which UTF-8 has no form for."""
_MOVES: Final = re.compile(r"(\n|\r|\x1b\[2?K|\x1b\[[0-9]*A)")
_MOST_ROWS: Final = 100
_LONGEST_ROW: Final = 12_000
"""Characters from which on what is written next is a line of its own: dots without end are not copied each time."""
_LAST_WORDS: Final = 200
_BARS_LAST_S: Final = 5.0
"""How long after it went up the cursor is expected to do so again."""


def without_controls(text: str) -> str:
    """Return `text` without escape sequences and control characters."""
    return text if text.isprintable() else _CONTROL.sub("", text)


class Screen:
    """The lines of one stream that may still change: the one that is being written, and those that bars go back to."""

    def __init__(self) -> None:
        self._rows: list[str] = [""]
        self._at = 0
        self._is_overwritten = False
        self._bars, self._bars_until = 0, 0.0

    def write(self, text: str, now: float) -> None:
        """Take what was written next."""
        if self._is_last and len(self._rows[-1]) > _LONGEST_ROW and not self._is_overwritten:
            # A secret and its name may be written in parts: with the last words, the rest of it is recognised.
            row = self._rows[-1]
            cut = max(row.rfind(" ", 0, -_LAST_WORDS), len(row) - 2 * _LAST_WORDS)
            self._rows[-1:] = [row[:cut], row[cut:]]
            self._at += 1
        if "\r" not in text and "\x1b" not in text and not self._is_overwritten and self._is_last:
            first, *more = text.split("\n")
            self._rows[-1] += first
            self._rows += more
            self._at += len(more)
            return
        for piece in _MOVES.split(text):
            if piece == "\n":
                self._at += 1
                self._is_overwritten = self._at < len(self._rows)
                if not self._is_overwritten:
                    self._rows.append("")
            elif piece == "\r" or piece.endswith("K"):
                # Not yet: a line may end in both.
                self._is_overwritten = True
            elif piece.startswith("\x1b[") and piece.endswith("A"):
                # Bars below each other: the cursor goes up to the first, and then down again.
                rows = min(int(piece[2:-1][:4] or 1), _MOST_ROWS // 2)
                self._at = max(0, self._at - rows)
                self._bars, self._bars_until = max(self._bars, rows), now + _BARS_LAST_S
            elif piece:
                begin = "" if self._is_overwritten else self._rows[self._at]
                self._rows[self._at] = begin + piece
                self._is_overwritten = False

    @property
    def _is_last(self) -> bool:
        return self._at == len(self._rows) - 1

    def take_done(self, now: float, *, is_end: bool = False) -> list[str]:
        """Return the lines that the stream has gone on from, and forget them; with `is_end` all that are left."""
        if now > self._bars_until:
            self._bars = 0
        count = len(self._rows) if is_end else max(self._at - self._bars, len(self._rows) - _MOST_ROWS, 0)
        done, self._rows = self._rows[:count], self._rows[count:] or [""]
        self._at = max(0, self._at - count)
        if is_end and done and not done[-1]:
            done.pop()
        return [without_controls(row) for row in done]

    @property
    def is_blank(self) -> bool:
        """Whether it is as at the beginning."""
        return self._rows == [""] and not self._bars and not self._is_overwritten

    def open_line(self) -> str:
        """Return the line that is being written."""
        return without_controls(self._rows[self._at])
