"""An HTML report taken apart."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

REFERENCES = ("src", "href", "action", "data", "poster", "srcset", "formaction", "background")
VOID = {"meta", "br", "img", "path", "rect", "input", "hr"}


class Page(HTMLParser):
    """What is in a page: its elements, its text, its charts and its data."""

    def __init__(self, html):
        super().__init__()
        self.html = html
        self.elements = []
        self.open = []
        self.texts = []
        self.scripts = []
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID or (tag == "path" and self.get_starttag_text()[-2:] != "/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag == "rect":
            return
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag

    def handle_data(self, text):
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside in ("script", "style") else self.texts).append(text)

    @property
    def text(self):
        return "".join(self.texts)

    @property
    def data(self):
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.html, re.DOTALL)
        return json.loads(found[1])

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def references(self):
        """Return everything that a browser would load or go to."""
        return [
            value
            for _, attributes in self.elements
            for name, value in attributes.items()
            if name in REFERENCES and value
        ]

    def drawn(self):
        """Yield for each line of each chart its curve and the points in the drawing, as values."""
        figures = [attributes for attributes in self.all("figure") if "data-curves" in attributes]
        pieces = re.split(r"<figure ", self.html)[1:]
        pieces = [piece for piece in pieces if 'data-curves="' in piece]
        assert len(figures) == len(pieces)
        for attributes, piece in zip(figures, pieces, strict=True):
            low, high, bottom, top = map(float, attributes["data-box"].split())
            ids = attributes["data-curves"].split()
            paths = re.findall(r'<path class="line [^"]*" data-line="\d+" d="([^"]*)"', piece)
            for known_by, path in zip(ids, paths, strict=True):
                numbers = re.findall(r"([\d.-]+) ([\d.-]+)", path.replace("h0", ""))
                yield (
                    self.data["curves"][int(known_by)],
                    attributes["data-log"] == "1",
                    (low, high, bottom, top),
                    [(float(x) / 1000, 1 - float(y) / 1000) for x, y in numbers],
                )
