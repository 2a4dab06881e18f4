"""Curves in characters: every column shows minimum and maximum, so no spike is hidden, and NaN is marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from toolkit.cli.top.text import Line, Text
from toolkit.runs.formatting import NO_VALUE, count, duration, short_number
from toolkit.runs.store import Floats, Series

_DOTS: Final = {"braille": (2, 4), "blocks": (1, 2), "ascii": (1, 1)}
"""How many points a character has beside and above each other."""
_BRAILLE: Final = (0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80)
_BLOCKS: Final = " ▀▄█"
LETTERS: Final = "abcdefgh"
_LABEL: Final = 9
"""Width of the values at the y axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve of a chart; at `resumes` a later session starts."""

    label: str
    style: str
    series: Series
    resumes: Sequence[float] = ()

    def points(self) -> list[tuple[Floats, Floats, str]]:
        """Return x, y and style of each part; those that a later session logged again are dim."""
        old = [(part.x, part.y, f"dim {self.style}") for part in self.series.superseded]
        return [*old, *((part.x, part.y, self.style) for part in self.series.segments)]

    def at(self, low: float, high: float) -> str:
        """Return the values between two places of the x axis; the nearest one if there is none."""
        parts = self.series.segments
        if not parts:
            return NO_VALUE
        x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
        inside = y[(x >= low) & (x < high)]
        inside = inside if len(inside) else y[[int(np.argmin(np.abs(x - low)))]]
        finite = inside[np.isfinite(inside)]
        ends = (finite.min(), finite.max()) if len(finite) else ()
        odd = [] if len(finite) == len(inside) else ["NaN or infinite"]
        return ", ".join([" to ".join(dict.fromkeys(map(short_number, ends)))] * bool(ends) + odd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """How a chart is drawn: `span` is the first and the last x; `letters` if there are no colours to tell curves."""

    text: Text
    width: int
    height: int
    span: tuple[float, float]
    axis: str = "step"
    log: bool = False
    cursor: float | None = None
    letters: bool = False

    @property
    def columns(self) -> int:
        """How many characters wide the curves are."""
        return max(1, self.width - _LABEL - 1)

    def column_of(self, x: float, across: int = 1) -> int:
        """Return the column of a place on the x axis, with `across` columns a character."""
        low, high = self.span
        share, most = (x - low) / (high - low) if high > low else 0.5, self.columns * across
        # In this order, a place that is not a number is the first one.
        return min(most - 1, int(min(1.0, max(0.0, share)) * most))

    def draw(self, title: str, curves: Sequence[Curve]) -> list[Line]:
        """Return the lines of a chart: a head, the curves, and the x axis with its marks."""
        rows = self.height - 2
        parts = [
            (n, x, self._scaled(y), style) for n, one in enumerate(curves) for x, y, style in one.points()
        ]
        every = np.concatenate([np.empty(0), *(y[np.isfinite(y)] for _, _, y, _ in parts)])
        if not len(every) or rows < 1:
            why = "no number" + " above 0" * self.log if parts else "no values yet"
            blank = [
                [(self.text.fit(why if not row else "", self.width), "dim")] for row in range(max(0, rows))
            ]
            return [self._head(title, curves), *blank, self._axis(curves, set())]
        low, high = float(every.min()), float(every.max())
        if not high > low:
            low, high = low - 0.1 * abs(low) - 1e-9, high + 0.1 * abs(high) + 1e-9
        shape = "ascii" if self.letters else self.text.charset
        across, down = _DOTS[shape]
        cells: list[list[tuple[int, str]]] = [[(0, "")] * self.columns for _ in range(rows)]
        for number, x, y, style in parts:
            # Halves, because the difference of two large numbers may be infinite.
            depths = (1 - (y / 2 - low / 2) / (high / 2 - low / 2)) * (rows * down - 1)
            for column, dot in self._dots(x, depths, across):
                row, at = dot // down, column // across
                bit = _BRAILLE[dot % 4 * 2 + column % 2] if shape == "braille" else dot % 2 + 1
                cells[row][at] = (number + 1 if shape == "ascii" else cells[row][at][0] | bit, style)
        resumes = {self.column_of(x) for curve in curves for x in curve.resumes if math.isfinite(x)}
        cursor = None if self.cursor is None else self.column_of(self.cursor)
        lines = [self._head(title, curves)]
        for row, values in enumerate(cells):
            share = row / max(1, rows - 1)
            value = high * (1 - share) + low * share
            label = (
                short_number(float(np.float64(10) ** value) if self.log else value)
                if row in (0, rows // 2, rows - 1)
                else ""
            )
            line = [(self.text.fit(label, _LABEL, right=True) + self.text.one_line("│"), "dim")]
            for column, (bits, style) in enumerate(values):
                if not bits:
                    mark = "│" if column == cursor else "┊" if column in resumes else " "
                    line.append((self.text.one_line(mark), "dim"))
                    continue
                one = LETTERS[(bits - 1) % 8] if len(curves) > 1 else "*"
                glyph = {"braille": chr(0x2800 + bits), "blocks": _BLOCKS[bits % 4], "ascii": one}[shape]
                line.append((glyph, f"reverse {style}" if column == cursor else style))
            lines.append(line)
        return [*lines, self._axis(curves, resumes)]

    def _scaled(self, y: Floats) -> Floats:
        return np.log10(np.where(y > 0, y, np.nan)) if self.log else y

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
        return duration(x) if self.axis == "elapsed" else count(round(x))

    def _head(self, title: str, curves: Sequence[Curve]) -> Line:
        bad = sum(run.count for curve in curves for run in curve.series.non_finite)
        notes = [title, *["log"] * self.log, *[f"{bad:,} NaN or infinite"] * bool(bad)]
        if self.cursor is not None:
            wide, column = (self.span[1] - self.span[0]) / self.columns, self.column_of(self.cursor)
            low = self.span[0] + wide * column
            high = low + wide if column < self.columns - 1 else math.inf
            values = [f"{curve.label} " * (len(curves) > 1) + curve.at(low, high) for curve in curves]
            notes.append(f"at {self._x_text(self.cursor)}: {', '.join(values)}")
        elif len(curves) == 1 and curves[0].series.segments:
            notes.append(f"last {short_number(float(curves[0].series.segments[-1].y[-1]))}")
        return [(self.text.fit(" · ".join(notes), self.width), "bold")]

    def _axis(self, curves: Sequence[Curve], resumes: set[int]) -> Line:
        """Return the x axis: first and last place, R where a session resumes, N or I at NaN and infinity."""
        marks = [*self.text.one_line("─" * self.columns)]
        first, last = (self._x_text(x) for x in self.span)
        middle = f" {'time' if self.axis == 'elapsed' else self.axis} "
        if len(first + middle + last) + 4 < self.columns:
            marks[: len(first) + 1] = f"{first} "
            marks[-len(last) - 1 :] = f" {last}"
            marks[self.columns // 2 : self.columns // 2 + len(middle)] = middle
        line = [
            (self.text.fit("", _LABEL) + self.text.one_line("└"), "dim"),
            *((mark, "dim") for mark in marks),
        ]
        for column in resumes:
            line[column + 1] = ("R", "bold yellow")
        for run in (run for curve in curves for run in curve.series.non_finite):
            for column in range(self.column_of(run.first_x), self.column_of(run.last_x) + 1):
                line[column + 1] = ("N" if run.kind == "NaN" else "I", "bold reverse red")
        return line
