"""Detects that no more steps come, and records the stack of every thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.background import frames_of_threads
from toolkit.telemetry.diagnostics.catalogue import HANG, finding_of
from toolkit.telemetry.diagnostics.finding import INFO, Finding
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.robust import median
from toolkit.telemetry.diagnostics.thresholds import STALL_LOUD_S
from toolkit.telemetry.logger.errors.main_thread import processor_s, where_rank_is
from toolkit.telemetry.logger.errors.stack import Stack, path_shower, walk_frame
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.timing.names import (
    ENTRY_OF,
    IN_CHECKPOINT,
    IN_CONTROL,
    IN_SAMPLING,
    IN_STARTUP,
    IN_VALIDATION,
)

_TIMES: Final = 5.0
"""No step for so many times the usual duration."""
_PATIENCE: Final = 10.0
"""So many times `hang_after` if the usual duration is unknown, or if an open span explains the pause."""
_INTERVALS: Final = 50
_FEWEST: Final = 3
_WARM: Final = 10
"""Steps after which a loop has compiled, downloaded and filled its caches, however seldom it logs."""
_ASLEEP_S: Final = 5.0
"""A gap in which this check did not run either (a suspended laptop, a stopped process) is not a hang."""
_SURE_AFTER_S: Final = 10.0
"""How long a rank is watched, at most, before it says where it is: one that works there is not stuck."""
_IDLE: Final = 0.005
"""Of that time, a main thread that uses less on the processor only waits."""
_EXPLAINS: Final = frozenset({IN_STARTUP, IN_VALIDATION, IN_CHECKPOINT, IN_SAMPLING, IN_CONTROL})
_METRIC: Final = "global_step"
_BEFORE_THE_FIRST: Final = "before the first step"
_OUR_THREADS: Final = "telemetry-"
_MAX_STACKS: Final = 40
_MOST_CHARACTERS: Final = 40_000
"""A record has room for 64 KiB."""

ReportFinding = Callable[[Finding, dict[str, Any]], None]
"""Called with a finding, whose severity the run's policy may change, and further fields of its record."""


class TrainingProgress(NamedTuple):
    """What the training has done so far; if two are equal, nothing happened in between."""

    step: int | None
    """The last step; None before the first."""
    steps: object
    """Changes with each logged step."""
    others: object
    """Changes with other activity of the training thread: spans that end, records of evaluations."""
    is_done: bool = False
    """Whether all planned steps are done."""
    done: int = 0
    """Steps since the first one of this session."""


