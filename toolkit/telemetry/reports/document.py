"""What a report says, in parts that can be written as HTML or as Markdown; all texts are plain and untrusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

STEP: Final = "step"
SECONDS: Final = "seconds"
"""The x axis of values that were logged without a step: seconds since the run's first record."""
TIME: Final = "time"
PROGRESS: Final = "progress"
METRIC: Final = "metric:"

Colour = int | str
Tone = Literal["good", "info", "warning", "critical", "neutral"]


class Point(NamedTuple):
    """A logged value; `y` may be NaN or infinite."""

    x: float
    y: float


class NonFinite(NamedTuple):
    """Values in a row that are NaN or infinite."""

    first: float
    last: float
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric of one run. Every point was logged as it is here."""

    metric: str
    run: str = ""
    event: str = "step"
    """The kind of record that it is from: step, eval, epoch or system."""
    axis: str = STEP
    """`step`, `seconds`, `time` (in seconds since 1970), `epoch`, `progress` (in %), or `metric:` and a name."""
    parts: tuple[tuple[Point, ...], ...] = ()
    """Points in the order of the file; a new part begins where the step goes back, as after a resume."""
    records: int = 0
    """How many values were logged."""
    not_finite: tuple[NonFinite, ...] = ()
    last: float = math.nan

    @property
    def low(self) -> Point | None:
        """The lowest finite value."""
        return min(self._finite(), key=lambda point: point.y, default=None)

    @property
    def high(self) -> Point | None:
        """The highest finite value."""
        return max(self._finite(), key=lambda point: point.y, default=None)

    def _finite(self) -> Iterator[Point]:
        return (point for part in self.parts for point in part if math.isfinite(point.y))

    @property
    def drawn(self) -> int:
        """How many points there are here."""
        return sum(map(len, self.parts))

    @property
    def values_not_finite(self) -> int:
        """How many values are NaN or infinite."""
        return sum(one.values for one in self.not_finite)

    def best(self, direction: str | None) -> Point | None:
        """Return the best finite value; None if neither direction is better."""
        return None if direction is None else self.low if direction == "min" else self.high

    def within(self, start: float, end: float) -> Curve:
        """Return the points in a range of x, with the counts of the whole curve."""
        parts = tuple(tuple(point for point in part if start <= point.x <= end) for part in self.parts)
        not_finite = tuple(one for one in self.not_finite if one.last >= start and one.first <= end)
        return replace(self, parts=tuple(part for part in parts if part), not_finite=not_finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One key figure."""

    label: str
    value: str
    about: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Key figures side by side."""

    items: Sequence[Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph."""

    text: str
    quiet: bool = False
    """A remark, in smaller letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A short list with a heading in the line."""

    title: str
    items: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with one row of headers; the first column names the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()
    """Row and column of cells that are marked as best."""
    colours: Mapping[int, Colour] = field(default_factory=dict)
    """By row: the colour of a run, as in the charts."""
    open: bool = True
    """Whether HTML shows it before a click."""
    left_out: str = ""
    """What was left out, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve in a chart."""

    label: str
    curve: Curve
    colour: Colour = 0
    """A number of the palette, or `#rrggbb`: equal ones are the same run in all charts."""
    dash: str = ""
    """A dash pattern by name, or as lengths; empty for the one that follows from a number beyond the palette."""
    band: Sequence[tuple[float, float, float]] = ()
    """An area around the curve: x, low and high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A marked range on the x axis."""

    start: float
    end: float
    label: str
    tone: Tone = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line at a value that is not a point of a curve."""

    value: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over steps, or over the axis that all of them have; Markdown leaves it out."""

    title: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    levels: Sequence[Level] = ()
    window: tuple[float, float] | None = None
    from_zero: bool = False
    large: bool = False
    log_x: bool = False
    log_y: bool | None = None
    """None: logarithmic only if a few values are far above the others."""
    note: str = ""
    """Below it, instead of the number of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One run in a scatter chart."""

    name: str
    x: float
    y: float
    is_best: bool = False
    is_open: bool = False
    """Drawn as a ring: the run is not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """A metric by a setting, one dot for each run; Markdown leaves it out."""

    title: str
    x: str
    y: str
    dots: Sequence[Dot]
    log_x: bool = False
    categories: Sequence[str] = ()
    """Labels of the x values 0, 1, 2 …, if the setting is not a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One of several shares."""

    label: str
    share: float
    value: str
    about: str = ""
    low: float | None = None
    high: float | None = None
    """An interval around `share`."""
    tone: Tone = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Shares of a whole, or of the largest."""

    head: tuple[str, str, str]
    """What the label, the value and the remark of an item are."""
    items: Sequence[Bar]
    stacked: bool = False
    """Also as one bar: the shares add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A small image."""

    data: bytes
    content_type: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Images side by side; Markdown leaves them out."""

    items: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A finding or an error: what it is, when, and its evidence."""

    title: str
    tone: Tone
    when: str
    blocks: Sequence[Block]


Block = Facts | Text | Bullets | Table | Chart | Scatter | Bars | Pictures | Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block]
    columns: bool = False
    """Charts side by side where there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report: the verdict first."""

    title: str
    kind: str
    """What it is about, above the title."""
    verdict: str
    tone: Tone
    about: Sequence[str] = ()
    """Short remarks below the title: status, steps, duration."""
    sections: Sequence[Section] = ()
    made: str = ""
    """When it was made, and from what."""
