"""The time ledger as bars and as a table, in the colours of its entries: HTML made from escaped text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toolkit.telemetry.reports.ledger_labels import label_of, percent
from toolkit.telemetry.reports.svg import text_html
from toolkit.telemetry.runs.formatting import NO_VALUE, duration
from toolkit.telemetry.timing import names
from toolkit.telemetry.timing.ledger import Ledger, Line

from .palette import DARK, ENTRIES, LIGHT

_HATCHED: Final = frozenset({names.STALLED, names.REWORK})
"""Lost time is also hatched, so that it is recognisable without colours."""

_MIN_VISIBLE: Final = 0.0005
"""A smaller fraction is less than a pixel wide; the table still has it."""


def bar_html(left: str, right: str, lines: Sequence[Line]) -> str:
    """Return one bar, with a text above each of its ends."""
    shown = _visible(lines)
    titles = [f"{label_of(one.entry)}: {duration(one.seconds)}, {percent(one.share)}" for one in shown]
    parts = "".join(
        f'<div class="telemetry-ledger-part" title="{text_html(title)}" '
        f'style="flex-grow:{one.share:.6f};background:{_paint(one.entry)}"></div>'
        for one, title in zip(shown, titles, strict=True)
    )
    said = text_html("; ".join(titles), 2_000)
    return (
        f'<div class="telemetry-ledger-line"><span>{text_html(left)}</span><span>{text_html(right)}</span></div>'
        f'<div class="telemetry-ledger-strip" role="img" aria-label="{said}">{parts}</div>'
    )


def legend_html(lines: Sequence[Line]) -> str:
    """Return the names of the parts of a bar."""
    items = "".join(
        f"<li>{_swatch(one.entry)}<span>{text_html(label_of(one.entry))}</span>"
        f'<span class="telemetry-ledger-about">{text_html(percent(one.share))}</span></li>'
        for one in _visible(lines)
    )
    return f'<ul class="telemetry-ledger-names">{items}</ul>'


def table_html(ledger: Ledger) -> str:
    """Return the entries with any time, with an energy column if known."""
    with_energy = ledger.kwh is not None
    rows = [
        [
            f"{_swatch(one.entry)}{text_html(label_of(one.entry))}{' *' if one.inferred else ''}",
            duration(one.seconds),
            text_html(percent(one.share)),
            *([NO_VALUE if one.kwh is None else f"{one.kwh:.3g}"] if with_energy else []),
        ]
        for one in ledger.lines
        if one.seconds > 0
    ]
    rows.append(["total", duration(ledger.wall_s), "100 %", f"{ledger.kwh or 0.0:.3g}"][: 3 + with_energy])
    head = "".join(f"<th>{name}</th>" for name in ["", "time", "of total", "kWh"][: 3 + with_energy])
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<table class="telemetry-ledger-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _visible(lines: Sequence[Line]) -> list[Line]:
    return [one for one in lines if one.share >= _MIN_VISIBLE]


def _swatch(entry: str) -> str:
    return f'<span class="telemetry-ledger-swatch" style="background:{_paint(entry)}"></span>'


def _paint(entry: str) -> str:
    name, opacity = ENTRIES.get(entry, ("muted", 1.0))
    colour = f"color-mix(in srgb, light-dark({LIGHT[name]}, {DARK[name]}) {100 * opacity:g}%, transparent)"
    if entry not in _HATCHED:
        return colour
    pale = f"color-mix(in srgb, {colour} 45%, transparent)"
    return f"repeating-linear-gradient(135deg, {colour} 0 5px, {pale} 5px 9px)"
