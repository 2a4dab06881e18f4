"""What a user chose to see, and what is read for it: each byte once, and a run's columns when it is opened."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from toolkit.telemetry.cli.report_content import require_columns
from toolkit.telemetry.cli.run_answer import answer_text
from toolkit.telemetry.cli.top.text import Text, bars
from toolkit.telemetry.core.user_folders import user_folder
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.metrics import INTERNAL
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, SYSTEM, is_spread
from toolkit.telemetry.runfolder.status import RUNNING
from toolkit.telemetry.runfolder.untrusted import texts_in
from toolkit.telemetry.runs.formatting import clock, duration
from toolkit.telemetry.runs.listing.run_folders import RunFolders
from toolkit.telemetry.runs.listing.run_table import Primary, primary_of
from toolkit.telemetry.runs.store import (
    Floats,
    MetricInfo,
    Refused,
    RunCard,
    RunList,
    RunQuery,
    Series,
    labelled,
)

if TYPE_CHECKING:
    # The list of runs works without numpy.
    from toolkit.telemetry.diagnostics.finding import Finding
    from toolkit.telemetry.runs.sources.local_store import LocalStore

SORTS: Final = ("age", "started", "name", "status", "step", "loss", "best", "alerts", "progress", "duration")
COLOURS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
"""Of the curves of several runs: names, so that they fit the background that the terminal has."""
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_CHART_ROWS: Final = 11
_WAIT_S: Final = 0.3
_GPU: Final = re.compile(r"gpu/(\d{1,4})/.+")
_WORDS: Final = {
    "util": "load {:.0f} %",
    "mem_used_gb": "memory {:.1f} GB",
    "mem_total_gb": "of {:.0f} GB",
    "power_w": "power {:.0f} W",
    "temp_c": "{:.0f} °C",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve of a chart, with `label` where colours do not show which it is; at `resumes` a session starts."""

    label: str
    style: str
    series: Series
    resumes: Sequence[float] = ()

    def parts(self) -> list[tuple[Floats, Floats, str]]:
        """Return x, y and style of each part; those that a later session logged again are dim."""
        old = [(part.x, part.y, f"dim {self.style}") for part in self.series.superseded]
        return [*old, *((part.x, part.y, self.style) for part in self.series.segments)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Some runs, as far as they are read; of several runs only the charts."""

    cards: tuple[RunCard, ...]
    charts: Sequence[tuple[str, list[Curve]]] = ()
    total_charts: int = 0
    gpus: Sequence[str] = ()
    """Of each GPU the last values, and its load over the run as bars."""
    alerts: Sequence[Finding] = ()
    ends: str = ""
    notes: Sequence[str] = ()
    """What could not be read, and answers to requests."""
    is_whole: bool = True
    """Whether all records were read and examined."""

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last x of the charts."""
        parts = [x for _, curves in self.charts for curve in curves for x, _, _ in curve.parts() if len(x)]
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
    axis: str = "step"
    log: bool = False
    cursor: float | None = None
    page: str = ""
    """`help` or `findings`, in front of the rest."""
    scroll: int = 0

    @property
    def charts(self) -> int:
        """How many charts fit."""
        return max(1, (self.height - 5) // _CHART_ROWS)

    @property
    def primary(self) -> Primary | None:
        """The metric by which the runs of the list are compared."""
        return primary_of(self.listed.cards if self.listed else (), ProjectSettings())

    @property
    def query(self) -> RunQuery:
        """Which runs are listed, in which order."""
        sort, is_down, primary = SORTS[self.sort], self.is_reversed, self.primary
        if sort == "best":
            sort = primary.order if primary else "loss"
        if is_down:
            sort = sort[1:] if sort.startswith("-") else f"-{sort}"
        return RunQuery(text=self.search, sort=sort)


class Runs:
    """The runs below some folders; used by one thread."""

    def __init__(self, folders: RunFolders) -> None:
        self._folders = folders
        self._columns: LocalStore | None = None
        self._asked: dict[str, tuple[str, str, str]] = {}

    def look(self, view: View) -> RunList | Opened:
        """Return what `view` shows. Raises UnknownRun, UnreadableRunError, and ValueError if the search is invalid."""
        return self._open(view, view.keys) if view.keys else self._folders.list_runs(view.query)

    def ask(self, key: str, action: str) -> None:
        """Ask a run to do something; its answer, or why it was not asked, is in `Opened.notes`."""
        store = self._store()
        manifest = store.meta(key).manifest
        try:
            if store.card(key).live and manifest and action not in texts_in(manifest.control.get("actions")):
                raise Refused(f"the run does not offer {action}")
            asked, said = store.ask(key, {"actions": (action,)}), "sent, no answer yet"
        except Refused as refusal:
            asked, said = f"refused {len(self._asked)}", f"not sent, {refusal}"
        self._asked[asked] = (key, action, said)

    def _store(self) -> LocalStore:
        if self._columns is None:
            require_columns("a curve")
            from toolkit.telemetry.runs.sources.local_store import LocalStore

            self._columns = LocalStore((), cache_dir=user_folder("cache"), folders=self._folders)
        return self._columns

    def _open(self, view: View, keys: tuple[str, ...]) -> Opened:
        store, now = self._store(), time.time()
        from toolkit.telemetry.forecasts.run import end_of_run
        from toolkit.telemetry.runs.findings.alerts import alerts_of

        read = store.refresh_all(keys, wait_s=_WAIT_S)
        complete = all(health.complete for health in read)
        cards = tuple(labelled(store.card(key) for key in keys).values())
        found = {key: {info.name: info for info in store.metrics(key)} for key in keys}
        plan = _charts(found)
        charts = [
            (
                " / ".join(dict.fromkeys(chart.values())),
                [_curve(store, view, key, keys.index(key), metric) for key, metric in chart.items()],
            )
            for chart in plan[view.chart : view.chart + view.charts]
        ]
        if len(keys) > 1:
            return Opened(cards=cards, charts=charts, total_charts=len(plan), is_whole=complete)
        key = keys[0]
        examined = store.examine(key, wait_s=_WAIT_S) if complete else 0.0
        end = end_of_run(store, cards[0], now) if cards[0].status.name == RUNNING else None
        return Opened(
            cards=cards,
            charts=charts,
            total_charts=len(plan),
            gpus=_gpus(store, key, found[key]),
            alerts=alerts_of(store, key),
            ends=f"ETA {duration(end.middle - now)}, about {clock(end.middle, now=now)[:-3]}" if end else "",
            notes=[*(health.problem for health in read if health.problem), *self._answers(store, key)],
            is_whole=complete and examined >= 1.0,
        )

    def _answers(self, store: LocalStore, key: str) -> list[str]:
        came = {str(record.get("id")): record for record in store.events(key, (CONTROL_CHANGE,), limit=50)}
        return [
            f"{action}: {''.join(answer_text(came[asked])) if asked in came else said}"
            for asked, (run, action, said) in self._asked.items()
            if run == key
        ]


def _curve(store: LocalStore, view: View, key: str, at: int, metric: str) -> Curve:
    starts, is_time = store.sessions(key), view.axis == "elapsed"
    return Curve(
        label=LETTERS[at % len(LETTERS)] if len(view.keys) > 1 else "*",
        style=COLOURS[at % len(COLOURS)],
        series=store.series(key, metric, axis=view.axis, buckets=2 * view.width),
        resumes=[one.first_time - starts[0].first_time if is_time else one.first_step for one in starts[1:]],
    )


def _charts(found: Mapping[str, Mapping[str, MetricInfo]]) -> list[dict[str, str]]:
    """Return the metric of each run in each chart: loss, validation loss, learning rate, gradient norm, then others.

    What most of the runs have comes first, and last what the machine and the logger measure.
    """
    from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR
    from toolkit.telemetry.runs.signals import metric_of, validation_loss_of

    charts: list[dict[str, str]] = [{}, {}, {}, {}]
    for key, metrics in found.items():
        loss, lr, norm = (metric_of(signal, metrics) for signal in (LOSS, LR, GRAD_NORM))
        for chart, name in zip(charts, (loss, validation_loss_of(metrics), lr, norm), strict=True):
            chart |= {key: name} if name else {}
    shown = {name for chart in charts for name in chart.values()}
    rest = {name: info for metrics in found.values() for name, info in metrics.items() if name not in shown}

    def order(name: str) -> tuple[bool, int]:
        is_late = rest[name].event == SYSTEM or name.startswith((*INTERNAL, "gpu/")) or is_spread(name, rest)
        return is_late, -sum(name in metrics for metrics in found.values())

    charts += [{key: name for key in found if name in found[key]} for name in sorted(rest, key=order)]
    return [chart for chart in charts if chart]


def _gpus(store: LocalStore, key: str, metrics: Mapping[str, MetricInfo]) -> list[str]:
    numbers = sorted({int(match[1]) for name in metrics if (match := _GPU.fullmatch(name))})
    found = []
    for prefix, gpu in ({f"gpu/{number}/": f"GPU {number}" for number in numbers} or {"gpu_": "GPU"}).items():
        last = {name: metrics[prefix + name].last for name in _WORDS if prefix + name in metrics}
        words = [_WORDS[name].format(value) for name, value in last.items() if abs(value) < 1e6]
        load = bars(store.means(key, f"{prefix}util", 24).tolist()) if "util" in last else ""
        found += ["  ".join([gpu, *words, load])] * bool(words)
    return found
