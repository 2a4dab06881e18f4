"""Cards with a number and a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import streamlit as st

from dashboard.components.chart import PALETTES
from dashboard.components.script import component_key, loader
from dashboard.data.formatting import clean

_STYLE = """
.telemetry-cards { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); }
.telemetry-card {
  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); overflow: hidden;
  display: flex; flex-direction: column; padding: 0.8rem 0 0 0; font-variant-numeric: tabular-nums;
}
.telemetry-card > div { padding: 0 0.9rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.telemetry-card-label { font-size: 0.85rem; opacity: 0.85; }
.telemetry-card-value { font-size: 1.5rem; line-height: 1.35; }
.telemetry-card-about { font-size: 0.8rem; min-height: 1.3rem; opacity: 0.85; display: flex; gap: 0.4rem; }
.telemetry-card-delta { font-weight: 600; }
.telemetry-card svg { width: 100%; height: 44px; margin: 0.35rem 0 0.6rem 0; display: block; }
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
