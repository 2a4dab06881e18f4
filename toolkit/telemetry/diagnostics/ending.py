"""How a run ended (finished, failed with which exception and where, stopped, lost, stalled) and its other errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from toolkit.telemetry.diagnostics.catalogue import HANG
from toolkit.telemetry.diagnostics.error_records import ErrorRecords
from toolkit.telemetry.diagnostics.finding import CRITICAL, OPEN, SEVERITIES, Finding, problem_from
from toolkit.telemetry.runfolder import records as kinds
from toolkit.telemetry.runfolder.manifest import Manifest
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.status import (
    FAILED,
    FINISHED,
    LOST,
    RUNNING,
    STALLED,
    STOPPED,
    Status,
    work_out_status,
)
from toolkit.telemetry.runfolder.untrusted import number_in

_BAD: Final = frozenset({FAILED, LOST, STALLED})
_OF_END_RECORDS: Final = frozenset({FINISHED, FAILED, STOPPED})
_TELLING: Final = frozenset({kinds.ERROR, kinds.SPAN_START, kinds.SPAN, kinds.FINDING, kinds.LOST, kinds.END})
_MOST_ERRORS: Final = 1_000
_MOST_FINDINGS: Final = 1_000
_MOST_OPEN_SPANS: Final = 1_000
_LONGEST: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """One distinct error of a run, as its newest record describes it."""

    type: str
    message: str
    where: str
    """The innermost frame, `file:line in function`; empty if the record has no stack."""
    step: int | None
    rank: int
    session: int
    spans: tuple[str, ...]
    """Names of the spans that were open, innermost last."""
    count: int
    severity: str
    out_of_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the newest session of a run ended, or that it is still running."""

    status: str | None
    """`finished`, `failed`, `stopped`, `lost`, `stalled` or `running`; None if unknown."""
    why: str
    sure: bool
    is_bad: bool
    """Whether it failed, was lost, or stalled, on rank 0 or another one."""
    step: int | None = None
    """The last step of rank 0."""
    error: RunError | None = None
    """The exception that ended it: the first one, where several ranks failed."""
    inside: tuple[str, ...] = ()
    """Spans that were open when a run was lost or stalled, innermost last."""
    hang: str | None = None
    """The run's own message about a hang that was not resolved."""


@dataclass(slots=True)
class _Rank:
    """What the records of one rank say about its newest session."""

    session: int = -1
    step: int | None = None
    end: Record | None = None
    error: tuple[str, float] | None = None
    """Key and time of the newest error that no step came after."""
    last_error: tuple[str, float] | None = None
    spans: dict[str, str] = field(default_factory=dict)
    hangs: dict[str, str] = field(default_factory=dict)

    def take_step(self, record: Record) -> None:
        step = record.get("global_step")
        self.step = step if type(step) is int else self.step
        self.error = None

    def take_end(self, record: Record) -> None:
        self.end = record
        step = record.get("global_step")
        # Steps without a record of their own count here.
        self.step = step if type(step) is int else self.step

    def take_hang(self, record: Record) -> None:
        if record.get("kind") != HANG:
            return
        known_by = str(record.get("id"))
        if record.get("state") != OPEN:
            self.hangs.pop(known_by, None)
        elif len(self.hangs) < _MOST_ERRORS:
            self.hangs[known_by] = str(record.get("message"))[:_LONGEST]


