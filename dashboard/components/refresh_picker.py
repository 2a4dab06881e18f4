"""How often the pages of a tab refresh themselves, at the foot of the side bar."""

from __future__ import annotations

from .. import session
from .script import sent_by, show_component

_KEY = "_refresh_picker"


def refresh_picker() -> None:
    """Show the intervals; not a widget of Streamlit, whose parts are five more files to load."""
    show_component(
        "choices",
        '<div class="telemetry-choices" role="radiogroup"></div>',
        data={
            "label": "Refresh every",
            "options": list(session.REFRESHES),
            "chosen": session.refresh_chosen(),
        },
        key=_KEY,
        on_chosen_change=lambda: session.choose_refresh(sent_by(_KEY, "chosen").get("name")),
        default={"chosen": None},
    )
