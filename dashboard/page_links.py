"""The pages: the title, the icon and the address of each, for the menu and for links to them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import streamlit as st

PAGES: Final = {
    "runs": ("Runs", "list", "runs"),
    "compare": ("Compare", "compare_arrows", "compare"),
    "overview": ("Overview", "dashboard", "overview"),
    "metrics": ("Metrics", "show_chart", "metrics"),
    "alerts": ("Alerts", "warning", "alerts"),
    "machine": ("Time and machine", "memory", "machine"),
    "samples": ("Samples", "image", "samples"),
    "config_notes": ("Config & output", "description", "config"),
}


def page(name: str, **options: Any) -> st.Page:
    """Return the page that the module `name` of `views` draws; Streamlit knows it by its address."""
    title, icon, address = PAGES[name]

    def draw() -> None:
        # Imported once it is opened: the first page is drawn before the others are needed.
        import_module(f".views.{name}", __package__).main()

    return st.Page(
        draw, title=title, icon=f":material/{icon}:", url_path=address, default=name == "runs", **options
    )
