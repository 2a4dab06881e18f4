"""Metrics that users pinned or hid, kept for the project, or for one run in its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runs.store import RunStore

_KEY: Final = "pinned_metrics"
MAX_PINS: Final = 12
_MAX_HIDDEN: Final = 100


@dataclass(frozen=True, slots=True)
class Pins:
    """The pinned metrics of a run in their order, and the hidden ones."""

    pinned: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    only_this_run: bool = False
    """Whether the pins are the run's own, not its project's."""


def pins_of(store: RunStore, key: str) -> Pins:
    """Return what is pinned and hidden on the pages of a run."""
    meta = store.meta(key)
    chosen = store.project_settings(meta.card.project)
    own = _own_pins(meta.labels)
    pinned = chosen.pinned_metrics if own is None else own
    return Pins(
        tuple(dict.fromkeys(pinned))[:MAX_PINS],
        tuple(dict.fromkeys(chosen.hidden_metrics))[:_MAX_HIDDEN],
        own is not None,
    )


def save_pinned(store: RunStore, key: str, names: Sequence[str], *, only_this_run: bool) -> None:
    """Pin these metrics for the run's project, or for this run only. Raises Refused, LabelsError."""
    labels, names = store.meta(key).labels, list(dict.fromkeys(names))[:MAX_PINS]
    if only_this_run:
        store.label(key, _with_own_pins(labels, names))
        return
    if _own_pins(labels) is not None:
        store.label(key, _with_own_pins(labels, None))
    project = store.meta(key).card.project
    store.set_project_settings(project, replace(store.project_settings(project), pinned_metrics=tuple(names)))


def save_hidden(store: RunStore, key: str, names: Sequence[str]) -> None:
    """Hide these metrics on the pages of the run's project. Raises Refused."""
    project = store.meta(key).card.project
    hidden = tuple(dict.fromkeys(names))[:_MAX_HIDDEN]
    store.set_project_settings(project, replace(store.project_settings(project), hidden_metrics=hidden))


def _own_pins(labels: Labels) -> tuple[str, ...] | None:
    kept = labels.other.get(_KEY)
    return tuple(name for name in kept if isinstance(name, str)) if isinstance(kept, list) else None


def _with_own_pins(labels: Labels, names: Sequence[str] | None) -> Labels:
    other = {key: value for key, value in labels.other.items() if key != _KEY}
    return replace(labels, other=other if names is None else {**other, _KEY: list(names)})
