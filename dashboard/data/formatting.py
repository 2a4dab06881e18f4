"""Formats untrusted text for Streamlit and Plotly; numbers and times as reports have them."""

from __future__ import annotations

import html
import re
import string

from toolkit.reports.formatting import (
    NO_VALUE,
    ago,
    clean,
    clock,
    count,
    cut,
    duration,
    learning_rate,
    short_number,
    size,
)

__all__ = [
    "DEFAULT_LENGTH",
    "NO_VALUE",
    "ago",
    "clean",
    "clock",
    "count",
    "duration",
    "html_text",
    "learning_rate",
    "md",
    "short_number",
    "size",
]

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
