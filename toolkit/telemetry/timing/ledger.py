"""The time ledger: every second of a run, across its sessions, in exactly one entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from toolkit.telemetry.runfolder import records as kinds
from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.timing.kept_steps import kept_until
from toolkit.telemetry.timing.names import ENTRIES
from toolkit.telemetry.timing.record_fields import LONGEST_S, seconds_in, time_in, whole
from toolkit.telemetry.timing.session_time import SessionTime
from toolkit.telemetry.timing.totals import Totals, between, session_totals, sum_of

_MOST_SESSIONS: Final = 2_000
_KEPT_OF_PAST_SESSIONS: Final = 2_000
_FOREIGN: Final = 0
"""The session of records without one, which another program wrote. Ours start at 1."""
_RUNNING: Final = "running"
_NOTABLE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entry of a ledger."""

    entry: str
    seconds: float
    share: float
    """Share of the wall time, from 0 to 1."""
    kwh: float | None
    """As far as power is known; None if it is unknown for all of these seconds."""
    inferred: bool
    """Some of these seconds were not timed; they are here because they are in no other entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLedger:
    """Where the time of one session went."""

    session: int
    wall_s: float
    lines: tuple[Line, ...]
    goodput: float | None
    kwh: float | None
    perf_tag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where the time of a run went: the seconds of its lines add up to `wall_s`."""

    lines: tuple[Line, ...]
    """One for each of `ENTRIES`, in that order."""
    wall_s: float
    goodput: float | None
    """Training that was kept, as a share of the wall time; None if no time has passed."""
    kwh: float | None
    between_sessions_s: float
    """Not part of `wall_s`: nothing was running."""
    notes: tuple[str, ...]
    sessions: tuple[SessionLedger, ...]


