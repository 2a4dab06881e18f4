"""A document as a cell of a notebook shows it: HTML that brings its style, and Markdown where only text is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from toolkit.telemetry.reports.document import Block, Card, Chart, Document, Section
from toolkit.telemetry.reports.html_page import sections_html, style
from toolkit.telemetry.reports.markdown import to_markdown
from toolkit.telemetry.reports.svg import text_html

_SHOWN: Final = ("Key figures", "Runs", "Curves", "What differs", "Findings")
_MAX_CHARTS: Final = 4
_MAX_OTHERS: Final = 6
_MAX_LINE: Final = 400
# Front ends say that they are dark in different ways: JupyterLab, VS Code, Colab, and pages made of notebooks.
_DARK: Final = (
    ':is([data-jp-theme-light="false"],.vscode-dark,[theme="dark"],[data-theme="dark"]) .telemetry-cell'
)
_ROOT: Final = re.compile(r":root \{(.*?)\}", re.DOTALL)


def cell_of(document: Document) -> dict[str, str]:
    """Return by MIME type what a notebook shows of a document: its verdict, figures, first charts and findings."""
    chosen = [_short(section) for section in document.sections if section.title in _SHOWN]
    shown = replace(document, sections=[section for section in chosen if section.blocks])
    about = "".join(f"<li>{text_html(text)}</li>" for text in shown.about)
    html = (
        f'<div class="telemetry-cell"><style>{_style()}</style>'
        f'<ul class="about"><li class="name">{text_html(shown.title)}</li>{about}</ul>'
        f'<p class="verdict {shown.tone}">{text_html(shown.verdict, _MAX_LINE)}</p>{sections_html(shown)}</div>'
    )
    return {"text/html": html, "text/plain": to_markdown(replace(shown, made=""))}


def _short(section: Section) -> Section:
    charts = [block for block in section.blocks if isinstance(block, Chart)][:_MAX_CHARTS]
    others = [block for block in section.blocks if not isinstance(block, Chart)][:_MAX_OTHERS]
    return replace(section, blocks=charts or [_without_chart(block) for block in others])


def _without_chart(block: Block) -> Block:
    """Return a finding without the chart around it: its curve is among the first ones."""
    if not isinstance(block, Card):
        return block
    return replace(block, blocks=[part for part in block.blocks if not isinstance(part, Chart)])


def _style() -> str:
    """Return the style of reports for one element of a page that others have styled, in that page's own colours."""
    light, dark = (found[1] for found in list(_ROOT.finditer(style()))[:2])
    rest = style()[style().index("* {") :]
    return f".telemetry-cell {{{light}{rest}}} {_DARK} {{{dark}}} .telemetry-cell {{{style('cell.css')}}}"
