"""Curves in characters: every column shows minimum and maximum, so no spike is hidden, and NaN is marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from toolkit.telemetry.cli.top.reading import Curve, View
from toolkit.telemetry.cli.top.text import Line
from toolkit.telemetry.runs.formatting import NO_VALUE, count, duration, short_number
from toolkit.telemetry.runs.store import Floats

_BRAILLE: Final = (0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80)
"""The bits of a character's dots, two next to each other and four above each other."""
_EMPTY: Final = "\u2800"
_LABEL: Final = 9
"""Width of the values at the y axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """How charts are drawn: `span` is the first and the last x."""

    view: View
    span: tuple[float, float]

    @property
    def columns(self) -> int:
        """How many characters wide the curves are."""
        return max(1, self.view.width - _LABEL - 1)

    def column_of(self, x: float, across: int = 1) -> int:
        """Return the column of a place on the x axis, with `across` columns a character."""
        low, high = self.span
        share, most = (x - low) / (high - low) if high > low else 0.5, self.columns * across
        # In this order, a place that is not a number is the first one.
        return min(most - 1, int(min(1.0, max(0.0, share)) * most))

    def draw(self, title: str, curves: Sequence[Curve], height: int) -> list[Line]:
        """Return `height` lines: a head, the curves, and the x axis with its marks."""
        view, text = self.view, self.view.text
        # Where colours do not tell curves apart, they consist of their labels.
        letters = text.is_ascii or (view.no_color and len(view.keys) > 1)
        rows, across, down = max(0, height - 2), *((1, 1) if letters else (2, 4))
        parts = [
            (curve.label, x, np.log10(np.where(y > 0, y, np.nan)) if view.log else y, style)
            for curve in curves
            for x, y, style in curve.parts()
        ]
        every = np.concatenate([np.empty(0), *(y[np.isfinite(y)] for _, _, y, _ in parts)])
        low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
        labelled = {0, rows // 2, rows - 1} if high > low else {rows // 2} if len(every) else set()
        if not high > low:
            low, high = low - (abs(low) or 1), high + (abs(high) or 1)
        cells: dict[tuple[int, int], tuple[str, str]] = {}
        for label, x, y, style in parts:
            # Halves, because the difference of two large numbers may be infinite.
            depths = (1 - (y / 2 - low / 2) / (high / 2 - low / 2)) * (rows * down - 1)
            for column, dot in self._dots(x, depths, across):
                place = (dot // down, column // across)
                dots = ord(cells.get(place, (_EMPTY, ""))[0]) | _BRAILLE[dot % 4 * 2 + column % 2]
                cells[place] = (label if letters else chr(dots), style)
        resumes = {self.column_of(x) for curve in curves for x in curve.resumes if math.isfinite(x)}
        cursor = None if view.cursor is None else self.column_of(view.cursor)
        marks: dict[int | None, str] = {**dict.fromkeys(resumes, text.one_line("┊"))}
        marks[cursor] = text.one_line("│")
        lines = [self._head(title, curves, is_empty=not len(every))]
        for row in range(rows):
            share = row / max(1, rows - 1) if len(labelled) > 1 else 0.5
            value = high * (1 - share) + low * share
            label = short_number(float(np.float64(10) ** value) if view.log else value)
            label = text.fit(label if row in labelled else "", _LABEL, right=True)
            line = [(label + text.one_line("│"), "dim")]
            for column in range(self.columns):
                glyph, style = cells.get((row, column), ("", ""))
                style = f"reverse {style}" if column == cursor else style
                line.append((glyph, style) if glyph else (marks.get(column, " "), "dim"))
            lines.append(line)
        return [*lines, self._axis(curves, resumes)]

    def _dots(self, x: Floats, depths: Floats, across: int) -> Iterator[tuple[int, int]]:
        """Yield column and row of what is filled: each point, and the way from one to the next."""
        before: tuple[int, float] | None = None
        for at, depth in zip(x.tolist(), depths.tolist(), strict=True):
            if not (math.isfinite(depth) and math.isfinite(at)):
                before = None
                continue
            column = self.column_of(at, across)
            start, level = before or (column, depth)
            wide = max(1, column - start)
            for step in range(wide):
                ends = [level + (depth - level) * (step + more) / wide for more in (0, 1)]
                for dot in range(round(min(ends)), round(max(ends)) + 1):
                    yield min(column, start + step + (column > start)), dot
            before = (column, depth)

    def _x_text(self, x: float) -> str:
        return duration(x) if self.view.axis == "elapsed" else count(round(x))

    def _head(self, title: str, curves: Sequence[Curve], *, is_empty: bool) -> Line:
        bad = sum(run.count for curve in curves for run in curve.series.non_finite)
        notes = [title, *["log"] * self.view.log, *[f"{bad:,} NaN or infinite"] * bool(bad)]
        if is_empty:
            notes.append("no number" + " above 0" * self.view.log)
        elif self.view.cursor is not None:
            wide, column = (self.span[1] - self.span[0]) / self.columns, self.column_of(self.view.cursor)
            low = self.span[0] + wide * column
            high = low + wide if column < self.columns - 1 else math.inf
            values = [
                f"{curve.label} " * (len(curves) > 1) + _values_at(curve, low, high) for curve in curves
            ]
            notes.append(f"at {self._x_text(self.view.cursor)}: {', '.join(values)}")
        elif len(curves) == 1 and curves[0].series.segments:
            notes.append(f"last {short_number(float(curves[0].series.segments[-1].y[-1]))}")
        return [(self.view.text.fit(" · ".join(notes), self.view.width), "bold")]

    def _axis(self, curves: Sequence[Curve], resumes: set[int]) -> Line:
        """Return the x axis: first and last place, R where a session resumes, N or I at NaN and infinity."""
        text, axis = self.view.text, self.view.axis
        marks = [*text.one_line("─" * self.columns)]
        first, last = (self._x_text(x) for x in self.span)
        middle = f" {'time' if axis == 'elapsed' else axis} "
        if len(first + middle + last) + 4 < self.columns:
            marks[: len(first) + 1] = f"{first} "
            marks[-len(last) - 1 :] = f" {last}"
            marks[self.columns // 2 : self.columns // 2 + len(middle)] = middle
        line = [(" " * _LABEL + text.one_line("└"), "dim"), *((mark, "dim") for mark in marks)]
        for column in resumes:
            line[column + 1] = ("R", "bold yellow")
        for run in (run for curve in curves for run in curve.series.non_finite):
            for column in range(self.column_of(run.first_x), self.column_of(run.last_x) + 1):
                line[column + 1] = ("N" if run.kind == "NaN" else "I", "bold reverse red")
        return line


def _values_at(curve: Curve, low: float, high: float) -> str:
    """Return the values between two places of the x axis; the nearest one if there is none."""
    parts = curve.series.segments
    if not parts:
        return NO_VALUE
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    inside = y[(x >= low) & (x < high)]
    inside = inside if len(inside) else y[[int(np.argmin(np.abs(x - low)))]]
    finite = inside[np.isfinite(inside)]
    ends = (finite.min(), finite.max()) if len(finite) else ()
    odd = [] if len(finite) == len(inside) else ["NaN or infinite"]
    return ", ".join([" to ".join(dict.fromkeys(map(short_number, ends)))] * bool(ends) + odd)
