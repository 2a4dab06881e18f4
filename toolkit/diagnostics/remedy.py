"""Which of the things that would help a run can be asked of it."""

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
    """A knob's bounds and its value now, as the manifest has them."""


def find_remedy(remedies: Sequence[str], control: Mapping[str, Any]) -> Remedy | None:
    """Return the first of `remedies` that `control`, the manifest's list of what is declared, has; else None."""
    return next(declared_remedies(remedies, control), None)


def declared_remedies(remedies: Sequence[str], control: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield those of `remedies`, in their order, that `control` has."""
    knobs, actions = control.get("knobs"), control.get("actions")
    for name in remedies:
        if isinstance(knobs, Mapping) and name in knobs:
            about = knobs[name]
            yield Remedy(name=name, is_knob=True, about=about if isinstance(about, Mapping) else {})
        elif isinstance(actions, (list, tuple)) and name in actions:
            yield Remedy(name=name, is_knob=False)
