"""A document as one HTML file: style, script and data are inside, and it asks for nothing else."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.reports.document import (
    Bars,
    Block,
    Bullets,
    Card,
    Chart,
    Curve,
    Document,
    Facts,
    Pictures,
    Scatter,
    Section,
    Table,
    Text,
)
from toolkit.telemetry.reports.svg import COLOURS, chart_html, look, scatter_html, text_html
from toolkit.telemetry.runs.formatting import clean

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_MAX_TEXT: Final = 4_000
_LONG_CELL: Final = 40
_WORDS: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def to_html(document: Document) -> str:
    """Return the document as an HTML file."""
    return _Page(document).html()


def sections_html(document: Document) -> str:
    """Return the sections of the document without the page around them, for a page that has `style()`."""
    return "".join(map(_Page(document).section, document.sections))


def style(name: str = "report.css") -> str:
    """Return the style of a report, or another file of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").strip()


class _Page:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._curves: dict[int, tuple[int, Curve]] = {}
        """By identity: the number of a curve, and itself."""
        self._tables: list[Table] = []

    def html(self) -> str:
        document = self._document
        about = "".join(f"<li>{text_html(text)}</li>" for text in document.about)
        sections = "".join(map(self.section, document.sections))
        # After the sections, which collect the curves.
        data = _as_json(
            {
                "name": clean(document.title)[:100],
                "kind": document.kind,
                "verdict": clean(document.verdict),
                "curves": [_curve_json(curve) for _, curve in self._curves.values()],
                "tables": [
                    {
                        "title": clean(table.title),
                        "head": [clean(name) for name in table.head],
                        "rows": [[clean(cell) for cell in row] for row in table.rows],
                    }
                    for table in self._tables
                ],
            }
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="referrer" content="no-referrer">'
            f"<title>{text_html(document.title)}</title><style>{style()}</style></head><body><main>"
            f'<div class="kind">{text_html(document.kind)}</div><h1>{text_html(document.title)}</h1>'
            f'<ul class="about">{about}</ul>'
            f'<p class="verdict {document.tone}">{text_html(document.verdict, _MAX_TEXT)}</p>'
            f"{sections}<footer><p>{text_html(document.made, _MAX_TEXT)}</p>"
            '<button type="button" id="csv">Download the data as CSV</button>'
            '<button type="button" id="json">as JSON</button></footer></main>'
            f'<script type="application/json" id="data">{data}</script><script>{style("report.js")}</script>'
            "</body></html>\n"
        )

    def section(self, section: Section) -> str:
        blocks = "".join(map(self._block, section.blocks))
        inner = f'<div class="columns">{blocks}</div>' if section.columns else blocks
        heading = f"<h2>{text_html(section.title)}</h2>" if section.title else "<h2></h2>"
        return f"<section>{heading}{inner}</section>"

    def _block(self, block: Block) -> str:
        if isinstance(block, Text):
            name = ' class="quiet"' if block.quiet else ""
            return f"<p{name}>{text_html(block.text, _MAX_TEXT)}</p>"
        if isinstance(block, Facts):
            return _facts(block)
        if isinstance(block, Chart):
            known, curves = self._curves, [line.curve for line in block.lines]
            return chart_html(block, [known.setdefault(id(one), (len(known), one))[0] for one in curves])
        if isinstance(block, Scatter):
            return scatter_html(block)
        if isinstance(block, Table):
            self._tables.append(block)
            return _table(block)
        if isinstance(block, Bars):
            return _bars(block)
        if isinstance(block, Card):
            return self._card(block)
        if isinstance(block, Bullets):
            items = "".join(f"<li>{text_html(item, _MAX_TEXT)}</li>" for item in block.items)
            return f'<div class="bullets"><b>{text_html(block.title)}</b><ul>{items}</ul></div>'
        return _pictures(block)

    def _card(self, card: Card) -> str:
        blocks = "".join(map(self._block, card.blocks))
        return (
            f'<article class="card {card.tone}"><header><span class="tag {card.tone}">{card.tone}</span>'
            f'<h3>{text_html(card.title)}</h3><span class="when">{text_html(card.when)}</span></header>'
            f"{blocks}</article>"
        )


