"""What a training script can be asked for: its actions, and its knobs with their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.telemetry.runfolder.control import (
    FIELDS,
    LOG_EVERY_HIGH,
    LOG_EVERY_LOW,
    ControlRequest,
    KnobValue,
    is_name,
)
from toolkit.telemetry.runfolder.untrusted import finite_in


class Declarations:
    """The actions and knobs of one run. A second declaration of a name replaces the first."""

    def __init__(self) -> None:
        self.knobs: dict[str, Knob] = {}
        self._actions: dict[str, Callable[[], object] | None] = {}

    def add_action(self, name: str, callback: Callable[[], object] | None) -> None:
        """Declare an action; `callback` is called between two steps, else `take_requests` returns it.

        Raises:
            ValueError: the name or the callback cannot be used.
        """
        _check("action", name, callback, taken=self.knobs)
        self._actions[name] = callback

    def add_knob(
        self,
        name: str,
        kind: type,
        *,
        low: float | None = None,
        high: float | None = None,
        choices: Sequence[KnobValue] | None = None,
        callback: Callable[[Any], object] | None = None,
        value: KnobValue | None = None,
    ) -> None:
        """Declare a `bool`, `int`, `float` or `str` within bounds or out of `choices`.

        `callback` is called with a new value between two steps, else `take_requests` returns it. `value` is what is in
        force now, for a page to show.

        Raises:
            ValueError: the declaration contradicts itself.
        """
        _check("knob", name, callback, taken=self._actions)
        knob = Knob(name=name, kind=kind, low=low, high=high, callback=callback)
        knob.choices = None if choices is None else tuple(knob.checked(choice) for choice in choices)
        if knob.choices == ():
            raise ValueError(f"knob {name}: choices must name at least one value, got none")
        knob.value = None if value is None else knob.checked(value)
        self.knobs[name] = knob

    def described(self) -> dict[str, Any]:
        """Return what the run can be asked for, as the manifest lists it."""
        actions = [*self._actions]
        if "save_and_stop" not in actions and self.parts_of("save_and_stop"):
            actions.append("save_and_stop")
        return {
            "log_every": {"low": LOG_EVERY_LOW, "high": LOG_EVERY_HIGH},
            "actions": actions,
            "knobs": {name: knob.described() for name, knob in self.knobs.items()},
        }

    def callback_of(self, name: str) -> Callable[..., object] | None:
        """Return what to call for an action or a knob; None where `take_requests` returns it."""
        knob = self.knobs.get(name)
        return self._actions.get(name) if knob is None else knob.callback

    def parts_of(self, action: str) -> tuple[str, ...]:
        """Return the declared actions that make up `action`; empty where the script cannot do it."""
        if action in self._actions:
            return (action,)
        if action == "save_and_stop" and "save" in self._actions and "stop" in self._actions:
            return ("save", "stop")
        return ()

    def objection_to(self, request: ControlRequest) -> str | None:
        """Return why the run cannot do what `request` asks for; None where it can."""
        for action in request.actions:
            if not self.parts_of(action):
                return f"this run has no action {action}; declared: {_listed(self._actions)}"
        for name, value in request.knobs.items():
            knob = self.knobs.get(name)
            if knob is None:
                return f"this run has no knob {name}; declared: {_listed(self.knobs)}"
            try:
                knob.checked(value)
            except ValueError as error:
                return str(error)
        return None


@dataclass(slots=True, kw_only=True)
class Knob:
    """A setting of the training script that can be changed from outside, and its limits."""

    name: str
    kind: type
    low: float | None
    high: float | None
    callback: Callable[[Any], object] | None
    choices: tuple[KnobValue, ...] | None = None
    value: KnobValue | None = None

    def __post_init__(self) -> None:
        if self.kind not in (bool, int, float, str):
            raise ValueError(f"knob {self.name}: kind must be bool, int, float or str, got {self.kind!r}")
        bounds: dict[str, object] = {"low": self.low, "high": self.high}
        for which, bound in bounds.items():
            if bound is None:
                continue
            if self.kind not in (int, float):
                raise ValueError(f"knob {self.name}: a {self.kind.__name__} has no {which}, got {bound!r}")
            if finite_in(bound) is None:
                raise ValueError(f"knob {self.name}: {which} must be a finite number, got {bound!r}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"knob {self.name}: low {self.low} is above high {self.high}")

    def checked(self, value: object) -> KnobValue:
        """Return `value` as this knob's own type.

        Raises:
            ValueError: it is of another type or out of bounds; the message says what is allowed.
        """
        typed = self._typed(value)
        if typed is None:
            raise ValueError(f"{self.name} must be a {self.kind.__name__}, got {value!a:.60}")
        if self.choices is not None and typed not in self.choices:
            raise ValueError(f"{self.name} must be one of {self.choices}, got {value!a:.60}")
        if not isinstance(typed, str) and (
            (self.low is not None and typed < self.low) or (self.high is not None and typed > self.high)
        ):
            low, high = (("any" if bound is None else bound) for bound in (self.low, self.high))
            raise ValueError(f"{self.name} must be {low} to {high}, got {value}")
        return typed

    def _typed(self, value: object) -> KnobValue | None:
        # A bool is an int to Python, but not a number to its users.
        if isinstance(value, bool) or self.kind is bool:
            return value if isinstance(value, bool) and self.kind is bool else None
        if isinstance(value, str) or self.kind is str:
            return value if isinstance(value, str) and self.kind is str else None
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        if self.kind is float:
            return float(value)
        return int(value) if value == int(value) else None

    def described(self) -> dict[str, Any]:
        """Return the knob as the manifest lists it."""
        described = {"type": self.kind.__name__, "low": self.low, "high": self.high, "value": self.value}
        return described if self.choices is None else {**described, "choices": [*self.choices]}


def _check(what: str, name: object, callback: object, taken: Iterable[str]) -> None:
    if not isinstance(name, str) or not is_name(name) or name in FIELDS:
        raise ValueError(
            f"{what} {name!r}: a name is a letter and up to 63 letters, digits and underscores, "
            f"and none of {', '.join(FIELDS)}"
        )
    if name in taken:
        raise ValueError(f"{what} {name!r} is already declared as the other of action and knob")
    if callback is not None and not callable(callback):
        raise ValueError(f"{what} {name}: callback must be callable or None, got {callback!r}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
