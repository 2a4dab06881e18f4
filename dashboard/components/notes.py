"""A text field for notes that saves itself while one types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import streamlit as st

from dashboard.components.script import component_key, loader
from toolkit.runs.formatting import clean

MAX_NOTES: Final = 100_000
_STYLE: Final = """
.telemetry-notes { display: flex; flex-direction: column; gap: 0.4rem; }
.telemetry-notes label { font-size: 0.875rem; display: flex; flex-direction: column; gap: 0.3rem; }
.telemetry-notes textarea {
  font: inherit; font-size: 1rem; line-height: 1.5; min-height: 14rem; resize: vertical; width: 100%;
  box-sizing: border-box; padding: 0.5rem 0.75rem; color: var(--st-text-color);
  background: var(--st-secondary-background-color); border: 1px solid var(--st-border-color);
  border-radius: var(--st-base-radius);
}
.telemetry-notes textarea:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: -1px; }
.telemetry-notes-line { display: flex; align-items: center; gap: 0.7rem; min-height: 2.4rem; font-size: 0.875rem; }
.telemetry-notes button {
  font: inherit; color: var(--st-text-color); background: var(--st-background-color); cursor: pointer;
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); padding: 0.3rem 0.9rem;
}
.telemetry-notes button:hover { border-color: var(--st-primary-color); }
.telemetry-notes button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
"""
_HTML: Final = (
    '<div class="telemetry-notes"><label><span>Notes</span><textarea></textarea></label>'
    '<div class="telemetry-notes-line"><button type="button">Save</button><span role="status"></span></div></div>'
)


def notes_field(
    text: str, *, run: str, key: str, disabled: bool, problem: str, on_change: Callable[[], None]
) -> None:
    """Show the notes of a run; `on_change` is called when they are to be saved, and `notes_in(key)` returns them."""
    component = st.components.v2.component(
        "telemetry_notes", html=_HTML, css=_STYLE, js=loader("notes"), isolate_styles=False
    )
    component(
        data={
            "run": clean(run),
            "text": text,
            "label": "Notes",
            "placeholder": "What you tried, and how it went. Markdown works: # heading, **bold**, - list, `code`.",
            "disabled": disabled,
            "problem": problem,
            "max": MAX_NOTES,
        },
        key=component_key(key),
        on_notes_change=on_change,
        default={"notes": None},
    )


def notes_in(key: str) -> str | None:
    """Return the text that the browser sent last; None before that."""
    state = st.session_state.get(component_key(key))
    sent = state.get("notes") if state else None
    text = sent.get("text") if isinstance(sent, Mapping) else None
    return text[:MAX_NOTES] if isinstance(text, str) else None
