"""Finds the events of a run that are worth a message."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from toolkit.telemetry.core.formatting import both_ends, cut, one_line, short_number
from toolkit.telemetry.diagnostics.catalogue import title_of_kind
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, OPEN
from toolkit.telemetry.mirrors.messages.message import Message, RunState
from toolkit.telemetry.mirrors.messages.milestones import Milestone, MilestoneWatch
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


def redacted_message(
    redact: Callable[[Any], Any],
    run_state: RunState,
    occasion: str,
    name: str,
    what: str,
    lines: Iterable[str] = (),
    *,
    time: float,
    details: Mapping[str, Any] | None = None,
) -> Message:
    """Return a message about the event `name`; `redact` removes secrets, paths and names of people and machines."""
    # All at once: a name that one text gives away is removed from the others too. Truncated afterwards: half a secret
    # matches no pattern.
    about_run = [run_state.run_name, run_state.project, run_state.description]
    about_run, what, lines, details = redact([about_run, what, list(lines), dict(details or {})])
    run_name = cut(_line(about_run[0]), _LONGEST_NAME) or "run"
    return Message(
        occasion=occasion,
        title=f"{run_name}: {cut(_line(what), _LONGEST_TITLE)}",
        lines=tuple(cut(_line(line), _LONGEST_LINE) for line in lines),
        run_state=replace(
            run_state,
            run_name=run_name,
            project=cut(_line(about_run[1]), _LONGEST_NAME),
            description=cut(_line(about_run[2]), _LONGEST_LINE),
        ),
        time=time,
        urgency=_URGENCY.get(occasion, 3),
        details={
            _line(key): cut(_line(value), _LONGEST_LINE) if isinstance(value, str) else value
            for key, value in details.items()
        },
        about=(name,),
    )


class RunEventReader:
    """Turns the records of one session into messages, each event into one."""

    def __init__(
        self, run_state: RunState, *, redact: Callable[[Any], Any], milestones: Iterable[Milestone] = ()
    ) -> None:
        self._run_state = run_state
        self._redact = redact
        self._milestones = MilestoneWatch(milestones)
        self._seconds: deque[float] = deque(maxlen=_STEPS_FOR_ETA)
        self._known: set[str] = set()
        self._error: Record | None = None

    @property
    def run_state(self) -> RunState:
        """State and progress of the run, with the time left at the median step time: pauses do not count."""
        done, steps = self._run_state.steps_done, self._run_state.max_steps
        eta_s = None
        if done is not None and steps is not None and done < steps and self._seconds:
            eta_s = (steps - done) * statistics.median(self._seconds)
        return replace(self._run_state, eta_s=eta_s)

    def take(self, record: Record) -> list[Message]:
        """Return the messages about `record`, the next of the session."""
        event = record.get("event")
        found: list[Message | None] = []
        if event == STEP:
            self._note_step(record)
        elif event == START:
            found.append(self._start(record))
        elif event == FINDING:
            found.append(self._finding(record))
        elif event == ERROR and record.get("source") != "telemetry":
            self._error = record
        for milestone, name, value in self._milestones.take(record):
            found.append(self._milestone(record, milestone, name, value))
        return [one for one in found if one is not None]

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
        state = replace(self._run_state, status=status, elapsed_s=elapsed_s)
        occasion, name = "failure" if has_failed else "finish", f"end:{state.session}"
        return redacted_message(self._redact, state, occasion, name, what, lines, time=now, details=details)

    def _note_step(self, record: Record) -> None:
        step, loss, lr, seconds = (
            record.get(name) for name in ("global_step", "train_loss", "lr", "sec_per_step")
        )
        if loss is None:
            loss = mapping_in(record.get(NON_FINITE)).get("train_loss")
        state = self._run_state
        self._run_state = replace(
            state,
            step=step if isinstance(step, int) else state.step,
            from_zero=state.from_zero or shows_count_from_zero(record),
            train_loss=loss if isinstance(loss, (int, float, str)) else state.train_loss,
            lr=lr if isinstance(lr, (int, float)) else state.lr,
        )
        if isinstance(seconds, (int, float)) and seconds > 0:
            self._seconds.append(float(seconds))

    def _start(self, record: Record) -> Message | None:
        state, session = self._run_state, self._run_state.session
        steps, description = record.get("max_steps"), record.get("description") or record.get("notes")
        is_planned = isinstance(steps, int) and steps > 0
        self._run_state = replace(
            state,
            max_steps=steps if is_planned else state.max_steps,
            from_zero=state.from_zero or shows_count_from_zero(record),
            description=description if isinstance(description, str) else state.description,
        )
        what = "started" if session == 1 else f"resumed as session {session}"
        return self._event(
            "start", f"start:{session}", what, [f"{steps:,} steps are planned."] if is_planned else [], record
        )

    def _finding(self, record: Record) -> Message | None:
        kind, name, message = (str(record.get(key, "")) for key in ("kind", "id", "message"))
        session = self._run_state.session
        is_open = record.get("state", OPEN) == OPEN
        details: dict[str, Any] = {key: record[key] for key in _FINDING_DETAILS if key in record}
        details["finding"] = message
        lines = [
            message,
            *(f"Often: {text}" for text in texts_in(record.get("causes"))[:1]),
            *(f"Try: {text}" for text in texts_in(record.get("advice"))[:1]),
        ]
        if kind in STALLS:
            # No alarm for a pause that is over or may be a long evaluation.
            if not is_open or record.get("severity") == INFO:
                return None
            # Two detectors notice the same stall one after the other.
            return self._event(
                "stall", f"stall:{session}:{self._run_state.step}", "stalled", lines, record, details
            )
        is_ours = record.get("began_in_session", session) == session
        if not (is_open or is_ours) or record.get("severity") != CRITICAL:
            return None
        what = f"critical finding: {title_of_kind(kind, mapping_in(record.get('evidence')))}"
        return self._event("finding", f"finding:{name or kind}", what, lines, record, details)

    def _milestone(self, record: Record, milestone: Milestone, name: str, value: float) -> Message | None:
        what, lines = f"step {value:,.0f} reached", []
        if not milestone.every:
            at = record.get("global_step")
            where = f" at step {at:,}" if isinstance(at, int) else ""
            what = f"milestone {milestone.text} reached"
            lines = [f"{milestone.metric} is {short_number(value)}{where}."]
        details = {"milestone": milestone.text, "value": value}
        message = self._event("milestone", name, what, lines, record, details)
        return message and replace(message, milestone=milestone)

    def _event(
        self,
        occasion: str,
        name: str,
        what: str,
        lines: Iterable[str],
        record: Record,
        details: Mapping[str, Any] | None = None,
    ) -> Message | None:
        """Return the message about the event `name`; None if there was one before."""
        if name in self._known:
            return None
        self._known.add(name)
        when = number_in(record.get("time")) or 0.0
        return redacted_message(
            self._redact, self.run_state, occasion, name, what, lines, time=when, details=details
        )


def _line(text: str) -> str:
    # Lone surrogates cannot be sent.
    return one_line(text.encode("utf-8", "replace").decode())
