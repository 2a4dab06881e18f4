"""Finds the events of a run that are worth a message."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.formatting import both_ends, cut, one_line
from toolkit.telemetry.diagnostics.catalogue import RULE, title_of_kind
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, OPEN
from toolkit.telemetry.mirrors.messages.message import Message, RunState
from toolkit.telemetry.runfolder.records import (
    ERROR,
    FINDING,
    NON_FINITE,
    START,
    STEP,
    Record,
    shows_count_from_zero,
)
from toolkit.telemetry.runfolder.untrusted import mapping_in, number_in, texts_in

STALLS: Final = frozenset({"hang", "stall", "stalled"})
"""Kinds of finding that mean that no more steps come."""
_URGENCY: Final = {"start": 2, "finish": 3, "failure": 5, "stall": 4, "finding": 4, "milestone": 3}
_ENDS: Final = {
    "finished": "finished",
    "exit": "finished (the script ended)",
    "stopped": "stopped on request",
    "interrupted": "interrupted from the keyboard",
    "signal": "ended by a signal",
}
_FINDING_DETAILS: Final = ("kind", "severity", "metric", "start_step", "noticed_step")
_STEPS_FOR_ETA: Final = 50
_LONGEST_NAME: Final = 120
_LONGEST_TITLE: Final = 200
_LONGEST_LINE: Final = 600
_LONGEST_ERROR: Final = 500


class RunEvent(NamedTuple):
    """Something worth a message, with its texts as the run has them."""

    occasion: str
    name: str
    """Its id: there is one message for all events of the same name."""
    what: str
    lines: Iterable[str] = ()
    details: Mapping[str, Any] = {}


def message_about(event: RunEvent, state: RunState, redact: Callable[[Any], Any], *, time: float) -> Message:
    """Return the message about `event`; `redact` removes secrets, paths and names of people and machines."""
    # All at once: a name that one text gives away is removed from the others too. Truncated afterwards: half a secret
    # matches no pattern.
    names = [state.run_name, state.project, state.description]
    names, what, lines, details = redact([names, event.what, list(event.lines), dict(event.details)])
    run_name = _line(names[0], _LONGEST_NAME) or "run"
    return Message(
        occasion=event.occasion,
        title=f"{run_name}: {_line(what, _LONGEST_TITLE)}",
        lines=tuple(_line(line) for line in lines),
        run_state=replace(
            state, run_name=run_name, project=_line(names[1], _LONGEST_NAME), description=_line(names[2])
        ),
        time=time,
        urgency=_URGENCY.get(event.occasion, 3),
        details={
            _line(key): _line(value) if isinstance(value, str) else value for key, value in details.items()
        },
        about=(event.name,),
    )


class RunEventReader:
    """Turns the records of one session into messages, each event into one."""

    def __init__(self, run_state: RunState, *, redact: Callable[[Any], Any]) -> None:
        self._state = run_state
        self._redact = redact
        self._seconds: deque[float] = deque(maxlen=_STEPS_FOR_ETA)
        self._known: set[str] = set()
        self._error: Record | None = None

    @property
    def run_state(self) -> RunState:
        """State and progress of the run, with the time left at the median step time: pauses do not count."""
        done, steps = self._state.steps_done, self._state.max_steps
        eta_s = None
        if done is not None and steps is not None and done < steps and self._seconds:
            eta_s = (steps - done) * statistics.median(self._seconds)
        return replace(self._state, eta_s=eta_s)

    def take(self, record: Record) -> list[Message]:
        """Return the messages about `record`, the next of the session."""
        time, messages = number_in(record.get("time")) or 0.0, []
        for event in self._events_in(record):
            if event.name not in self._known:
                self._known.add(event.name)
                messages.append(message_about(event, self.run_state, self._redact, time=time))
        return messages

    def end(
        self, *, status: str, reason: str, now: float, elapsed_s: float, failure: Record | None = None
    ) -> Message:
        """Return the message about the end of the session; without a `failure`, the last error is reported."""
        # A job that the cluster has terminated counts as a failure.
        has_failed = status == "failed" or reason == "signal"
        what = _ENDS.get(reason, status if reason == status else f"{status} ({reason})")
        lines: list[str] = []
        details: dict[str, Any] = {"reason": reason}
        error = failure or self._error
        if has_failed and error is not None:
            kind, text = str(error.get("type")), both_ends(str(error.get("message") or ""), _LONGEST_ERROR)
            lines = [text if text.startswith(kind) else f"{kind}: {text}"]
            details |= {"error_type": kind, "error": lines[0]}
            what = f"failed with {kind}" if status == "failed" else what
        state = replace(self._state, status=status, elapsed_s=elapsed_s)
        occasion = "failure" if has_failed else "finish"
        event = RunEvent(occasion, f"end:{state.session}", what, lines, details)
        return message_about(event, state, self._redact, time=now)

    def _events_in(self, record: Record) -> Iterator[RunEvent]:
        event, state = record.get("event"), self._state
        if event in (START, STEP):
            state.from_zero = state.from_zero or shows_count_from_zero(record)
        if event == START:
            yield self._start(record)
        elif event == FINDING:
            yield from self._finding(record)
        elif event == ERROR and record.get("source") != "telemetry":
            self._error = record
        elif event == STEP:
            self._note_step(record)

    def _note_step(self, record: Record) -> None:
        """Keep what the record of a step says."""
        state = self._state
        loss, lr, seconds = (record.get(name) for name in ("train_loss", "lr", "sec_per_step"))
        if loss is None:
            loss = mapping_in(record.get(NON_FINITE)).get("train_loss")
        if isinstance(loss, (int, float, str)):
            state.train_loss = loss
        if isinstance(lr, (int, float)):
            state.lr = lr
        if isinstance(seconds, (int, float)) and seconds > 0:
            self._seconds.append(float(seconds))
        if isinstance(step := record.get("global_step"), int):
            state.step = step

    def _start(self, record: Record) -> RunEvent:
        state = self._state
        steps, description = record.get("max_steps"), record.get("description") or record.get("notes")
        if isinstance(description, str):
            state.description = description
        lines = []
        if isinstance(steps, int) and steps > 0:
            state.max_steps, lines = steps, [f"{steps:,} steps are planned."]
        what = "started" if state.session == 1 else f"resumed as session {state.session}"
        return RunEvent("start", f"start:{state.session}", what, lines)

    def _finding(self, record: Record) -> Iterator[RunEvent]:
        kind, name, message = (str(record.get(key, "")) for key in ("kind", "id", "message"))
        session = self._state.session
        is_open = record.get("state", OPEN) == OPEN
        details = {key: record[key] for key in _FINDING_DETAILS if key in record} | {"finding": message}
        lines = [
            message,
            *(f"Often: {text}" for text in texts_in(record.get("causes"))[:1]),
            *(f"Try: {text}" for text in texts_in(record.get("advice"))[:1]),
        ]
        if kind in STALLS:
            # No alarm for a pause that is over or may be a long evaluation.
            if is_open and record.get("severity") != INFO:
                # Two detectors notice the same stall one after the other.
                yield RunEvent("stall", f"stall:{session}:{self._state.step}", "stalled", lines, details)
            return
        if not is_open and record.get("began_in_session", session) != session:
            return
        title = title_of_kind(kind, mapping_in(record.get("evidence")))
        if record.get("severity") == CRITICAL:
            yield RunEvent("finding", f"finding:{name or kind}", f"critical finding: {title}", lines, details)
        elif kind.startswith(RULE):
            # Once, however often the value crosses the bound.
            yield RunEvent("milestone", f"milestone:{kind}", f"milestone {title}", lines, details)


def _line(text: str, longest: int = _LONGEST_LINE) -> str:
    # Lone surrogates cannot be sent.
    return cut(one_line(text.encode("utf-8", "replace").decode()), longest)
