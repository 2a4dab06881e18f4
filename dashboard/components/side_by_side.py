"""Texts side by side (stacked on a phone), with their differences highlighted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import streamlit as st

from dashboard.components.script import component_key, loader
from toolkit.runs.files.word_diff import DiffPart
from toolkit.runs.formatting import clean

_STYLE: Final = """
.telemetry-sides { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.telemetry-side {
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); min-width: 0; overflow: hidden;
}
.telemetry-side-head {
  display: flex; justify-content: space-between; flex-wrap: wrap; column-gap: 0.8rem; padding: 0.4rem 0.75rem;
  font-size: 0.85rem; border-bottom: 1px solid var(--st-border-color); font-variant-numeric: tabular-nums;
  background: var(--st-secondary-background-color);
}
.telemetry-side-title { font-weight: 600; }
.telemetry-side-about { opacity: 0.85; }
.telemetry-side-text {
  padding: 0.6rem 0.75rem; max-height: 32rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: 0.9rem; line-height: 1.5; font-family: var(--st-code-font, monospace);
}
.telemetry-side-text del, .telemetry-side-text ins { text-decoration-thickness: 1px; border-radius: 2px; }
.telemetry-side-text del {
  text-decoration: underline dotted; background: color-mix(in srgb, var(--st-red-color, red) 24%, transparent);
}
.telemetry-side-text ins {
  text-decoration: underline solid; background: color-mix(in srgb, var(--st-green-color, green) 24%, transparent);
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the texts; `mark` says how words that only it has are marked: as deleted or inserted."""

    title: str
    about: str
    parts: Sequence[DiffPart]
    mark: Literal["del", "ins"]


def side_by_side(sides: Sequence[Side], *, key: str) -> None:
    """Show texts side by side, never interpreted as markup."""
    component = st.components.v2.component(
        "telemetry_sides",
        html='<div class="telemetry-sides"></div>',
        css=_STYLE,
        js=loader("side_by_side"),
        isolate_styles=False,
    )
    component(
        data={
            "panes": [
                {
                    "title": clean(side.title),
                    "about": clean(side.about),
                    "parts": [[clean(part.text), side.mark if part.only_here else ""] for part in side.parts],
                }
                for side in sides
            ]
        },
        key=component_key(key),
    )
