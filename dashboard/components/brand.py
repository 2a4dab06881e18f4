"""The mark of the product and the log directories, at the top of the side bar."""

from __future__ import annotations

import streamlit as st

from toolkit.telemetry.runs.formatting import html_text

_GREY = "#6F7B87"
"""Readable on the side bar of both themes: an image does not know which one is shown."""


def brand(places: tuple[str, ...]) -> None:
    """Show the mark, and below it where the runs are."""
    where = places[0] if len(places) == 1 else f"{len(places)} places"
    # The end of a long path is what tells folders apart.
    where = where if len(where) <= 30 else f"…{where[-29:]}"
    st.logo(
        '<svg xmlns="http://www.w3.org/2000/svg" width="220" height="32" font-family="sans-serif">'
        '<rect width="32" height="32" rx="7" fill="#0072B2"/>'
        '<path d="M6 8c3 12 7 15 20 16" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/>'
        f'<text x="41" y="13" font-size="13" font-weight="600" fill="{_GREY}">telemetry</text>'
        f'<text x="41" y="28" font-size="11" fill="{_GREY}">{html_text(where)}</text></svg>',
        size="large",
    )