class HangWatch:
    """Checks the progress regularly. Each pause is one finding, which is resolved when something happens again."""

    def __init__(
        self,
        *,
        after_s: float,
        session: int,
        rank: int,
        now: Callable[[], float],
        progress: Callable[[], TrainingProgress],
        open_spans: Callable[[], list[dict[str, Any]]],
        about_gpu: Callable[[], dict[str, Any]],
        report: ReportFinding,
    ) -> None:
        self._after_s = after_s
        self._session = session
        self._rank = rank
        self._now = now
        self._progress = progress
        self._open_spans = open_spans
        self._about_gpu = about_gpu
        self._report = report
        self._seen = progress()
        self._looked_at = self._alive_at = self._stepped_at = now()
        self._intervals: deque[float] = deque(maxlen=_INTERVALS)
        self._step_times: deque[float] = deque(maxlen=_INTERVALS)
        self._longest_explained_s = 0.0
        self._was_explained = False
        self._incident: Incident | None = None
        self._repeats: dict[str, int] = {}
        self._watched: tuple[float, float | None] = 0.0, None
        """Since when the main thread is watched in a hang, and the processor time that it had used by then."""
        self._next_where_s = 0.0

    def look(self) -> None:
        """Check for progress since the last call, and report a hang if the last progress is too long ago."""
        now, progress, before = self._now(), self._progress(), self._seen
        if now - self._looked_at > _ASLEEP_S:
            self._alive_at += now - self._looked_at
            self._stepped_at += now - self._looked_at
        since_look, self._looked_at = now - self._looked_at, now
        self._seen = progress
        if progress.steps != before.steps:
            self._learn(now - self._stepped_at, before.step, progress.step)
            if before.step is None and progress.done > 0:
                self._step_times.append(since_look / progress.done)
            self._stepped_at = now
        if progress != before:
            self._end(now, progress)
            self._alive_at = now
            return
        spans = self._open_spans()
        is_explained = any(ENTRY_OF.get(str(span.get("name"))) in _EXPLAINS for span in spans)
        self._was_explained = self._was_explained or is_explained
        seconds = now - self._alive_at
        if self._incident is not None:
            self._grow(self._incident, seconds)
        elif seconds >= self._limit(progress, is_explained) and not progress.is_done:
            self._begin(progress, seconds)

    def _learn(self, seconds: float, before: int | None, step: int | None) -> None:
        if before is None or step is None:
            return
        # Between two logged steps: a script may log only every hundredth step.
        self._intervals.append(seconds)
        if step > before:
            self._step_times.append(seconds / (step - before))

    def _limit(self, progress: TrainingProgress, is_explained: bool) -> float:
        patience = _PATIENCE * self._after_s
        if len(self._intervals) < _FEWEST and progress.done < _WARM:
            # The first steps compile, download and fill caches.
            return max(patience, _TIMES * max(self._intervals, default=0.0))
        usual = median(self._intervals) if self._intervals else 0.0
        limit = max(self._after_s, _TIMES * usual)
        return max(limit, patience, _TIMES * self._longest_explained_s) if is_explained else limit

    def _begin(self, progress: TrainingProgress, seconds: float) -> None:
        step = progress.step if progress.step is not None else 0
        of_rank = f"-rank-{self._rank}" if self._rank else ""
        incident = self._incident = Incident(
            id=f"{self._session}-{HANG}-{_METRIC}-{step}{of_rank}",
            kind=HANG,
            metric=_METRIC,
            start_step=step,
            noticed_step=step,
            session=self._session,
        )
        incident.evidence["seconds"] = float(round(seconds))
        if progress.step is None:
            incident.variant = _BEFORE_THE_FIRST
        elif (len(self._intervals) < _FEWEST and progress.done < _WARM) or not self._step_times:
            incident.variant = "after the first steps"
        else:
            incident.evidence["usual_s"] = median(self._step_times)
        # If the usual duration is unknown, it may not be too long: only listed, without an alarm.
        incident.severity = INFO if seconds < STALL_LOUD_S or incident.variant else None
        incident.repeats = self._repeats.get(incident.id, 0)
        self._repeats[incident.id] = incident.repeats + 1
        self._watched = self._now(), processor_s()
        self._next_where_s = seconds + min(_SURE_AFTER_S, self._after_s)
        self._put(incident, {**thread_stacks(), "open_spans": self._open_spans(), **self._about_gpu()})

    def _grow(self, incident: Incident, seconds: float) -> None:
        incident.evidence["seconds"] = float(round(seconds))
        is_loud = incident.severity == INFO and seconds >= STALL_LOUD_S and not incident.variant
        if is_loud:
            incident.severity = None
        where = self._where() if seconds >= self._next_where_s else {}
        if where:
            self._next_where_s = max(STALL_LOUD_S, 2 * seconds)
        if is_loud or where:
            self._put(incident, where)

    def _where(self) -> dict[str, Any]:
        """Return where this rank is, and whether its main thread did nothing but wait since it was looked at last."""
        where = where_rank_is()
        if not where:
            return {}
        (since, before), used = self._watched, processor_s()
        self._watched = self._now(), used
        waited_s = self._watched[0] - since
        is_idle = before is not None and used is not None and used - before < _IDLE * waited_s
        return {"where": {**where, "is_idle": is_idle}}

    def _end(self, now: float, progress: TrainingProgress) -> None:
        seconds = now - self._alive_at
        if self._was_explained:
            self._longest_explained_s = max(self._longest_explained_s, seconds)
            self._was_explained = False
        if self._incident is None:
            return
        incident, self._incident = self._incident, None
        incident.evidence["seconds"] = float(round(seconds))
        incident.end_step = progress.step if progress.step is not None else 0
        incident.resolved_step = incident.end_step
        incident.variant = "over before the first step" if incident.variant == _BEFORE_THE_FIRST else "over"
        self._put(incident, {})

    def _put(self, incident: Incident, more: dict[str, Any]) -> None:
        self._report(finding_of(incident, severity=incident.severity or ""), more)


def thread_stacks() -> dict[str, Any]:
    """Return the stacks of all threads except this package's own, innermost frame last; the main thread comes first.

    Threads with the same stack are listed together. What does not fit into a record is counted.
    """
    main = threading.main_thread().ident
    named = {thread.ident: thread.name for thread in threading.enumerate()}
    shown = path_shower()
    together: dict[tuple[str, ...], list[str]] = {}
    # One after the other, so that no frame is kept alive longer than needed.
    frames = frames_of_threads()
    names = {ident: named.get(ident, f"thread {ident}") for ident in frames}
    for ident, name in sorted(names.items(), key=lambda item: (item[0] != main, item[1])):
        frame = frames.pop(ident)
        if not name.startswith(_OUR_THREADS):
            lines = tuple(mask_secrets(Stack(walk_frame(frame)).lines(shown)))
            together.setdefault(lines, []).append(name)
        del frame
    return _that_fit(together)


def _that_fit(together: dict[tuple[str, ...], list[str]]) -> dict[str, Any]:
    stacks: list[dict[str, Any]] = []
    room, left_out = _MOST_CHARACTERS, 0
    for lines, threads in together.items():
        room -= sum(len(line) + 4 for line in lines)
        if len(stacks) >= _MAX_STACKS or (room < 0 and stacks):
            left_out += len(threads)
        else:
            entry: dict[str, Any] = {"threads": threads[:_MAX_STACKS], "stack": list(lines)}
            if len(threads) > _MAX_STACKS:
                entry["more_threads"] = len(threads) - _MAX_STACKS
            stacks.append(entry)
    return {"stacks": stacks, **({"threads_left_out": left_out} if left_out else {})}
