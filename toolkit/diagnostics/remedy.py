"""Finds the knobs and actions of a run that would help with a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A knob or action that the run declares."""

    name: str
    is_knob: bool
    about: Mapping[str, Any] = field(default_factory=dict)
    """A knob's bounds and current value, from the manifest."""


def find_remedy(remedies: Sequence[str], control: Mapping[str, Any]) -> Remedy | None:
    """Return the first of `remedies` that is declared in `control`, from the manifest, or None."""
    return next(declared_remedies(remedies, control), None)


def declared_remedies(remedies: Sequence[str], control: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield those of `remedies` that are declared in `control`, in order."""
    knobs, actions = control.get("knobs"), control.get("actions")
    for name in remedies:
        if isinstance(knobs, Mapping) and name in knobs:
            about = knobs[name]
            yield Remedy(name=name, is_knob=True, about=about if isinstance(about, Mapping) else {})
        elif isinstance(actions, (list, tuple)) and name in actions:
            yield Remedy(name=name, is_knob=False)
