"""The pages: the title and the address of each, for the menu and for links to them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import streamlit as st

PAGES: Final = {
    "runs": ("Runs", "runs"),
    "compare": ("Compare", "compare"),
    "overview": ("Overview", "overview"),
    "metrics": ("Metrics", "metrics"),
    "alerts": ("Alerts", "alerts"),
    "machine": ("Time and machine", "machine"),
    "samples": ("Samples", "samples"),
    "config_notes": ("Config & output", "config"),
}


def page(name: str, **options: Any) -> st.Page:
    """Return the page that the module `name` of `views` draws; Streamlit knows it by its address."""
    title, address = PAGES[name]

    def draw() -> None:
        # Imported once it is opened: the first page is drawn before the others are needed.
        import_module(f".views.{name}", __package__).main()

    return st.Page(draw, title=title, url_path=address, default=name == "runs", **options)
