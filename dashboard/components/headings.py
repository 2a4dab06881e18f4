"""Headings: one for the page, one for each of its parts, so that a screen reader can jump between them."""

from __future__ import annotations

from typing import Literal

import streamlit as st

Width = Literal["stretch", "content"]


def page_title(text: str, *, width: Width = "stretch") -> None:
    """Show the one title of a page; `text` is Markdown."""
    st.title(text, anchor=False, width=width)


def section(text: str, *, level: Literal[2, 3] = 2, width: Width = "stretch") -> None:
    """Show the title of a part of a page, or of a chart; `text` is Markdown, 3 is for a part of a part."""
    (st.header if level == 2 else st.subheader)(text, anchor=False, width=width)
