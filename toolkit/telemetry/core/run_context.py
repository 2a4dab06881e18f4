"""What every part of one run shares: its clock, guard and numbers, and the events that parts publish to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard

_P = ParamSpec("_P")


class Topic(Generic[_P]):
    """One kind of event: whoever subscribes is called each time it is published, on the publisher's thread."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[_P, object]] = []

    def subscribe(self, subscriber: Callable[_P, object]) -> None:
        """Call `subscriber` from now on."""
        self._subscribers.append(subscriber)

    def publish(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call every subscriber, in the order in which they subscribed."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)


class RunEvents:
    """The events of one run. Made before its parts, which publish and subscribe when they are constructed."""

    def __init__(self) -> None:
        self.own_failure: Topic[[str, BaseException]] = Topic()
        """Telemetry itself failed: what it was doing, and the error; the first of each kind."""
        self.incident: Topic[[]] = Topic()
        """Something is wrong with the training: a loss that jumps or is not finite, a failed span, a new finding."""
        self.finding: Topic[[Any, dict[str, Any]]] = Topic()
        """The live run noticed something by its clock, such as a hang: a `Finding`, and more fields for its record."""
        self.action_wanted: Topic[[str, str]] = Topic()
        """A finding asks for an action, such as `stop`: its name, and the id of the request."""
        self.first_span: Topic[[]] = Topic()
        """The run has spans; published once."""


class RunContext(NamedTuple):
    """What the parts of one session are constructed with."""

    clock: Clock
    guard: Guard
    events: RunEvents
    run_id: str
    session: int
    rank: int
    began: float
    """When the session began, by the monotonic clock."""

    def elapsed(self) -> float:
        """Return the seconds since the session began."""
        return self.clock.monotonic() - self.began
