"""Detectors of other packages, and the kinds of findings that they bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.core import plugins
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, RULE, Kind, finding_of
from toolkit.telemetry.diagnostics.detector import Detector
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import Row


def load_plugins() -> list[plugins.Plugin]:
    """Return the detectors of plug-ins; the kinds of each are in the catalogue from then on.

    Each is a class as `Detector` describes it, with its `kinds`.
    """
    found = plugins.load("detectors", _problem_of)
    for plugin in found:
        for name, kind in plugin.value.kinds.items():
            CATALOGUE.setdefault(name, kind)
    return found


def is_kind(name: str) -> bool:
    """Return whether findings can be of this kind; an unknown name makes the plug-ins load."""
    if name not in CATALOGUE and not name.startswith(RULE):
        load_plugins()
    return name in CATALOGUE or name.startswith(RULE)


def make_plugins(incidents: Incidents) -> list[Detector]:
    """Return a detector of each plug-in, which writes to `incidents`; one that fails is reported and left out."""
    guard, made = Guard(), []
    for plugin in load_plugins():
        with guard.catch(f"making {plugin}"):
            made.append(_Contained(plugin, incidents, guard))
    return list(made)


def _problem_of(value: Any) -> str:
    kinds = getattr(value, "kinds", None)
    if not isinstance(kinds, Mapping) or not kinds:
        return "it has no `kinds`"
    for name, kind in kinds.items():
        if not isinstance(kind, Kind):
            return f"its kind {name!r} must be a Kind, and is a {type(kind).__name__}"
        if name in CATALOGUE:
            return f"its kind {name!r} is that of another detector"
        example = Incident(id="", kind=name, metric="loss", start_step=1, noticed_step=1, session=1)
        finding_of(example, kind)
    return ""


class _Contained:
    """A detector of a plug-in: its first failure is reported and is its last."""

    def __init__(self, plugin: plugins.Plugin, incidents: Incidents, guard: Guard) -> None:
        self._plugin, self._guard = plugin, guard
        self._detector = plugin.call(plugin.value, _OwnKinds(incidents, plugin.value.kinds))
        self.signals = tuple(self._detector.signals)
        self.all_ranks = bool(self._detector.all_ranks)

    def take(self, row: Row) -> None:
        self._call("take", row)

    def restart(self, step: int) -> None:
        self._call("restart", step)

    def _call(self, method: str, argument: Any) -> None:
        if self._detector is not None:
            detector, self._detector = self._detector, None
            with self._guard.catch(f"examining records with {self._plugin}"):
                self._plugin.call(getattr(detector, method), argument)
                self._detector = detector


class _OwnKinds:
    """Incidents, of which a plug-in opens only those of its own kinds, with numbers as evidence."""

    def __init__(self, incidents: Incidents, kinds: Mapping[str, Kind]) -> None:
        self._incidents, self._kinds = incidents, kinds

    def open(
        self, kind: str, metric: str, *, start_step: int, noticed_step: int, count: int = 1, **evidence: Any
    ) -> Incident:
        if kind not in self._kinds:
            raise ValueError(f"{kind!r} is not one of its kinds")
        numbers = {name: float(value) for name, value in evidence.items()}
        return self._incidents.open(
            kind,
            str(metric),
            start_step=int(start_step),
            noticed_step=int(noticed_step),
            count=int(count),
            **numbers,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incidents, name)
