"""Cards with a number and a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import streamlit as st

from dashboard.components.chart import PALETTES
from dashboard.components.script import component_key, loader
from toolkit.runs.formatting import clean

_STYLE = """
.telemetry-cards { display: grid; gap: 0.6rem; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); }
.telemetry-card {
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); overflow: hidden; position: relative;
  display: flex; flex-direction: column; padding: 0.4rem 0 0 0; font-variant-numeric: tabular-nums;
}
.telemetry-card > div { padding: 0 0.7rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.telemetry-card-label { font-size: 0.8rem; opacity: 0.9; }
.telemetry-card-value { font-size: 1.25rem; line-height: 1.3; }
.telemetry-card-about { font-size: 0.75rem; line-height: 1.1rem; min-height: 1.1rem; opacity: 0.9; }
.telemetry-card-about { display: flex; gap: 0.4rem; }
.telemetry-card-delta { font-weight: 600; }
.telemetry-card svg { position: absolute; right: 0.5rem; top: 0.45rem; width: 38%; height: 34px; opacity: 0.75; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One number; `tone` says whether its change is good, bad or neutral."""

    label: str
    value: str
    spark: Sequence[float | None] = ()
    """Its curve in a few points; None is a gap."""
    delta: str | None = None
    about: str | None = None
    tone: Literal["good", "critical", "muted"] = "muted"
    help: str | None = None


def draw_cards(cards: Sequence[Card], *, key: str) -> None:
    """Show `cards` in one row, or two per row on a phone. Texts are never interpreted as markup.

    Not st.metric: its sparkline loads all of Vega for a line of forty points.
    """
    component = st.components.v2.component(
        "telemetry_cards",
        html='<div class="telemetry-cards"></div>',
        css=_STYLE,
        js=loader("cards"),
        isolate_styles=False,
    )
    component(
        data={
            "cards": [
                {
                    "label": clean(card.label),
                    "value": clean(card.value),
                    "spark": list(card.spark),
                    "delta": clean(card.delta) if card.delta else None,
                    "about": clean(card.about) if card.about else None,
                    "tone": card.tone,
                    "help": card.help,
                }
                for card in cards
            ],
            "palettes": PALETTES,
        },
        key=component_key(key),
    )
