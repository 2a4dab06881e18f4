"""A text field for notes that saves itself while one types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolkit.telemetry.runs.formatting import clean

from .script import sent_by, show_component

MAX_NOTES: Final = 100_000
_HTML: Final = (
    '<div class="telemetry-notes"><label><span>Notes</span><textarea></textarea></label>'
    '<div class="telemetry-notes-line"><button type="button">Save</button><span role="status"></span></div></div>'
)


def notes_field(
    text: str, *, run: str, key: str, disabled: bool, problem: str, on_change: Callable[[], None]
) -> None:
    """Show the notes of a run; `on_change` is called when they are to be saved, and `notes_in(key)` returns them."""
    show_component(
        "notes",
        _HTML,
        data={
            "run": clean(run),
            "text": text,
            "label": "Notes",
            "placeholder": "What you tried, and how it went. Markdown works: # heading, **bold**, - list, `code`.",
            "disabled": disabled,
            "problem": problem,
            "max": MAX_NOTES,
        },
        key=key,
        on_notes_change=on_change,
        default={"notes": None},
    )


def notes_in(key: str) -> str | None:
    """Return the text that the browser sent last; None before that."""
    text = sent_by(key, "notes").get("text")
    return text[:MAX_NOTES] if isinstance(text, str) else None
