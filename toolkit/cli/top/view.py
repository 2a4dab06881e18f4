"""What is on the screen, and what was read for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from toolkit.cli.top.text import Text
from toolkit.runfolder.labels import ProjectSettings
from toolkit.runs.listing.run_table import Primary, primary_of
from toolkit.runs.store import RunCard, RunList, RunQuery, XAxis

if TYPE_CHECKING:
    from toolkit.cli.top.plot import Curve
    from toolkit.runs.findings.alerts import Alert

SORTS: Final = ("age", "started", "name", "status", "step", "loss", "best", "alerts", "progress", "duration")
_CHART_ROWS: Final = 11
_WIDE: Final = 150
"""From this width on, two charts are beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Some runs, as far as they are read; of several runs only the charts."""

    cards: tuple[RunCard, ...]
    charts: Sequence[tuple[str, list[Curve]]] = ()
    titles: tuple[str, ...] = ()
    """Of all charts that there are."""
    gpus: Sequence[tuple[str, list[float]]] = ()
    """Of each GPU the last values in words, and its load over the run."""
    alerts: Sequence[Alert] = ()
    ends: str = ""
    forecasts: Sequence[Sequence[str]] = ()
    answers: tuple[str, ...] = ()
    is_whole: bool = True
    """Whether all records were read and examined."""

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last x of the charts."""
        parts = [x for _, curves in self.charts for curve in curves for x, _, _ in curve.points() if len(x)]
        ends = [float(end) for x in parts for end in (x.min(), x.max()) if abs(end) < float("inf")]
        return (min(ends), max(ends)) if ends else (0.0, 1.0)


@dataclass(slots=True, kw_only=True)
class View:
    """What a user chose to see: the list, or the runs `keys`."""

    text: Text
    width: int = 80
    height: int = 23
    """Without the line at the bottom."""
    no_color: bool = False
    listed: RunList | None = None
    selected: str = ""
    marked: list[str] = field(default_factory=list)
    top: int = 0
    search: str = ""
    sort: int = 0
    is_reversed: bool = False
    keys: tuple[str, ...] = ()
    opened: Opened | None = None
    chart: int = 0
    axis: XAxis = "step"
    log: bool = False
    cursor: float | None = None
    page: str = ""
    """`help` or `findings`, in front of the rest."""
    scroll: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """How many charts are beside and above each other."""
        return 2 if self.width >= _WIDE else 1, max(1, (self.height - 5) // _CHART_ROWS)

    @property
    def primary(self) -> Primary | None:
        """The metric by which the runs of the list are compared."""
        return primary_of(self.listed.cards if self.listed else (), ProjectSettings())

    @property
    def query(self) -> RunQuery:
        """Which runs are listed, in which order."""
        sort = SORTS[self.sort]
        if sort == "best":
            sort = f"best:{self.primary.metric}" if self.primary else "loss"
        return RunQuery(text=self.search, sort=f"-{sort}" if self.is_reversed else sort)
