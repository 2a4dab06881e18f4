"""Carries open alerts to a person who is elsewhere: tab title and icon, a count beside Alerts, a notification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import streamlit as st

from dashboard.components.script import component_key, loader
from toolkit.runs.findings.alerts import Alert
from toolkit.runs.formatting import clean
from toolkit.runs.store import RunCard

_ICONS: Final = Path(__file__).parents[1]
ICON: Final = str(_ICONS / "icon.png")
CRITICAL_ICON: Final = str(_ICONS / "icon_critical.png")
"""With a red dot."""

_MAX_TEXT: Final = 200
_STYLE: Final = """
.telemetry-live {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
[data-testid="stElementContainer"]:has(.telemetry-live) { position: absolute; width: 1px !important; overflow: hidden; }
.telemetry-notify { display: flex; flex-wrap: wrap; gap: 0.3rem 0.8rem; align-items: center; font-size: 0.85rem; }
.telemetry-notify span { opacity: 0.85; }
.telemetry-notify-button {
  font: inherit; color: inherit; background: transparent; cursor: pointer; padding: 0.3rem 0.8rem;
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius, var(--st-base-radius));
}
.telemetry-notify-button:hover, .telemetry-notify-button:focus-visible {
  border-color: var(--st-primary-color); color: var(--st-primary-color);
}
[data-telemetry-count]::after {
  content: attr(data-telemetry-count); margin-left: auto; min-width: 1.25rem; padding: 0 0.35rem;
  box-sizing: border-box; border-radius: 0.7rem; font-size: 0.75rem; line-height: 1.25rem; text-align: center;
  font-weight: 600;
  font-variant-numeric: tabular-nums; color: #fff; background: #8a5a00;
}
[data-telemetry-critical="yes"]::after { background: #b3261e; }
"""


def tab_title(card: RunCard, glyph: str, alerts: Sequence[Alert]) -> str:
    """Return the title of the browser's tab: the worst critical alert, or the run's state."""
    done = f"{card.progress:.0%} " if card.progress is not None else ""
    worst = next((alert for alert in alerts if alert.severity == "critical"), None)
    if worst is None:
        return f"{glyph} {done}{card.name[:60]}"
    return f"⛔ {worst.title[:40]} · {done}{card.name[:60]}"


def attention(key: str, card: RunCard, alerts: Sequence[Alert]) -> None:
    """Announce open alerts that were neither seen nor muted: a count in the navigation, a live region, a notification.

    A notification only if the visitor has asked for it, see `notification_choice`.
    """
    shown = [alert for alert in alerts if alert.severity in ("critical", "warning")]
    worst = shown[0] if shown else None
    is_critical = worst is not None and worst.severity == "critical"
    text = f"{worst.title}. {worst.message}" if worst is not None else ""
    component = st.components.v2.component(
        "telemetry_attention",
        html='<div class="telemetry-live" role="status" aria-live="polite"></div>',
        css=_STYLE,
        js=loader("attention"),
        isolate_styles=False,
    )
    component(
        data={
            "count": len(shown),
            "critical": is_critical,
            "say": clean(f"{'Critical' if is_critical else 'Warning'}: {text}"[:_MAX_TEXT]) if text else "",
            "about": f"{key} {worst.id} {worst.kind}"[:_MAX_TEXT] if worst is not None else "",
            "title": clean(f"{worst.title} · {card.name}"[:_MAX_TEXT]) if worst is not None else "",
            "message": clean(worst.message[:_MAX_TEXT]) if worst is not None else "",
            "live": card.live,
        },
        key=component_key(f"_attention {key}"),
    )


def notification_choice() -> None:
    """Show the button that turns on notifications of the browser: off until it is clicked, kept in the browser."""
    component = st.components.v2.component(
        "telemetry_notify",
        html='<div class="telemetry-notify"></div>',
        css=_STYLE,
        js=loader("attention"),
        isolate_styles=False,
    )
    component(data={}, key="_notify")
