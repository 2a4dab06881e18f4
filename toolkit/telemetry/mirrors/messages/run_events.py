"""Finds the events of a run that are worth a message."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolkit.telemetry.core.formatting import both_ends, short_number
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, OPEN
from toolkit.telemetry.mirrors.messages.message import Message, RunState, cut, one_line
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
from toolkit.telemetry.runfolder.untrusted import texts_in

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
_STEPS_FOR_ETA: Final = 50
_LONGEST_NAME: Final = 120
_LONGEST_TITLE: Final = 200
_LONGEST_LINE: Final = 600
_LONGEST_ERROR: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something worth a message, not redacted yet."""

    occasion: str
    name: str
    """Id by which it is delivered only once."""
    what: str
    lines: tuple[str, ...] = ()
    time: float = 0.0
    run_state: RunState
    details: Mapping[str, Any] = field(default_factory=dict)
    milestone: Milestone | None = None
    """The milestone it is about; sent only to receivers that asked for it."""

    def to_message(self, redact: Callable[[Any], Any], *, link: str | None) -> Message:
        """Return it as a message; `redact` removes secrets, paths and names of people and machines from values."""
        # All at once: a name that one text gives away is removed from the others too. Truncated afterwards: half a
        # secret matches no pattern.
        state = self.run_state
        run_name, project, description, what, lines, details = redact(
            [
                *(state.run_name, state.project, state.description),
                *(self.what, list(self.lines), dict(self.details)),
            ]
        )
        name = cut(_line(run_name), _LONGEST_NAME) or "run"
        return Message(
            occasion=self.occasion,
            title=f"{name}: {cut(_line(what), _LONGEST_TITLE)}",
            lines=tuple(cut(_line(line), _LONGEST_LINE) for line in lines),
            run_state=replace(
                state,
                run_name=name,
                project=cut(_line(project), _LONGEST_NAME),
                description=cut(_line(description), _LONGEST_LINE),
            ),
            link=link,
            time=self.time,
            urgency=_URGENCY.get(self.occasion, 3),
            details={
                _line(key): cut(_line(value), _LONGEST_LINE) if isinstance(value, str) else value
                for key, value in details.items()
            },
            about=(self.name,),
        )