class Endings:
    """Reads the records of a run, each rank's in order, and works out how it ended. Memory use is bounded."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self.records = ErrorRecords()
        self.reported: deque[Finding] = deque(maxlen=_MOST_FINDINGS)
        """The findings that the run reported, the newest record first."""
        self.lost_records = 0
        """Records that the run declared lost."""

    def take(self, records: Sequence[Record], rank: int = 0) -> None:
        """Read the next records of `rank`."""
        mine = self._ranks.setdefault(rank, _Rank())
        for record in records:
            event, session = record.get("event"), record.get("session")
            if session != mine.session and type(session) is int:
                mine = self._ranks[rank] = _Rank(session=session)
            if event == kinds.STEP:
                mine.take_step(record)
            elif type(event) is str and event in _TELLING:
                self._add(record, mine, rank)

    def _add(self, record: Record, mine: _Rank, rank: int) -> None:
        event = record["event"]
        if event == kinds.ERROR:
            self._add_error(record, mine, rank)
        elif event == kinds.SPAN_START:
            if len(mine.spans) < _MOST_OPEN_SPANS:
                mine.spans[str(record.get("id"))] = str(record.get("name"))[:_LONGEST]
        elif event == kinds.SPAN:
            mine.spans.pop(str(record.get("id")), None)
        elif event == kinds.FINDING:
            mine.take_hang(record)
            if not rank:
                self.reported.appendleft(problem_from(record))
        elif event == kinds.LOST:
            lost = record.get("records")
            self.lost_records += lost if type(lost) is int and lost > 0 else 0
        else:
            mine.take_end(record)
            self.records.add_end(record, rank)

    def errors(self, *, but: Ending | None = None) -> list[RunError]:
        """Return the distinct errors of all sessions and ranks, by their first record, `but` the one that ended it."""
        cause = None if but is None else but.error
        return [error for record in self.records.newest.values() if (error := _error(record)) != cause]

    def ending(self, manifest: Manifest | None, now: float) -> Ending | None:
        """Return how the run ended; None if there is neither a manifest nor an end record."""
        mine = self._ranks.get(0, _Rank())
        status = self._status(mine, manifest, now)
        error = self._cause(status)
        if status is None:
            return None
        is_over = status.name != RUNNING
        is_open = status.name in (LOST, STALLED)
        hang = next(iter(mine.hangs.values()), None) if is_over else None
        return Ending(
            status=status.name,
            why=status.why,
            sure=status.sure,
            is_bad=status.name in _BAD or error is not None,
            step=mine.step,
            error=error,
            inside=tuple(mine.spans.values()) if is_open else (),
            hang=hang,
        )

    def _status(self, mine: _Rank, manifest: Manifest | None, now: float) -> Status | None:
        end = mine.end
        if end is not None and str(end.get("status")) in _OF_END_RECORDS:
            newest = manifest.latest.session if manifest is not None and manifest.latest is not None else None
            if newest is None or newest == mine.session:
                # The newest statement: run.json may not have been updated any more.
                return Status(name=end["status"], why=_reason(end), sure=True)
        return None if manifest is None else work_out_status(manifest, now)

    def _cause(self, status: Status | None) -> RunError | None:
        """Return the error that ended the run: the first of those that ended its ranks."""
        if status is None or status.name == RUNNING:
            return None
        newest = max((rank.session for rank in self._ranks.values()), default=-1)
        found = []
        for number, rank in self._ranks.items():
            if rank.session != newest:
                continue
            said = rank.end.get("status") if rank.end is not None else None
            if said == FAILED or (number == 0 and status.name == FAILED):
                found.append(rank.error or rank.last_error)
            elif said is None and (number or status.name in _BAD):
                # No end record: an error without a later step is the last thing that happened.
                found.append(rank.error)
        records = self.records.newest
        causes = [one for one in found if one is not None and one[0] in records]
        causes = [one for one in causes if _severity(records[one[0]]) == CRITICAL]
        if not causes:
            return None
        key, _ = min(causes, key=lambda cause: cause[1])
        return _error(records[key])

    def _add_error(self, record: Record, mine: _Rank, rank: int) -> None:
        key = self.records.add({**record, "rank": rank, "session": mine.session}, rank)
        if key is not None:
            mine.error = mine.last_error = (key, number_in(record.get("time")) or 0.0)


def _where(record: Record) -> str:
    """Return the innermost frame of an error, `file:line in function`; empty if its record has no stack."""
    stack = record.get("stack")
    return str(stack[-1])[:_LONGEST] if isinstance(stack, list) and stack else ""


def _error(record: Record) -> RunError:
    step, count, spans = (record.get(name) for name in ("global_step", "count", "spans"))
    return RunError(
        type=str(record.get("type") or "error")[:_LONGEST],
        message=str(record.get("message") or "")[:_LONGEST],
        where=_where(record),
        step=step if type(step) is int else None,
        rank=record["rank"],
        session=record["session"],
        spans=tuple(str(name)[:_LONGEST] for name in spans) if isinstance(spans, list) else (),
        count=count if type(count) is int and count > 0 else 1,
        severity=_severity(record),
        out_of_memory=isinstance(record.get("memory"), dict),
    )


def _severity(record: Record) -> str:
    severity = record.get("severity")
    return severity if severity in SEVERITIES else CRITICAL


def _reason(end: Record) -> str:
    signal = end.get("signal")
    reason = str(end.get("reason") or "recorded by the run itself")[:_LONGEST]
    return f"{reason} {str(signal)[:40]}" if signal else reason