def _facts(facts: Facts) -> str:
    items = "".join(
        f'<div><dt>{text_html(fact.label)}</dt><dd class="{fact.tone}">{text_html(fact.value)}'
        f"{f'<small>{text_html(fact.about)}</small>' if fact.about else ''}</dd></div>"
        for fact in facts.items
    )
    return f'<dl class="facts">{items}</dl>'


def _table(table: Table) -> str:
    wide = {place for row in table.rows for place, text in enumerate(row) if place and len(text) > _LONG_CELL}
    head = "".join(
        f'<th scope="col"{_class_of("long" if place in wide else "")}>{text_html(name, 60)}</th>'
        for place, name in enumerate(table.head)
    )
    rows = []
    for number, row in enumerate(table.rows):
        colour = table.colours.get(number)
        key = "" if colour is None else f"<i {look('swatch', colour)}></i>"
        cells = [f'<th scope="row">{key}{text_html(row[0])}</th>']
        for place, text in enumerate(row[1:], start=1):
            best = (number, place) in table.best
            name = "best" if best else "long" if place in wide else ""
            cells.append(f"<td{_class_of(name)}>{text_html(text, 400)}{' ★' if best else ''}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    inner = f'<div class="scroll" tabindex="0" role="region" aria-label="{text_html(table.title)}"><table>'
    if table.open:
        inner += f"<caption>{text_html(table.title)}</caption>" if table.title else ""
    inner += f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    if table.left_out:
        inner += f'<p class="note">{text_html(table.left_out, _MAX_TEXT)}</p>'
    if table.open:
        return f'<div class="box">{inner}</div>'
    return f'<details class="box"><summary>{text_html(table.title)}</summary>{inner}</details>'


def _class_of(name: str) -> str:
    return f' class="{name}"' if name else ""


def _bars(bars: Bars) -> str:
    colours = {item.label: number for number, item in enumerate(bars.items)}
    stack = ""
    if bars.stacked:
        pieces = "".join(
            f'<i class="c{colours[item.label] % COLOURS}" style="flex:{max(item.share, 0.0):.4f}"></i>'
            for item in bars.items
        )
        stack = f'<div class="stack" aria-hidden="true">{pieces}</div>'
    rows = []
    for item in bars.items:
        if bars.stacked:
            name, middle = f'<i class="swatch c{colours[item.label] % COLOURS}"></i>', ""
        else:
            name = ""
            line = ""
            if item.low is not None and item.high is not None:
                low, high = (100 * min(max(value, 0.0), 1.0) for value in (item.low, item.high))
                line = f'<u style="left:{low:.1f}%;width:{high - low:.1f}%"></u>'
            width = 100 * min(max(item.share, 0.0), 1.0)
            middle = (
                f'<td><span class="bar" aria-hidden="true"><i class="{item.tone}" style="width:{width:.1f}%"></i>'
                f"{line}</span></td>"
            )
        rows.append(
            f'<tr><th scope="row">{name}{text_html(item.label)}</th>{middle}<td>{text_html(item.value)}</td>'
            f"<td>{text_html(item.about)}</td></tr>"
        )
    names = [f'<th scope="col">{text_html(name)}</th>' for name in bars.head]
    head = "".join([names[0], "" if bars.stacked else "<td></td>", *names[1:]])
    return (
        f'<div class="box">{stack}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _pictures(pictures: Pictures) -> str:
    items = "".join(
        f'<figure><img alt="{text_html(one.caption)}" src="data:{text_html(one.content_type)};base64,'
        f'{base64.b64encode(one.data).decode()}"><figcaption>{text_html(one.caption)}</figcaption></figure>'
        for one in pictures.items
    )
    return f'<div class="pictures">{items}</div>'


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "run": clean(curve.run),
        "metric": clean(curve.metric),
        "axis": curve.axis,
        "records": curve.records,
        "not_finite": curve.values_not_finite,
        "parts": [[[_plain(point.x), _plain(point.y)] for point in part] for part in curve.parts],
    }


def _plain(value: float) -> float | int | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return _WORDS[value]
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _as_json(value: Any) -> str:
    """Return JSON in which nothing can end the script element that holds it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
