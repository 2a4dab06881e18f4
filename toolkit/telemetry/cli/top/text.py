"""Text for a screen of cells: what a file holds reaches the terminal only through `Text`."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size

from toolkit.telemetry.cli.chosen_run import printable

Line = list[tuple[str, str]]
"""Texts, each with its style, such as `bold red`."""

_ASCII: Final = str.maketrans("…│┊─└✕▲·–▁▂▃▄▅▆▇█", "~|:-+x!--_.-=+*%#")  # noqa: RUF001 - the dash that means no value
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_MARK: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]"
_TOO_MANY: Final = re.compile(f"({_MARK}{{2}}){_MARK}+|[\ufe00-\ufe0f]")
"""More than two marks on a letter, which would cover other lines, and selectors that change its width."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text in the characters that a terminal has."""

    is_ascii: bool = False

    def one_line(self, text: str) -> str:
        """Return `text` as one line without anything that a terminal would obey."""
        line = printable(re.sub(r"\s", " ", unicodedata.normalize("NFC", text)))
        line = _TOO_MANY.sub(lambda found: found[1] or "", line)
        return line.translate(_ASCII).encode("ascii", "replace").decode() if self.is_ascii else line

    def fit(self, text: str, width: int, *, right: bool = False) -> str:
        """Return `text` in exactly `width` cells; wide characters take two."""
        line = self.one_line(text)
        if cell_len(line) > width:
            line = set_cell_size(line, max(0, width - 1)) + self.one_line("…")[: max(0, width)]
        padding = " " * (width - cell_len(line))
        return padding + line if right else line + padding

    def wrap(self, text: str, width: int) -> list[str]:
        """Return `text` in lines of at most `width` cells."""
        line = self.one_line(text)
        is_wide = cell_len(line) > len(line)
        return textwrap.wrap(line, max(1, width // 2 if is_wide else width))


def bars(percentages: list[float]) -> str:
    """Return a row of bars; a space where there is no number."""
    return "".join(_LEVELS[int(min(99, max(0, n)) / 12.5)] if abs(n) < 1e9 else " " for n in percentages)


def needs_ascii(encoding: str | None, environ: Mapping[str, str]) -> bool:
    """Return whether the terminal has no braille: without UTF-8, and on the console of Linux."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    has_utf8 = all("UTF8" in name.upper().replace("-", "") for name in (encoding or "", locale))
    return not has_utf8 or environ.get("TERM") == "linux"
