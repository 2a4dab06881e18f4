"""Where a run's time went: a bar, the largest cost besides training, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from dashboard.charts.ledger import bar_of, table_of
from dashboard.components.chart import PALETTES
from dashboard.components.script import component_key, loader
from toolkit.reports.ledger_labels import advice_on, percent
from toolkit.runs.formatting import clean, count, duration, md
from toolkit.runs.store import TimeSpent
from toolkit.timing.ledger import Ledger, SessionLedger
from toolkit.timing.names import IN_TRAINING

_MAX_SESSIONS: Final = 12
_INFERRED: Final = (
    "\\* Inferred: part of this time was not measured directly. "
    "Add spans around the parts of the loop to make it exact."
)
_STYLE: Final = """
.telemetry-ledger { display: flex; flex-direction: column; gap: 0.45rem; font-variant-numeric: tabular-nums; }
.telemetry-ledger-line { display: flex; justify-content: space-between; flex-wrap: wrap; column-gap: 1rem; }
.telemetry-ledger-line { font-size: 0.9rem; margin-bottom: 0.25rem; }
.telemetry-ledger-strong { font-weight: 600; }
.telemetry-ledger-strip { display: flex; height: 26px; overflow: hidden; border-radius: var(--st-base-radius); }
.telemetry-ledger-small { height: 12px; }
.telemetry-ledger-part {
  flex-basis: 0; min-width: 2px; overflow: hidden; white-space: nowrap; text-align: center;
  font-size: 0.8rem; font-weight: 600; line-height: 26px; color: var(--st-background-color);
  border-right: 1px solid var(--st-background-color);
}
.telemetry-ledger-part:last-child { border-right: 0; }
.telemetry-ledger-part.telemetry-ledger-pale { color: var(--st-text-color); }
.telemetry-ledger-names { display: flex; flex-wrap: wrap; gap: 0.15rem 1rem; margin: 0; padding: 0; list-style: none; }
.telemetry-ledger-names li { font-size: 0.85rem; margin: 0; padding: 0; white-space: nowrap; }
.telemetry-ledger-about { opacity: 0.75; margin-left: 0.35rem; }
.telemetry-ledger-swatch {
  display: inline-block; width: 0.7rem; height: 0.7rem; border-radius: 2px; margin-right: 0.4rem;
  vertical-align: baseline;
}
.telemetry-ledger-table { border-collapse: collapse; font-size: 0.85rem; width: 100%; max-width: 34rem; margin: 0; }
.telemetry-ledger-table th, .telemetry-ledger-table td {
  border: 0; border-bottom: 1px solid var(--st-border-color); padding: 0.25rem 0.4rem; text-align: right;
  white-space: nowrap;
}
.telemetry-ledger-table th { font-weight: 400; opacity: 0.75; }
.telemetry-ledger-table td:first-child, .telemetry-ledger-table th:first-child { text-align: left; padding-left: 0; }
.telemetry-ledger-table td:first-child { white-space: normal; }
.telemetry-ledger-table tr:last-child td { font-weight: 600; border-bottom: 0; }
"""


def ledger_bar(spent: TimeSpent, *, key: str) -> None:
    """Show the ledger; with the same `key` it is updated in place and stays expanded."""
    ledger = spent.ledger
    parts = bar_of(ledger.lines)
    _draw(
        {
            "bars": [{"left": _headline(ledger), "right": _summary(spent), "parts": parts, "slim": True}],
            "names": parts,
        },
        key=f"_ledger {key}",
    )
    advice = advice_on(ledger)
    if advice is not None:
        icon = ":orange[:material/warning:]" if advice.much else ":material/lightbulb:"
        st.caption(f"{icon} {advice.text}")
    with st.expander("Time breakdown"):
        _draw({"bars": [], "table": table_of(ledger)}, key=f"_ledger table {key}")
        for note in _notes(ledger):
            st.caption(note)
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
        bars.append(
            {
                "left": f"Session {one.session}{tag}",
                "right": f"{good}{duration(one.wall_s)}",
                "parts": bar_of(one.lines),
                "small": True,
            }
        )
    _draw({"bars": bars}, key=key)
    if len(shown) < len(sessions):
        st.caption(f"The last {count(len(shown))} of {count(len(sessions))} sessions.")


def _draw(data: Mapping[str, Any], *, key: str) -> None:
    component = st.components.v2.component(
        "telemetry_ledger",
        html='<div class="telemetry-ledger"></div>',
        css=_STYLE,
        js=loader("ledger_bar"),
        isolate_styles=False,
    )
    component(data={**data, "palettes": PALETTES}, key=component_key(key))
