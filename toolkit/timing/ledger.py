"""The time ledger: every second of a run, across its sessions, in exactly one entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from toolkit.runfolder import records as kinds
from toolkit.runfolder.manifest import Session
from toolkit.runfolder.records import Record
from toolkit.timing.kept_steps import Reach, kept_until
from toolkit.timing.names import ENTRIES
from toolkit.timing.record_fields import LONGEST_S, moment_in, seconds_in, whole
from toolkit.timing.session_time import SessionTime
from toolkit.timing.totals import Account, account_of, between, together

_MOST_SESSIONS: Final = 2_000
_KEPT_OF_PAST_SESSIONS: Final = 2_000
_FOREIGN: Final = 0
"""The session of records that have none: another program wrote them. Ours begin with 1."""
_RUNNING: Final = "running"
_NOTABLE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entry of a ledger."""

    entry: str
    seconds: float
    share: float
    """Of the wall time, from 0 to 1."""
    kwh: float | None
    """As far as power is known; None where it is not known for any of these seconds."""
    inferred: bool
    """Some of these seconds were not timed, and are here because they were in no other entry."""


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
    """Training that was kept, as a part of the wall time; None where no time has passed."""
    kwh: float | None
    between_sessions_s: float
    """Not part of `wall_s`: nothing was running."""
    notes: tuple[str, ...]
    sessions: tuple[SessionLedger, ...]


class LedgerBook:
    """Reads the records of one run in the order of the file, as they come, and says where its time went.

    What it holds in memory is bounded. It takes any record: what it cannot use is counted, and told in the notes.
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
        self,
        sessions: Sequence[Session] = (),
        now: float | None = None,
        *,
        last_sign: float | None = None,
    ) -> Ledger:
        """Return the ledger of what was read so far; the book can go on afterwards.

        `sessions` are the manifest's. `now` is given for a run that is alive: its newest session lasts until then.
        `last_sign` is given for one that is not, and left no end: its last heartbeat.
        """
        accounts = self._accounts(sessions, now, last_sign)
        total = together(accounts)
        return Ledger(
            lines=_lines(total),
            wall_s=total.wall_s,
            goodput=total.goodput(),
            kwh=total.kwh(),
            between_sessions_s=between(accounts),
            notes=tuple(self._notes(accounts, total)),
            sessions=tuple(_of_session(account) for account in accounts),
        )

    # ------------------------------------------------------------ sessions

    def _session(self, number: object) -> SessionTime | None:
        """Return the session of this number, a new one where it is the first record of it."""
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

    def _accounts(self, told: Sequence[Session], now: float | None, last_sign: float | None) -> list[Account]:
        in_manifest = {session.session: session for session in told}
        numbers = sorted({*self._sessions, *in_manifest})
        times = [self._sessions.get(number) or SessionTime(number) for number in numbers]
        kept = kept_until([Reach(time.begins_at, time.gets_to, time.saved) for time in times])
        accounts = []
        for time, step in zip(times, kept, strict=True):
            entry = in_manifest.get(time.number)
            is_newest = time.number == numbers[-1]
            is_alive = is_newest and now is not None and (entry is None or entry.status == _RUNNING)
            end = now if is_alive else None
            if end is None and entry is not None:
                end = entry.ended
            if end is None and is_newest:
                end = last_sign
            accounts.append(account_of(time, step, entry, end, is_alive=is_alive))
        return accounts

    # ------------------------------------------------------------ notes

    def _notes(self, accounts: Sequence[Account], total: Account) -> Iterable[str]:
        for account in accounts:
            further_s = account.clock_went_further_s
            # Clocks that are kept in time wander by milliseconds; a second is more than that in any run.
            if abs(further_s) > max(_NOTABLE_S, min(5.0, 0.01 * account.wall_s)):
                which = f"In session {account.number} the" if len(accounts) > 1 else "The"
                if further_s > 0:
                    yield (
                        f"{which} wall clock went {further_s:,.0f} s further than the run's own: the machine slept, "
                        "or its clock was set. These seconds are not counted."
                    )
                else:
                    yield f"{which} wall clock was set back by {-further_s:,.0f} s; the run's own clock counts."
        if total.wall_s > 0.0 and total.known_s > 0.0 and total.known_s < 0.995 * total.wall_s:
            percent = min(99, max(1, round(100 * total.known_s / total.wall_s)))
            yield f"Power is known for {percent} % of the time; kWh are of that part only."
        beside_s = sum(max(0.0, time.loading_s - time.waiting_s) for time in self._sessions.values())
        if beside_s > max(_NOTABLE_S, 0.01 * total.wall_s):
            yield (
                f"Data were loaded for {beside_s:,.0f} s on other threads than the loop's. What of it the loop waited "
                "for is not known, and counts as what the loop was at: put data_loading around its wait."
            )
        odd = sum(time.timeline.odd for time in self._sessions.values())
        if odd:
            yield f"{_records(odd)} more seconds than had passed, or none that can be; what was too much is left out."
        if self._unusable:
            what = "1 record has" if self._unusable == 1 else f"{self._unusable:,} records have"
            yield f"{what} no usable session or time and could not be counted."


class _ForeignClock:
    """Works out `elapsed` for the records of another program, which have wall times and neither sessions nor numbers.

    All of them are one session. What passes between the last record and a new start is not part of it.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._before_s = 0.0
        """Seconds of earlier starts."""

    def elapsed(self, record: Record) -> float | None:
        """Return the moment of `record`; None where it has no usable time, or is one of ours."""
        now = None if "seq" in record or "session" in record else moment_in(record, "time")
        if now is None:
            return None
        if self._began is None or record.get("event") == kinds.START:
            if self._began is not None:
                self._before_s += self._last - self._began
            self._began = self._last = now
        # A clock that was set back does not make the run shorter.
        self._last = max(self._last, now)
        return min(LONGEST_S, self._before_s + self._last - self._began)


def _of_session(account: Account) -> SessionLedger:
    return SessionLedger(
        session=account.number,
        wall_s=account.wall_s,
        lines=_lines(account),
        goodput=account.goodput(),
        kwh=account.kwh(),
        perf_tag=account.perf_tag,
    )


def _lines(account: Account) -> tuple[Line, ...]:
    return tuple(
        Line(
            entry=entry,
            seconds=account.seconds[entry],
            share=account.seconds[entry] / account.wall_s if account.wall_s > 0.0 else 0.0,
            kwh=account.kwh_of(entry),
            inferred=entry in account.inferred,
        )
        for entry in ENTRIES
    )


def _records(count: int) -> str:
    return "1 record tells of" if count == 1 else f"{count:,} records tell of"
