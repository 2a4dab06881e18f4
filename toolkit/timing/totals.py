"""The seconds and energy of a session, or of a whole run, by entry of the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from toolkit.runfolder.manifest import Session
from toolkit.timing.kept_steps import lost_behind
from toolkit.timing.names import ENTRIES, IN_STARTUP, IN_TRAINING, REDONE, STALLED, UNACCOUNTED
from toolkit.timing.power import JOULES_PER_KWH
from toolkit.timing.record_fields import LONGEST_S
from toolkit.timing.segments import EARLY, REST, SLOT_OF, UNSEEN, WORK, Stretch, Sums
from toolkit.timing.segments import STALLED as STALLED_SLOT
from toolkit.timing.session_time import SessionTime

_ENTRY_OF_SLOT: Final = {
    **{slot: entry for entry, slot in SLOT_OF.items()},
    EARLY: IN_STARTUP,
    STALLED_SLOT: STALLED,
    UNSEEN: UNACCOUNTED,
}


class Account:
    """Seconds, energy and seconds of known power, by entry; the seconds add up to `wall_s`."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.perf_tag: str | None = None
        self.wall_s = 0.0
        self.began: float | None = None
        """Wall times of its begin and end; None where no record says."""
        self.ended: float | None = None
        self.clock_went_further_s = 0.0
        self.seconds = dict.fromkeys(ENTRIES, 0.0)
        self.joules = dict.fromkeys(ENTRIES, 0.0)
        self.known = dict.fromkeys(ENTRIES, 0.0)
        self.inferred: set[str] = set()
        """Entries some of whose seconds were not timed."""

    @property
    def known_s(self) -> float:
        """For how many seconds power is known."""
        return sum(self.known.values())

    def goodput(self) -> float | None:
        """Return the part of the wall time that was training and was kept; None where no time has passed."""
        return self.seconds[IN_TRAINING] / self.wall_s if self.wall_s > 0.0 else None

    def kwh(self) -> float | None:
        """Return the energy, as far as power is known; None where it never was."""
        return sum(self.joules.values()) / JOULES_PER_KWH if self.known_s > 0.0 else None

    def kwh_of(self, entry: str) -> float | None:
        """Return the energy of one entry; None where power is not known for any of its seconds."""
        if self.known[entry] > 0.0:
            return self.joules[entry] / JOULES_PER_KWH
        return 0.0 if self.known_s > 0.0 and not self.seconds[entry] else None

    def add(self, entry: str, sums: Sums, slot: int) -> None:
        """Add what `sums` has in `slot` to `entry`."""
        self.seconds[entry] += sums.seconds[slot]
        self.joules[entry] += sums.joules[slot]
        self.known[entry] += sums.known_s[slot]


def together(accounts: Iterable[Account]) -> Account:
    """Return the account of a run, made of its sessions'."""
    total = Account()
    for account in accounts:
        total.wall_s += account.wall_s
        for entry in ENTRIES:
            total.seconds[entry] += account.seconds[entry]
            total.joules[entry] += account.joules[entry]
            total.known[entry] += account.known[entry]
        total.inferred |= account.inferred
    return total


def account_of(
    time: SessionTime, kept_step: float, told: Session | None, end: float | None, *, is_alive: bool
) -> Account:
    """Return the account of one session, whose work lives on up to `kept_step`.

    `told` is what the manifest says of it; `end` is the wall time up to which it went on, where no record says so.
    """
    account = Account(time.number)
    # The manifest's are the newest: earlier versions told of late ones there alone.
    account.perf_tag = (told.perf_tag if told is not None else None) or time.perf_tag
    account.clock_went_further_s = time.clock_went_further_s
    if time.origin is None and told is not None:
        # No record yet: all that is known of it is when it began.
        time = SessionTime(time.number)
        time.origin = time.last_time = told.started
    end_s = time.last_at
    if time.ended_s is not None:
        end_s = time.ended_s
    elif end is not None and time.last_time is not None:
        end_s += min(max(0.0, end - time.last_time), LONGEST_S)
    account.wall_s = end_s + time.lead_s
    if time.origin is not None and time.last_time is not None:
        account.began = time.origin - time.lead_s
        account.ended = time.last_time + (end_s - time.last_at)

    tail = time.tail(end_s, is_alive=is_alive)
    sums = time.sums(tail)
    rest_entry = UNACCOUNTED if time.times_training else IN_TRAINING
    if sums.seconds[REST] > 0.0 and not time.times_training:
        account.inferred.add(IN_TRAINING)
    if time.first_steps_s > 0.0:
        account.inferred.add(IN_STARTUP)
    lost = _lost(time, tail, kept_step)
    for slot in (*WORK, REST):
        account.add(REDONE, lost, slot)
        _subtract(sums, lost, slot)
    for slot, entry in _ENTRY_OF_SLOT.items():
        account.add(entry, sums, slot)
    account.add(rest_entry, sums, REST)
    _make_exact(account)
    return account


def _lost(time: SessionTime, tail: list[Stretch], kept_step: float) -> Sums:
    if time.begins_at is None or kept_step == math.inf:
        return Sums()
    slots = WORK if time.times_training else (*WORK, REST)
    stretches = chain(reversed(tail), reversed(time.timeline.settled))
    return lost_behind(stretches, kept_step, begins_at=time.begins_at, slots=slots)


def _subtract(sums: Sums, lost: Sums, slot: int) -> None:
    sums.seconds[slot] = max(0.0, sums.seconds[slot] - lost.seconds[slot])
    sums.joules[slot] = max(0.0, sums.joules[slot] - lost.joules[slot])
    sums.known_s[slot] = max(0.0, sums.known_s[slot] - lost.known_s[slot])


def _make_exact(account: Account) -> None:
    """Let the entries add up to the wall time to the last digit: a million sums leave a little behind."""
    largest = max(ENTRIES, key=lambda entry: account.seconds[entry])
    account.seconds[largest] += account.wall_s - sum(account.seconds.values())


def between(accounts: Sequence[Account]) -> float:
    """Return the seconds in which none of the sessions was going on, though the run was under way."""
    total = 0.0
    last: float | None = None
    for account in accounts:
        if account.began is None or account.ended is None:
            continue
        if last is not None:
            total += max(0.0, account.began - last)
        last = account.ended if last is None else max(last, account.ended)
    return total
