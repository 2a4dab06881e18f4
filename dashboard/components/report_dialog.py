"""Offers what a page shows as one HTML file, or as Markdown to paste."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from toolkit.reports.document import Document
from toolkit.reports.html_page import to_html
from toolkit.reports.markdown import to_markdown
from toolkit.runs.columns.export import download_name


@st.dialog("Report", width="medium")
def report_dialog(name: str, make: Callable[[], Document]) -> None:
    """Make a report and offer it; nothing is made before this is open."""
    with st.spinner("Making the report …"):
        document = make()
    st.download_button(
        "Download report (HTML)",
        lambda: to_html(document).encode("utf-8", "replace"),
        download_name(name, "report", "html"),
        "text/html",
        on_click="ignore",
        type="primary",
        icon=":material/download:",
        key="_report_html",
    )
    st.caption("One file that opens without a network, with the curves and their data inside.")
    st.markdown("Markdown, to paste into a chat or an issue; the button at its corner copies it:")
    st.code(to_markdown(document), language="markdown", height=320, wrap_lines=True)


def report_button(name: str, make: Callable[[], Document]) -> None:
    """Show the button that opens the dialog."""
    if st.button(
        "Report",
        icon=":material/ios_share:",
        type="tertiary",
        key="_report",
        help="Download this page as one HTML file, or copy it as Markdown.",
    ):
        report_dialog(name, make)
