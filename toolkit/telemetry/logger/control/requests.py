"""One request on its way from the control file to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from toolkit.telemetry.runfolder.control import ControlRequest
from toolkit.telemetry.runfolder.layout import CONTROL

LOG_EVERY: Final = "log_every"
STOPPING: Final = ("stop", "save_and_stop")

_MAX_REMEMBERED: Final = 4_096
"""Requests that are known to have been seen; an even older one is recognised by its time."""

# A request with several parts is answered with the status of the part that came off worst.
_BADNESS: Final = {"applied": 0, "clamped": 1, "superseded": 2, "expired": 3, "refused": 4}


class Request(NamedTuple):
    """Something asked of the training script: an action, or a knob with its new value."""

    name: str
    value: object | None
    id: str


@dataclass(slots=True, kw_only=True, eq=False)
class Case:
    """One request on the way to its answer."""

    request: ControlRequest
    actions: dict[str, tuple[str, ...]]
    """Each action asked for, and the declared actions it is made of."""
    deliveries: list[Request]
    left: set[str] = field(default_factory=set)
    """The parts that are not settled: names of actions and knobs, and `log_every`."""
    running: set[str] = field(default_factory=set)
    """The parts that the training thread is busy delivering."""
    delivered: set[str] = field(default_factory=set)
    handed_over: bool = False
    status: str = "applied"
    reasons: list[str] = field(default_factory=list)
    old: int | None = None
    new: int | None = None
    knobs: dict[str, dict[str, object]] = field(default_factory=dict)
    global_step: int | None = None

    def settle(self, part: str, status: str, reason: str | None) -> bool:
        """Note how one part ended; say whether that was the last one."""
        self.left.remove(part)
        self.running.discard(part)
        self.status = max(self.status, status, key=_BADNESS.__getitem__)
        if reason is not None and reason not in self.reasons:
            self.reasons.append(reason)
        return not self.left

    def answer(self, log_every: int) -> dict[str, Any]:
        """Return the fields of the answer: how it ended, and what of it was done."""
        fields = answer_fields(self.request.id, self.status, self.reasons)
        if self.request.log_every is not None:
            fields["setting"] = LOG_EVERY
            fields["old"] = log_every if self.old is None else self.old
            fields["new"] = log_every if self.new is None else self.new
            fields["requested"] = self.request.log_every
        actions = [action for action, parts in self.actions.items() if self.delivered.issuperset(parts)]
        if actions:
            fields["actions"] = actions
        if self.knobs:
            fields["knobs"] = self.knobs
        if self.global_step is not None:
            fields["global_step"] = self.global_step
        return fields


class Newest:
    """The newest of the texts that were added: a page that asks for something every few seconds asks for days."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def add(self, text: str) -> None:
        """Remember `text`, and forget the oldest where there are too many."""
        self._texts[text] = None
        if len(self._texts) > _MAX_REMEMBERED:
            del self._texts[next(iter(self._texts))]


def answer_fields(request_id: str, status: str, reasons: Sequence[str]) -> dict[str, Any]:
    """Return the fields that every answer has."""
    fields: dict[str, Any] = {"id": request_id, "status": status, "source": CONTROL}
    if reasons:
        fields["reason"] = "; ".join(reasons)
    return fields
