"""Which entry of the ledger the training is in, and how many seconds each of them has had."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from toolkit.telemetry.timing.names import LEDGER_PREFIX

_DEEPEST: Final = 1_000
_TRIES: Final = 10


class Metered(Protocol):
    """A span whose time counts as an entry of the ledger."""

    times: Any
    """Their `bucket` is where its seconds go."""
    below: Any
    closed: bool


class LedgerMeter:
    """Adds up the seconds of one thread, the one that trains: the innermost span that has an entry gets them.

    Spans enter and leave as they like, also in an order that is not the reverse of the other. What is added up only
    grows; a reader remembers what it took, so that nothing is locked. `since` moves on before the
    seconds after it are added: what another thread sees in between is too little for a short time, and never too much.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.owner = threading.get_ident()
        self.top: Metered | None = None
        # Nothing was counted so far: what comes first may be dated back to before the logger.
        self.since = -math.inf
        self.buckets: dict[str, list[float]] = {}
        self.taken_at = monotonic()
        """When seconds were last taken."""
        self.monotonic = monotonic
        self._taken: dict[str, float] = {}
        self._fields: dict[str, str] = {}
        self._taking = threading.Lock()

    def bucket(self, entry: str) -> list[float]:
        """Return where the seconds of `entry` are added up."""
        if entry not in self.buckets:
            self._taken[entry] = 0.0
            self._fields[entry] = LEDGER_PREFIX + entry
            self.buckets[entry] = [0.0]
        return self.buckets[entry]

    def move_to(self, thread: int) -> None:
        """Follow another thread from now on: the training is there."""
        self._settle(self.monotonic())
        self.owner, self.top = thread, None

    def enter(self, span: Metered, now: float) -> None:
        """Have the time from `now` on counted as the span's entry; for spans of the thread that trains."""
        self._settle(now)
        span.below = self.top
        self.top = span

    def enter_earlier(self, time_s: float, since: float, top: Metered | None) -> None:
        """Have the span that was entered just now, when `top` had the time since `since`, count from `time_s` on."""
        entered, time_s = self.since, max(time_s, since)
        if time_s < entered:
            self.since = time_s
            if top is not None:
                top.times.bucket[0] -= entered - time_s

    def left_earlier(self, span: Metered, time_s: float) -> None:
        """Have the span that was left just now count up to `time_s`, and what is around it from then on."""
        left = self.since
        if time_s < left:
            span.times.bucket[0] -= left - time_s
            self.since = time_s

    def leave(self, span: Metered, now: float) -> None:
        """Have the time from `now` on counted as whatever is around the span; it is closed already."""
        if self.top is not span:
            # It is further down: the span above finds it closed when it ends.
            return
        self._settle(now)
        self.top = self.first_open(span.below)

    def unwind(self, span: Metered, now: float) -> None:
        """Forget what was entered after `span`, which an exception leaves: it will not be left any more.

        A signal handler that raises right after the beginning of a block has it never end.
        """
        above = self.top
        for _ in range(_DEEPEST):
            if above is None:
                return
            if above is span:
                break
            above = above.below
        if self.top is not span:
            self._settle(now)
            self.top = span if not span.closed else self.first_open(span.below)

    @staticmethod
    def first_open(span: Metered | None) -> Metered | None:
        """Return `span`, or the first one below it that is not closed."""
        # A span that is entered twice may be below itself.
        for _ in range(_DEEPEST):
            if span is None or not span.closed:
                return span
            span = span.below
        return None

    def take(self, now: float, totals: Sequence[tuple[str, float]] | None = None) -> dict[str, float]:
        """Return each entry's seconds since the last call, as fields; `totals` are those of `now`, if already known."""
        # Another thread that is taking right now leaves nothing for this one; the next record will have it.
        if not self._taking.acquire(blocking=False):
            return {}
        try:
            fields = {}
            for entry, seconds in self.totals_at(now) if totals is None else totals:
                fresh = seconds - self._taken[entry]
                if fresh > 0.0:
                    self._taken[entry] = seconds
                    fields[self._fields[entry]] = fresh
            self.taken_at = now
            return fields
        finally:
            self._taking.release()

    def totals_at(self, now: float) -> list[tuple[str, float]]:
        """Return the seconds of each entry up to `now`, with those of the span that is open."""
        for _ in range(_TRIES):
            top, since = self.top, self.since
            current = top.times.bucket if top is not None and now > since else None
            totals = [
                (entry, bucket[0] + (now - since if bucket is current else 0.0))
                for entry, bucket in list(self.buckets.items())
            ]
            # Where the thread that trains has moved on meanwhile, its last seconds may be in there twice.
            if self.since is since:
                return totals
        return []

    def _settle(self, now: float) -> None:
        since, self.since = self.since, now
        if self.top is not None:
            self.top.times.bucket[0] += now - since
