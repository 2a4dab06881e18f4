"""The report of several runs: which is best, their curves, and what differs in their settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.reports import run_parts as parts
from toolkit.telemetry.reports.content import RunContent, primary_metric
from toolkit.telemetry.reports.document import (
    Block,
    Chart,
    Colour,
    Document,
    Line,
    Section,
    Table,
    Text,
    Tone,
)
from toolkit.telemetry.runfolder.metrics import LIKELY, Direction, is_evaluation, metric_direction
from toolkit.telemetry.runs.formatting import NO_VALUE, count, duration, short_number
from toolkit.telemetry.runs.listing.compared_runs import against
from toolkit.telemetry.runs.settings import differing_settings, setting_text

MAX_RUNS: Final = 50
_MAX_CHARTS: Final = 12
_MAX_METRICS: Final = 8
_MAX_SETTINGS: Final = 100
_MAX_DIFFERING: Final = 100_000
_WIDE: Final = 6
_MISSING: Final = "—"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """What a page shows of these runs."""

    charts: Sequence[Chart]
    looks: Sequence[Colour]
    """The colour of each run."""
    about: Sequence[str] = ()
    """How it is drawn: groups, axis, part, what is hidden."""
    base: str | None = None
    """The name of the run that the others are compared with."""
    groups: Table | None = None
    """The figures of the groups that are drawn."""
    differences: Sequence[Block] = ()


def compare(
    runs: Sequence[RunContent],
    *,
    metric: str | None = None,
    total: int | None = None,
    view: PageView | None = None,
) -> Document:
    """Return the report of several runs, by `metric` or the one that they share; `total` is how many there were.

    With `view` it has the charts, the colours and the baseline of that.
    """
    primary = metric or primary_metric(runs) or next(iter(_shared(runs)), None)
    verdict, tone = _verdict(runs, primary)
    looks = list(range(len(runs))) if view is None else view.looks
    base = next((run for run in runs if view is not None and run.name == view.base), None)
    sections = [Section(title="Runs", blocks=[_summary(runs, primary, looks, base)])]
    if view is not None and view.groups is not None:
        sections.insert(0, Section(title="Groups", blocks=[view.groups]))
    charts = _charts(runs, primary) if view is None else list(view.charts)
    if charts:
        curves = Section(title="Curves", blocks=charts, columns=True)
        sections.insert(len(sections) if view is None else 0, curves)
    differing = (view.differences if view is not None else ()) or _differences(runs, looks)
    sections.append(Section(title="What differs", blocks=differing))
    findings = _findings(runs)
    if findings is not None:
        sections.append(Section(title="Findings", blocks=[findings]))
    return Document(
        title=f"{runs[0].name} and {count(len(runs) - 1)} more" if len(runs) > 2 else _names(runs),
        kind="Comparison",
        verdict=verdict,
        tone=tone,
        about=[f"{count(len(runs))} runs", *(view.about if view is not None else ())]
        + ([f"the newest of {count(total)}"] if total is not None and total > len(runs) else []),
        sections=sections,
        made=parts.made_text(runs),
    )


def _charts(runs: Sequence[RunContent], primary: str | None) -> list[Block]:
    charts: list[Block] = []
    shared = _shared(runs)
    for name in [*([primary] if primary else []), *(name for name in shared if name != primary)][
        :_MAX_CHARTS
    ]:
        lines = [
            Line(label=run.name, curve=run.curves[name], colour=at)
            for at, run in enumerate(runs)
            if name in run.curves
        ]
        # Values with and without a step are not on the same axis.
        lines = [line for line in lines if line.curve.axis == lines[0].curve.axis]
        if lines:
            charts.append(Chart(title=name, lines=lines, large=name == primary))
    more = len(shared) - len(charts)
    if more > 0:
        charts.append(Text(text=f"{count(more)} more shared metrics are not drawn.", quiet=True))
    return charts


def _names(runs: Sequence[RunContent]) -> str:
    return " and ".join(run.name for run in runs)


def _shared(runs: Sequence[RunContent]) -> list[str]:
    """Return the metrics that at least two of the runs have, evaluations first."""
    names = Counter(name for run in runs for name in run.own_metrics())
    shared = [name for name, number in names.items() if number > 1]
    return sorted(shared, key=lambda name: (not is_evaluation(name), name not in LIKELY, -names[name], name))


def _verdict(runs: Sequence[RunContent], metric: str | None) -> tuple[str, Tone]:
    direction = None if metric is None else metric_direction(metric)
    if metric is None or direction is None:
        return "These runs share no metric that says which is better.", "neutral"
    reached = [(run, run.curves[metric].best(direction)) for run in runs if metric in run.curves]
    ranked = sorted(
        ((run, point) for run, point in reached if point is not None),
        key=lambda item: item[1].y if direction == "min" else -item[1].y,
    )
    if not ranked:
        return f"None of these runs has a value of {metric}.", "neutral"
    best, point = ranked[0]
    where = f" at step {count(int(point.x))}" if best.curves[metric].axis == "step" else ""
    said = f"Best by {metric}: {best.name}, {short_number(point.y)}{where}."
    if len(ranked) > 1:
        second, other = ranked[1]
        if other.y == point.y:
            said += f" {second.name} has the same."
        else:
            relative = abs(other.y - point.y) / abs(point.y) if point.y else math.inf
            side = "higher" if direction == "min" else "lower"
            percent = f"{100 * relative:.2g}" if relative < 1 else f"{100 * relative:.0f}"
            by = f"is {percent} % {side} ({short_number(other.y)})"
            said += f" Next, {second.name} {by if relative < 10 else f'has {short_number(other.y)}'}."
    without = len(runs) - len(ranked)
    return said + (f" {count(without)} without a value." if without else ""), "info"


def _summary(
    runs: Sequence[RunContent], primary: str | None, looks: Sequence[Colour], base: RunContent | None
) -> Table:
    metrics = [name for name in _shared(runs) if is_evaluation(name) or name in LIKELY]
    metrics = [*([primary] if primary else []), *(name for name in metrics if name != primary)][:_MAX_METRICS]
    head = ["run"]
    columns: list[list[float | None]] = []
    directions: list[Direction | None] = []
    for name in metrics:
        direction = metric_direction(name)
        curves = [run.curves.get(name) for run in runs]
        if direction is not None:
            head.append(f"{name} (best)")
            points = [None if curve is None else curve.best(direction) for curve in curves]
            columns.append([None if point is None else point.y for point in points])
            directions.append(direction)
        head.append(f"{name} (last)")
        columns.append([None if curve is None else curve.last for curve in curves])
        directions.append(direction)
    best: set[tuple[int, int]] = set()
    for place, (column, better) in enumerate(zip(columns, directions, strict=True)):
        finite = [value for value in column if value is not None and math.isfinite(value)]
        if better is None or len(set(finite)) < 2:
            continue
        target = min(finite) if better == "min" else max(finite)
        best |= {(row, 1 + place) for row, value in enumerate(column) if value == target}
    order = list(range(len(runs)))
    if columns and directions[0] is not None:
        sign = 1 if directions[0] == "min" else -1
        order.sort(key=lambda row: _cost(columns[0][row], sign))
    level = None if base is None else runs.index(base)

    def cells(row: int) -> list[str]:
        shown = [short_number(column[row]) for column in columns]
        if level is None or level == row:
            return shown
        return [
            text + against(column[row], column[level]) for text, column in zip(shown, columns, strict=True)
        ]

    rows = [
        (run.name, *cells(row), run.status or NO_VALUE, count(run.step), duration(run.duration_s))
        for row, run in ((row, runs[row]) for row in order)
    ]
    places = {row: place for place, row in enumerate(order)}
    return Table(
        title="",
        head=[*head, "status", "steps", "duration"],
        rows=rows,
        best=frozenset((places[row], column) for row, column in best),
        colours={place: looks[row] for place, row in enumerate(order)},
    )


def _cost(value: float | None, sign: int) -> float:
    return math.inf if value is None or not math.isfinite(value) else sign * value


def _differences(runs: Sequence[RunContent], looks: Sequence[Colour]) -> list[Block]:
    if not any(run.settings for run in runs):
        return [Text(text="None of these runs recorded its settings.")]
    known = [run for run in runs if run.settings]
    differing = differing_settings([run.settings for run in known], most=_MAX_DIFFERING)
    if not differing:
        return [Text(text="Their recorded settings are the same.")]
    shown = differing[:_MAX_SETTINGS]
    more = len(differing) - len(shown)
    left_out = f"{count(more)} more settings differ." if more else ""
    if len(runs) <= _WIDE:
        head = ["setting", *(run.name for run in runs)]
        rows = [[name, *(_setting(run, name) for run in runs)] for name in shown]
        return [Table(title="", head=head, rows=rows, left_out=left_out)]
    head = ["run", *shown]
    rows = [[run.name, *(_setting(run, name) for name in shown)] for run in runs]
    return [Table(title="", head=head, rows=rows, left_out=left_out, colours=dict(enumerate(looks)))]


def _setting(run: RunContent, name: str) -> str:
    return setting_text(run.settings[name]) if name in run.settings else _MISSING


def _findings(runs: Sequence[RunContent]) -> Table | None:
    rows = []
    for run in runs:
        for finding in run.worst_first()[:3]:
            rows.append((run.name, finding.severity, title_of(finding), finding.message))
    if not rows:
        return None
    return Table(title="", head=("run", "severity", "finding", "what"), rows=rows)
