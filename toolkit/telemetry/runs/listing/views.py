"""Named views of a project: charts of one's own, and the columns, search and order of its list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.untrusted import mappings_in, texts_in

MOST_CHARS: Final = 60
MOST_CHARTS: Final = 24
MOST_CURVES: Final = 24
"""Metrics of one chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChart:
    """A chart of one's own."""

    title: str
    metrics: tuple[str, ...]
    """Names, patterns such as `loss/*`, and formulas."""
    axis: str | None = None
    """The x axis; None for the one that the page has."""

    def curves(self, names: Sequence[str]) -> list[str]:
        """Return what is drawn of a run with these metrics: the names that fit, and every formula."""
        found: dict[str, None] = {}
        for wanted in self.metrics:
            fitting = [wanted] if is_formula(wanted) or wanted in names else []
            found.update(dict.fromkeys(fitting or [name for name in names if fnmatchcase(name, wanted)]))
        return list(found)[:MOST_CURVES]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedView:
    """What is shown under one name; what is None stays as it is."""

    name: str
    charts: tuple[OwnChart, ...] = ()
    columns: tuple[str, ...] | None = None
    search: str | None = None
    sort: str | None = None
    other: dict[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept as they are."""


def views_of(settings: ProjectSettings) -> dict[str, NamedView]:
    """Return the views of a project by name; what is invalid in them is left out."""
    found = {}
    for name, one in settings.views.items():
        columns, search, sort = one.get("columns"), one.get("search"), one.get("sort")
        charts = [_chart(chart) for chart in mappings_in(one.get("charts"))[:MOST_CHARTS]]
        if 0 < len(name) <= MOST_CHARS:
            found[name] = NamedView(
                name=name,
                charts=tuple(chart for chart in charts if chart.metrics),
                columns=tuple(texts_in(columns)) if isinstance(columns, list) else None,
                search=search if isinstance(search, str) else None,
                sort=sort if isinstance(sort, str) else None,
                other={key: one[key] for key in one if key not in ("charts", "columns", "search", "sort")},
            )
    return found


def _chart(one: dict[str, Any]) -> OwnChart:
    metrics, axis = tuple(texts_in(one.get("metrics"))[:MOST_CURVES]), one.get("x")
    title = one.get("title")
    return OwnChart(
        title=title[:MOST_CHARS]
        if isinstance(title, str) and title.strip()
        else ", ".join(metrics)[:MOST_CHARS],
        metrics=metrics,
        axis=axis if isinstance(axis, str) and axis else None,
    )


def with_view(settings: ProjectSettings, view: NamedView) -> ProjectSettings:
    """Return the settings with this view, in place of the one of its name."""
    charts = [
        {"title": one.title, "metrics": list(one.metrics), **({"x": one.axis} if one.axis else {})}
        for one in view.charts
    ]
    kept: dict[str, Any] = {**view.other, "charts": charts}
    if view.columns is not None:
        kept["columns"] = list(view.columns)
    kept.update({name: value for name in ("search", "sort") if (value := getattr(view, name)) is not None})
    return replace(settings, views={**settings.views, view.name: kept})


def without_view(settings: ProjectSettings, name: str) -> ProjectSettings:
    """Return the settings without the view of this name."""
    return replace(settings, views={key: one for key, one in settings.views.items() if key != name})
