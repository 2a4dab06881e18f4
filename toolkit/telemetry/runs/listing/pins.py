"""Metrics that users pinned or hid, kept for the project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from toolkit.telemetry.runs.store import RunStore

MAX_PINS: Final = 12
_MAX_HIDDEN: Final = 100


@dataclass(frozen=True, slots=True)
class Pins:
    """The pinned metrics of a run in their order, and the hidden ones."""

    pinned: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def pins_of(store: RunStore, key: str) -> Pins:
    """Return what is pinned and hidden on the pages of a run."""
    chosen = store.project_settings(store.meta(key).card.project)
    return Pins(
        tuple(dict.fromkeys(chosen.pinned_metrics))[:MAX_PINS],
        tuple(dict.fromkeys(chosen.hidden_metrics))[:_MAX_HIDDEN],
    )


def save_pinned(store: RunStore, key: str, names: Sequence[str]) -> None:
    """Pin these metrics for the run's project. Raises Refused."""
    project = store.meta(key).card.project
    pinned = tuple(dict.fromkeys(names))[:MAX_PINS]
    store.set_project_settings(project, replace(store.project_settings(project), pinned_metrics=pinned))


def save_hidden(store: RunStore, key: str, names: Sequence[str]) -> None:
    """Hide these metrics on the pages of the run's project. Raises Refused."""
    project = store.meta(key).card.project
    hidden = tuple(dict.fromkeys(names))[:_MAX_HIDDEN]
    store.set_project_settings(project, replace(store.project_settings(project), hidden_metrics=hidden))
