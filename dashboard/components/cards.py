"""Cards with a number and a sparkline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import streamlit as st

from toolkit.telemetry.reports.ledger_labels import advice_on, percent
from toolkit.telemetry.reports.svg import text_html
from toolkit.telemetry.runs.formatting import clean, count, duration, md
from toolkit.telemetry.runs.store import TimeSpent
from toolkit.telemetry.timing.ledger import Ledger, SessionLedger
from toolkit.telemetry.timing.names import IN_TRAINING

from ..charts.ledger import bar_html, legend_html, table_html
from .script import show_markup


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
    show_markup(cards_html(cards), key=key)


def cards_html(cards: Sequence[Card]) -> str:
    """Return `cards` as HTML made from escaped text."""
    # As many in each row, so that none is alone in the last one; a long value, such as the name of a model, gets room.
    columns = (math.ceil(len(cards) / math.ceil(len(cards) / most)) if cards else 1 for most in (8, 4))
    style = "--columns:{};--half:{}".format(*columns)
    return f'<div class="telemetry-cards" style="{style}">{"".join(map(_card_html, cards))}</div>'


def _card_html(card: Card) -> str:
    title = f' title="{text_html(card.help, 400)}"' if card.help else ""
    delta = f'<span class="telemetry-card-delta">{text_html(card.delta)}</span>' if card.delta else ""
    about = f"<span>{text_html(card.about)}</span>" if card.about else ""
    value = text_html(card.value)
    # What does not fit can be read.
    return (
        f'<div class="telemetry-card telemetry-tone-{card.tone}"{title}>'
        f'<div class="telemetry-card-label">{text_html(card.label)}</div>'
        f'<div class="telemetry-card-value" title="{value}">{value}</div>'
        f'<div class="telemetry-card-about">{delta}{about}</div>{_sparkline(card.spark)}</div>'
    )


def _sparkline(values: Sequence[float | None]) -> str:
    """Return straight lines between the points, and none where nothing was logged."""
    known = [value for value in values if value is not None]
    if len(values) < 2 or not known:
        return ""
    # As shares of the largest: a difference of huge values may be no number.
    largest = max(map(abs, known)) or 1.0
    low, span = min(known) / largest, max(known) / largest - min(known) / largest
    lines: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            y = 50 if span <= 1e-9 else round(93 - 86 * (value / largest - low) / span)
            lines[-1].append(f"{number},{y}")
    drawn = "".join(f'<polyline points="{" ".join(line)}"/>' for line in lines if len(line) > 1)
    return f'<svg viewBox="0 0 {len(values) - 1} 100" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


# ---------------------------------------------------------------- where the time went


_MAX_SESSIONS: Final = 12
_INFERRED: Final = (
    "\\* Inferred: part of this time was not measured directly. "
    "Add spans around the parts of the loop to make it exact."
)


def ledger_bar(spent: TimeSpent, *, key: str) -> None:
    """Show the ledger; with the same `key` it is updated in place and stays expanded."""
    ledger = spent.ledger
    bar = bar_html(_headline(ledger), _summary(spent), ledger.lines)
    _draw(bar + legend_html(ledger.lines), key=f"_ledger {key}")
    advice = advice_on(ledger)
    if advice is not None:
        st.caption(f":orange[▲] {advice.text}" if advice.much else advice.text)
    with st.expander("Time breakdown"):
        _draw(table_html(ledger), key=f"_ledger table {key}")
        st.caption("  \n".join(_notes(ledger)))
        if len(ledger.sessions) > 1:
            _sessions(ledger.sessions, key=f"_ledger sessions {key}")


def _headline(ledger: Ledger) -> str:
    if ledger.goodput is None:
        return "Goodput"
    is_inferred = any(line.inferred for line in ledger.lines if line.entry == IN_TRAINING)
    return f"Goodput {'about ' if is_inferred else ''}{percent(ledger.goodput)}"


def _summary(spent: TimeSpent) -> str:
    ledger = spent.ledger
    sessions = f" in {count(len(ledger.sessions))} sessions" if len(ledger.sessions) > 1 else ""
    energy = f" · {ledger.kwh:.3g} kWh" if ledger.kwh is not None else ""
    so_far = f" · {spent.fraction:.0%} of the records processed so far" if spent.fraction < 1 else ""
    return f"{duration(ledger.wall_s)} of wall time{sessions}{energy}{so_far}"


def _notes(ledger: Ledger) -> list[str]:
    notes = ["Goodput is the percentage of wall time spent on training that was kept."]
    if any(line.inferred and line.seconds > 0 for line in ledger.lines):
        notes.append(_INFERRED)
    if ledger.between_sessions_s > 0:
        notes.append(f"The {duration(ledger.between_sessions_s)} between sessions are not counted.")
    return [*notes, *(md(note, 300) for note in ledger.notes)]


def _sessions(sessions: Sequence[SessionLedger], *, key: str) -> None:
    shown = sessions[-_MAX_SESSIONS:]
    bars = []
    for one in shown:
        tag = f" · {clean(one.perf_tag)[:40]}" if one.perf_tag else ""
        good = f"goodput {percent(one.goodput)} · " if one.goodput is not None else ""
        left, right = f"Session {one.session}{tag}", f"{good}{duration(one.wall_s)}"
        bars.append(bar_html(left, right, one.lines))
    _draw("".join(bars), key=key)
    if len(shown) < len(sessions):
        st.caption(f"The last {count(len(shown))} of {count(len(sessions))} sessions.")


def _draw(html: str, *, key: str) -> None:
    show_markup(f'<div class="telemetry-ledger">{html}</div>', key=key)