class RunEventReader:
    """Turns the records of one session into events."""

    def __init__(
        self,
        *,
        run_name: str,
        run_id: str = "",
        project: str = "",
        session: int = 1,
        milestones: Iterable[Milestone] = (),
    ) -> None:
        self._run_state = RunState(run_name=run_name, run_id=run_id, project=project, session=session)
        self._milestones = MilestoneWatch(milestones)
        self._seconds: deque[float] = deque(maxlen=_STEPS_FOR_ETA)
        self._has_started = False
        self._findings: set[str] = set()
        self._error: Record | None = None

    @property
    def run_state(self) -> RunState:
        """State and progress of the run."""
        return replace(self._run_state, eta_s=self._eta())

    def take(self, record: Record) -> list[RunEvent]:
        """Return the events of `record`, the next of the session."""
        event = record.get("event")
        if event == STEP:
            self._note_step(record)
        found: list[RunEvent] = []
        if event == START:
            found += self._start(record)
        elif event == FINDING:
            found += self._finding(record)
        elif event == ERROR and record.get("source") != "telemetry":
            self._error = record
        for milestone, name, value in self._milestones.take(record):
            found.append(self._milestone(record, milestone, name, value))
        return found

    def end(
        self, *, status: str, reason: str, now: float, elapsed_s: float, failure: Record | None = None
    ) -> RunEvent:
        """Return the event of the end of the session; without a `failure`, the last error is reported."""
        # A job that the cluster has terminated counts as a failure.
        has_failed = status == "failed" or reason == "signal"
        what = _ENDS.get(reason, status if reason == status else f"{status} ({reason})")
        lines: tuple[str, ...] = ()
        details: dict[str, Any] = {"reason": reason}
        error = failure or self._error
        if has_failed and error is not None:
            kind, text = error.get("type"), error.get("message")
            lines = (_error_line(kind, text),)
            details |= {"error_type": str(kind), "error": lines[0]}
            what = f"failed with {kind}" if status == "failed" else what
        return RunEvent(
            occasion="failure" if has_failed else "finish",
            name=f"end:{self._run_state.session}",
            what=what,
            lines=lines,
            time=now,
            run_state=replace(self._run_state, status=status, eta_s=None, elapsed_s=elapsed_s),
            details=details,
        )

    def _note_step(self, record: Record) -> None:
        step, loss, lr = (record.get(name) for name in ("global_step", "train_loss", "lr"))
        odd = record.get(NON_FINITE)
        if loss is None and isinstance(odd, dict):
            loss = odd.get("train_loss")
        changes: dict[str, Any] = {}
        if isinstance(step, int):
            changes["step"] = step
            if shows_count_from_zero(record):
                changes["from_zero"] = True
        if isinstance(loss, (int, float, str)):
            changes["train_loss"] = loss
        if isinstance(lr, (int, float)):
            changes["lr"] = lr
        self._run_state = replace(self._run_state, **changes)
        seconds = record.get("sec_per_step")
        if isinstance(seconds, (int, float)) and seconds > 0:
            self._seconds.append(float(seconds))

    def _start(self, record: Record) -> list[RunEvent]:
        steps = record.get("max_steps")
        if isinstance(steps, int) and steps > 0:
            from_zero = self._run_state.from_zero or shows_count_from_zero(record)
            self._run_state = replace(self._run_state, max_steps=steps, from_zero=from_zero)
        description = record.get("description") or record.get("notes")
        if isinstance(description, str):
            self._run_state = replace(self._run_state, description=description)
        if self._has_started:
            return []
        self._has_started = True
        session = self._run_state.session
        what = "started" if session == 1 else f"resumed as session {session}"
        lines = (
            (f"{steps:,} steps are planned.",) if self._run_state.max_steps and isinstance(steps, int) else ()
        )
        return [self._event("start", f"start:{session}", what, lines, record)]

    def _finding(self, record: Record) -> list[RunEvent]:
        kind, name, message = (str(record.get(key, "")) for key in ("kind", "id", "message"))
        is_stall = kind in STALLS
        is_open = record.get("state", OPEN) == OPEN
        is_ours = record.get("began_in_session", self._run_state.session) == self._run_state.session
        if is_stall:
            # No alarm for a pause that is over or may be a long evaluation.
            is_news = is_open and record.get("severity") != INFO
        else:
            is_news = (is_open or is_ours) and record.get("severity") == CRITICAL
        if not is_news:
            return []
        # Two detectors notice the same stall one after the other.
        known = (
            f"stall:{self._run_state.session}:{self._run_state.step}"
            if is_stall
            else f"finding:{name or kind}"
        )
        if known in self._findings:
            return []
        self._findings.add(known)
        evidence = record.get("evidence")
        title = title_of(kind, evidence if isinstance(evidence, dict) else {})
        advice = [f"Try: {text}" for text in texts_in(record.get("advice"))[:1]]
        causes = [f"Often: {text}" for text in texts_in(record.get("causes"))[:1]]
        details: dict[str, Any] = {
            key: record[key]
            for key in ("kind", "severity", "metric", "start_step", "noticed_step")
            if key in record
        }
        occasion = "stall" if is_stall else "finding"
        what = "stalled" if is_stall else f"critical finding: {title}"
        lines = (message, *causes, *advice)
        return [self._event(occasion, known, what, lines, record, {**details, "finding": message})]

    def _milestone(self, record: Record, milestone: Milestone, name: str, value: float) -> RunEvent:
        if milestone.every:
            what, lines = f"step {value:,.0f} reached", []
        else:
            at = record.get("global_step")
            where = f" at step {at:,}" if isinstance(at, int) else ""
            what = f"milestone {milestone.text} reached"
            lines = [f"{milestone.metric} is {short_number(value)}{where}."]
        details = {"milestone": milestone.text, "value": value}
        event = self._event("milestone", name, what, tuple(lines), record, details)
        return replace(event, milestone=milestone)

    def _event(
        self,
        occasion: str,
        name: str,
        what: str,
        lines: tuple[str, ...],
        record: Record,
        details: Mapping[str, Any] | None = None,
    ) -> RunEvent:
        when = record.get("time")
        return RunEvent(
            occasion=occasion,
            name=name,
            what=what,
            lines=lines,
            time=when if isinstance(when, (int, float)) else 0.0,
            run_state=self.run_state,
            details=details or {},
        )

    def _eta(self) -> float | None:
        """Return the remaining seconds at the median step time: pauses to save or evaluate do not count."""
        step, steps = self._run_state.steps_done, self._run_state.max_steps
        if step is None or steps is None or step >= steps or not self._seconds:
            return None
        return (steps - step) * statistics.median(self._seconds)


def _line(text: str) -> str:
    # Lone surrogates cannot be sent.
    return one_line(text.encode("utf-8", "replace").decode())


def _error_line(kind: Any, text: Any) -> str:
    text = "" if text is None else both_ends(str(text), _LONGEST_ERROR)
    return text if text.startswith(str(kind)) else f"{kind}: {text}"