class LedgerBuilder:
    """Reads the records of one run in file order, as they arrive, and works out where its time went.

    Memory use is bounded. Any record is accepted; unusable ones are counted and reported in the notes.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, SessionTime] = {}
        self._newest: SessionTime | None = None
        self._foreign = _ForeignClock()
        self._unusable = 0

    def take(self, records: Iterable[Record]) -> None:
        """Take the next records of the file."""
        session = self._newest
        for record in records:
            event = record.get("event")
            at = record.get("elapsed")
            if not (type(at) is float and 0.0 <= at <= LONGEST_S):
                at = seconds_in(record, "elapsed")
                if at is None:
                    at = self._foreign.elapsed(record)
                    if at is not None:
                        record = {**record, "session": _FOREIGN}
                if at is None:
                    self._unusable += 1
                    continue
            if record.get("rank"):
                continue
            number = record.get("session")
            if session is None or session.number != number:
                found = self._session(number)
                if found is None:
                    self._unusable += 1
                    continue
                session = found
            if session.is_over:
                continue
            session.see(record, at)
            if event == kinds.STEP:
                session.take_step(record, at)
            elif event == kinds.SYSTEM:
                session.take_system(record, at)
            elif event == kinds.LEDGER:
                session.take_ledger(record, at)
            elif event == kinds.SPAN:
                session.take_span(record, at)
            elif event == kinds.SPAN_START:
                session.take_span_start(record, at)
            elif event == kinds.CHECKPOINT:
                session.take_checkpoint(record, at)
            elif event == kinds.START:
                session.take_start(record)
            elif event == kinds.TAGS:
                session.take_tags(record)
            elif event == kinds.END:
                session.take_end(at)

    def ledger(
        self, sessions: Sequence[Session] = (), now: float | None = None, *, last_sign: float | None = None
    ) -> Ledger:
        """Return the ledger of the records read so far; more records can follow.

        `sessions` come from the manifest. `now` is for a live run: its newest session lasts until then.
        `last_sign`, the last heartbeat, is for a run that died without an end record.
        """
        by_session = self._by_session(sessions, now, last_sign)
        total = sum_of(by_session)
        return Ledger(
            lines=_lines(total),
            wall_s=total.wall_s,
            goodput=total.goodput(),
            kwh=total.kwh(),
            between_sessions_s=between(by_session),
            notes=tuple(self._notes(by_session, total)),
            sessions=tuple(_of_session(totals) for totals in by_session),
        )

    # ------------------------------------------------------------ sessions

    def _session(self, number: object) -> SessionTime | None:
        """Return the session with this number; the first record of a session creates it."""
        known = whole(number)
        if known is None or known < 0:
            return None
        if known in self._sessions:
            return self._sessions[known]
        if len(self._sessions) >= _MOST_SESSIONS:
            return None
        before = self._newest
        session = SessionTime(
            known,
            not_before=(before.last_time or 0.0) if before is not None else 0.0,
            paces=before.timeline.paces if before is not None else (),
        )
        if before is not None:
            before.timeline.shrink(_KEPT_OF_PAST_SESSIONS)
        self._sessions[known] = session
        if before is None or known > before.number:
            self._newest = session
        return session

    def _by_session(
        self, sessions: Sequence[Session], now: float | None, last_sign: float | None
    ) -> list[Totals]:
        in_manifest = {session.session: session for session in sessions}
        numbers = sorted({*self._sessions, *in_manifest})
        times = [self._sessions.get(number) or SessionTime(number) for number in numbers]
        kept = kept_until(times)
        found = []
        for time, step in zip(times, kept, strict=True):
            entry = in_manifest.get(time.number)
            is_newest = time.number == numbers[-1]
            is_alive = is_newest and now is not None and (entry is None or entry.status == _RUNNING)
            end = now if is_alive else None
            if end is None and entry is not None:
                end = entry.ended
            if end is None and is_newest:
                end = last_sign
            found.append(session_totals(time, step, entry, end, is_alive=is_alive))
        return found

    # ------------------------------------------------------------ notes

    def _notes(self, by_session: Sequence[Totals], total: Totals) -> Iterable[str]:
        for totals in by_session:
            further_s = totals.clock_went_further_s
            # NTP corrections are milliseconds; a second is more than that in any run.
            if abs(further_s) > max(_NOTABLE_S, min(5.0, 0.01 * totals.wall_s)):
                which = f"In session {totals.number} the" if len(by_session) > 1 else "The"
                if further_s > 0:
                    yield (
                        f"{which} wall clock advanced {further_s:,.0f} s more than the run's own clock: the machine "
                        "slept, or its clock was set. These seconds are not counted."
                    )
                else:
                    yield f"{which} wall clock was set back by {-further_s:,.0f} s; the run's own clock is used."
        if total.wall_s > 0.0 and total.known_s > 0.0 and total.known_s < 0.995 * total.wall_s:
            percent = min(99, max(1, round(100 * total.known_s / total.wall_s)))
            yield f"Power is known for {percent} % of the time; kWh cover only that part."
        parallel_s = sum(max(0.0, time.loading_s - time.waiting_s) for time in self._sessions.values())
        if parallel_s > max(_NOTABLE_S, 0.01 * total.wall_s):
            yield (
                f"Data was loaded for {parallel_s:,.0f} s on threads other than the loop's. How much of it the loop "
                "waited for is unknown and counts as whatever the loop was doing: put a data_loading span around "
                "its wait."
            )
        odd = sum(time.timeline.odd for time in self._sessions.values())
        if odd:
            yield f"{_records(odd)} more seconds than had passed, or an impossible number; the excess is left out."
        if self._unusable:
            what = "1 record has" if self._unusable == 1 else f"{self._unusable:,} records have"
            yield f"{what} no usable session or time and could not be counted."


class _ForeignClock:
    """Works out `elapsed` for records of another program, which have wall times but no sessions or numbers.

    They all form one session. The time between the last record and a new start is not counted.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._before_s = 0.0
        """Seconds before the latest start."""

    def elapsed(self, record: Record) -> float | None:
        """Return the elapsed seconds of `record`; None if it has no usable time or is one of ours."""
        now = None if "seq" in record or "session" in record else time_in(record, "time")
        if now is None:
            return None
        if self._began is None or record.get("event") == kinds.START:
            if self._began is not None:
                self._before_s += self._last - self._began
            self._began = self._last = now
        # A clock that was set back must not make the run shorter.
        self._last = max(self._last, now)
        return min(LONGEST_S, self._before_s + self._last - self._began)


def _of_session(totals: Totals) -> SessionLedger:
    return SessionLedger(
        session=totals.number,
        wall_s=totals.wall_s,
        lines=_lines(totals),
        goodput=totals.goodput(),
        kwh=totals.kwh(),
        perf_tag=totals.perf_tag,
    )


def _lines(totals: Totals) -> tuple[Line, ...]:
    return tuple(
        Line(
            entry=entry,
            seconds=totals.seconds[entry],
            share=totals.seconds[entry] / totals.wall_s if totals.wall_s > 0.0 else 0.0,
            kwh=totals.kwh_of(entry),
            inferred=entry in totals.inferred,
        )
        for entry in ENTRIES
    )


def _records(count: int) -> str:
    return "1 record reports" if count == 1 else f"{count:,} records report"
