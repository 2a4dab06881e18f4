"""Tables and histograms in the records of a run, as rows to show."""

from __future__ import annotations

from typing import Any, Final

from dashboard.data.formatting import clean, short_number

_MAX_ROWS: Final = 200
_MAX_COLUMNS: Final = 50


def table_of(kind: str, content: Any) -> list[dict[str, str]] | None:
    """Return the rows of a logged table or histogram; None if `content` is neither."""
    if kind == "histogram" and isinstance(content, dict):
        return _bins(content.get("edges"), content.get("counts"))
    if kind == "table" and isinstance(content, list) and content and isinstance(content[0], dict):
        return [
            {
                clean(str(name))[:100]: clean(str(value))[:1_000]
                for name, value in list(row.items())[:_MAX_COLUMNS]
            }
            for row in content[:_MAX_ROWS]
            if isinstance(row, dict)
        ]
    return None


def _bins(edges: Any, counts: Any) -> list[dict[str, str]] | None:
    """Return one row a bin; edges are one more than counts, or the upper ones."""
    if not isinstance(edges, list) or not isinstance(counts, list) or not counts:
        return None
    numbers = [*edges, *counts]
    if not all(isinstance(number, (int, float)) for number in numbers) or len(edges) < len(counts):
        return None
    upper = edges[len(edges) - len(counts) :]
    return [
        {"up to": short_number(edge), "count": short_number(number)}
        for edge, number in list(zip(upper, counts, strict=True))[:_MAX_ROWS]
    ]
