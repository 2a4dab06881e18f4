"""The menu of a run: rename, tag, report, export, archive, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import streamlit as st

from toolkit.telemetry.reports.document import Document
from toolkit.telemetry.reports.html_page import to_html
from toolkit.telemetry.reports.markdown import to_markdown
from toolkit.telemetry.reports.overview import overview
from toolkit.telemetry.reports.stored_run import content_of_run
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runs.columns.export import download_name, metrics_to_csv, metrics_to_parquet
from toolkit.telemetry.runs.formatting import clean, md, size
from toolkit.telemetry.runs.store import Refused, RunCard, RunStore

from .. import page_links, session
from . import page_states
from .script import sent_by, show_component

CHOSEN: Final = "_menu_chosen"
_RENAME, _REPORT, _EXPORT = "Rename and tag…", "Report…", "Export…"
_ARCHIVE, _UNARCHIVE, _DELETE = "Archive", "Unarchive", "Delete"
_MAX_DOWNLOAD: Final = 500_000_000


def run_menu(store: RunStore, card: RunCard) -> None:
    """Show the menu of a run."""
    entries = [_REPORT, _EXPORT]
    if session.read_only_reason() is None:
        entries = [_RENAME, *entries, _UNARCHIVE if card.archived else _ARCHIVE, _DELETE]
    key = f"_menu {card.key}"
    show_component(
        "menu",
        '<div class="telemetry-menu"><select aria-label="Run"></select></div>',
        data={"label": "⋯  Run", "entries": entries},
        key=key,
        on_chosen_change=lambda: st.session_state.update({CHOSEN: sent_by(key, "chosen").get("entry")}),
        default={"chosen": None},
    )
    chosen = st.session_state.pop(CHOSEN, None)
    if chosen not in entries:
        return
    if chosen == _RENAME:
        notes = {"run": card.key, "tab": "Notes"}
        st.switch_page(page_links.page("config_notes"), query_params=notes)
    elif chosen == _REPORT:
        report_dialog(card.name, lambda: overview(content_of_run(store, card.key)))
    elif chosen == _EXPORT:
        export(store, card.key)
    elif chosen in (_ARCHIVE, _UNARCHIVE):
        archive(store, card.key, archived=chosen == _ARCHIVE)
    elif chosen == _DELETE:
        delete(store, card.key)


def archive(store: RunStore, key: str, *, archived: bool) -> None:
    """Archive or unarchive a run."""
    if page_states.is_done(lambda: store.label(key, replace(store.meta(key).labels, archived=archived))):
        st.toast("Archived." if archived else "Unarchived.")
        st.rerun()


def delete(store: RunStore, key: str) -> None:
    """Move the run to the trash, or hide it if another tool logged it; the Runs page offers to undo that."""
    card = store.card(key)
    if card.live and card.logged_by is None:
        st.error(f"The run is {md(card.status.name)}: stop it first.")
        return
    try:
        token = store.delete(key)
    except Refused as error:
        st.error(md(str(error)))
        return
    what = "was moved to the trash" if card.logged_by is None else "is hidden here; its files stay"
    text = f"{md(card.name, 60) or md(key, 60)} {what}."
    session.offer_undo(text, [(token, key)], is_deletion=True)
    st.toast(f"{text} You can restore it in Settings.")
    session.forget_run()
    st.switch_page(page_links.page("runs"))


@st.dialog("Export")
def export(store: RunStore, key: str) -> None:
    """Offer the run's records as files."""
    card = store.card(key)
    metrics = [info.name for info in store.metrics(key)]
    st.caption(
        "Exports all logged data, not only the points a chart draws. To save a chart as PNG, use its own button."
    )

    for form, ending, make, kind in (
        ("CSV", "csv", metrics_to_csv, "text/csv"),
        ("Parquet", "parquet", metrics_to_parquet, "application/vnd.apache.parquet"),
    ):
        st.download_button(
            f"All metrics as {form}",
            partial(make, store, key, metrics),
            download_name(card.name, "metrics", ending),
            kind,
            on_click="ignore",
        )
    bytes_there = store.refresh(key, wait_s=0.0).bytes_read
    if bytes_there <= _MAX_DOWNLOAD:
        st.download_button(
            f"All records as JSONL ({size(bytes_there)})",
            lambda: _records(store, key),
            download_name(card.name, "metrics", "jsonl"),
            "application/x-ndjson",
            on_click="ignore",
        )
    else:
        st.caption(
            f"The records are too large to download here ({size(bytes_there)}). Copy the file instead:"
        )
    st.code(clean(card.place if card.logged_by else f"{card.place}/{METRICS_JSONL}"), language=None)
    if session.read_only_reason() is not None:
        st.caption("Nothing is written to the server.")


def _records(store: RunStore, key: str) -> bytes:
    data = bytearray()
    for piece in store.record_lines(key):
        data += piece
        if len(data) > _MAX_DOWNLOAD:
            raise Refused(f"the records are more than {size(_MAX_DOWNLOAD)}")
    return bytes(data)


# ---------------------------------------------------------------- report


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
        key="_report_html",
    )
    st.caption("One file that opens without a network, with the curves and their data inside.")
    st.markdown("Markdown, to paste into a chat or an issue; the button at its corner copies it:")
    st.code(to_markdown(document), language="markdown", height=320, wrap_lines=True)


def report_button(name: str, make: Callable[[], Document]) -> None:
    """Show the button that opens the dialog."""
    if st.button(
        "Report",
        type="tertiary",
        key="_report",
        help="Download this page as one HTML file, or copy it as Markdown.",
    ):
        report_dialog(name, make)
