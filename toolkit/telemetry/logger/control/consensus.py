"""All ranks of a run take an action at the same step, or none of them does.

Rank 0 proposes a step that all ranks have still ahead of them. Each other rank first makes sure that its own loop will
look at that step, then acknowledges. Rank 0 commits once all have acknowledged. The decision is in one key of the
process group's key-value store that can be written once: a rank that reaches the step and finds nothing there writes an
abort, and a rank that reads a commit knows that every rank will read the same. No collective is involved, and rank 0
never waits, so that the training's own collectives can never deadlock.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import Store

MAX_ATTEMPTS: Final = 6
"""Proposals for one action, each with twice the lead of the one before, until it is given up."""

_NEVER = sys.maxsize
_COMMIT = "commit"
_LOOK_EVERY_S = 0.01

# How many steps ahead a proposal lies, whatever the time a step is said to take.
_MIN_LEAD, _UNKNOWN_LEAD, _MAX_LEAD = 5.0, 100.0, 1e6


class StepConsensus:
    """One rank's share in agreeing on steps.

    `due` belongs to the training thread, which calls it for every step it logs; `propose` and `poll` to a background
    thread, which calls `poll` every few seconds on every rank. `prefix` is the same on all ranks and has not been used
    in this store before. `lead_s` is how far ahead the first proposal lies: time for each rank to poll once or twice.
    `wait_s` bounds how long a rank other than 0 that comes first to the step waits there for the decision.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        clock: Clock,
        prefix: str,
        guard: Guard | None = None,
        lead_s: float = 4.0,
        wait_s: float = 5.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be 0 to {world_size - 1}, got {rank}")
        self._store = store
        self._rank = rank
        self._others = range(1, world_size)
        self._clock = clock
        self._prefix = prefix
        self._guard = guard or Guard()
        self._lead_s = lead_s
        self._wait_s = wait_s
        self._pause = pause

        # Written by the training thread, read by the other one.
        self._step: int | None = None
        self._previous: int | None = None
        # The other way round: the step at which the training thread has something to find out.
        self._due_at = _NEVER

        self._lock = threading.RLock()
        self._armed: _Proposal | None = None
        self._number = 0
        self._wanted: list[str] = []
        self._sec_per_step = 0.0
        self._attempt = 0
        self._given_up: list[tuple[str, str]] = []
        self._taken: _Proposal | None = None
        self._closed = False

    # ------------------------------------------------------------ the training thread

    def due(self, step: int) -> tuple[str, ...]:
        """Return the actions that every rank takes at `step`; nearly always none, at the price of two comparisons.

        At an agreed step it may ask the store, and on ranks other than 0 wait up to `wait_s` for rank 0. Never raises.
        """
        # The order matters: `_arm` writes `_due_at` and then reads `_step`, so one of the two sees the other.
        if step != self._step:
            self._previous = self._step
            self._step = step
        if step < self._due_at:
            return ()
        return self._reach(step)

    # ------------------------------------------------------------ the background thread

    def propose(self, action: str, sec_per_step: float | None) -> None:
        """Ask all ranks, as rank 0, to take `action`: any text that the ranks understand. Comes back out of `due`."""
        if self._rank != 0:
            raise ValueError(f"only rank 0 proposes, and this is rank {self._rank}")
        with self._lock:
            self._sec_per_step = sec_per_step or 0.0
            if action not in self._wanted and not self._closed:
                self._wanted.append(action)

    def poll(self) -> None:
        """Take the next move of this rank. Raises what the store raises; the next call continues from there."""
        if self._closed:
            return
        if self._rank == 0:
            self._lead()
        else:
            self._follow()

    def take_given_up(self) -> list[tuple[str, str]]:
        """Return the actions that the ranks could not agree on, each with the reason, once."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return given_up

    def close(self, timeout_s: float = 2.0) -> None:
        """Take part in nothing more; what is not decided is called off. Never raises.

        The store often lives in the process of rank 0, which therefore stays up to `timeout_s` until all other ranks
        have read what it committed last.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            proposal = self._armed
            self._disarm()
        with self._guard.catch("ending the agreement between ranks"):
            if proposal is not None and proposal.verdict is None:
                self._decide(proposal, f"rank {self._rank} ended")
            if self._taken is not None:
                deadline = self._clock.monotonic() + timeout_s
                while not self._all_have("known", self._taken) and self._clock.monotonic() < deadline:
                    self._pause(_LOOK_EVERY_S)

    # ------------------------------------------------------------ rank 0

    def _lead(self) -> None:
        proposal = self._armed
        if proposal is not None:
            verdict = proposal.verdict or self._read_verdict(proposal)
            if verdict is None and self._all_have("ack", proposal):
                verdict = self._decide(proposal, _COMMIT)
            if verdict is None or verdict == _COMMIT:
                proposal.verdict = verdict
                return
            self._finish(proposal, verdict)
        self._propose_next()

    def _propose_next(self) -> None:
        gap = self._gap()
        with self._lock:
            actions = tuple(self._wanted)
        if not actions or gap is None or self._step is None:
            return
        steps = self._lead_s / self._sec_per_step if self._sec_per_step > 0 else _UNKNOWN_LEAD
        steps = min(max(steps, _MIN_LEAD), _MAX_LEAD) * 2**self._attempt
        # On the steps that are really logged, and at least two of those ahead.
        ahead = gap * max(2, math.ceil(steps / gap))
        self._number += 1
        proposal = _Proposal(number=self._number, step=self._step + ahead, gap=gap, actions=actions)
        # Armed first, so that rank 0 cannot pass a step that others already count on.
        if self._arm(proposal):
            self._store.set(self._key("proposal"), proposal.encode())

    def _all_have(self, said: str, proposal: _Proposal) -> bool:
        keys = [self._key(said, proposal.number, rank) for rank in self._others]
        return not keys or self._store.check(keys)

    # ------------------------------------------------------------ the other ranks

    def _follow(self) -> None:
        proposal = self._armed
        if proposal is not None:
            self._say("ack", proposal)
            verdict = proposal.verdict or self._read_verdict(proposal)
            if verdict is None or verdict == _COMMIT:
                proposal.verdict = verdict
                if verdict is not None:
                    self._say("known", proposal)
                return
            self._finish(proposal, verdict)
        proposal = self._newest_proposal()
        if proposal is None or proposal.number <= self._number:
            return
        if self._read_verdict(proposal) is None:
            gap = self._gap()
            if (
                gap is None or self._step is None
            ):  # this loop has not shown its steps yet: look again next time
                return
            if gap != proposal.gap or (proposal.step - self._step) % gap:
                self._decide(proposal, f"rank {self._rank} logs other steps than rank 0")
            elif not self._arm(proposal):
                self._decide(proposal, f"rank {self._rank} had passed the step already")
            else:
                self._number = proposal.number
                self._say("ack", proposal)
        self._number = proposal.number

    def _say(self, what: str, proposal: _Proposal) -> None:
        if what not in proposal.said:
            self._store.set(self._key(what, proposal.number, self._rank), "1")
            proposal.said.add(what)

    def _newest_proposal(self) -> _Proposal | None:
        key = self._key("proposal")
        return _Proposal.decode(self._store.get(key)) if self._store.check([key]) else None

    # ------------------------------------------------------------ both

    def _gap(self) -> int | None:
        """Return how far apart the last two logged steps were; None where there are not two yet."""
        step, previous = self._step, self._previous
        if step is None or previous is None:
            return None
        # The training thread may have moved on between the two reads; the next poll sees a pair that belongs together.
        return step - previous if step > previous else None

    def _arm(self, proposal: _Proposal) -> bool:
        """Make the training thread look at the step of `proposal`; False where it may have passed it already."""
        with self._lock:
            self._armed = proposal
            self._due_at = proposal.step
        if self._step is None or self._step < proposal.step:
            return True
        with self._lock:
            if self._armed is proposal:
                self._disarm()
        return False

    def _disarm(self) -> None:
        self._due_at = _NEVER
        self._armed = None

    def _reach(self, step: int) -> tuple[str, ...]:
        proposal = self._armed
        if proposal is None:  # called off just now
            return ()
        verdict = "the store did not answer"
        with self._guard.catch("agreeing with the other ranks"):
            verdict = proposal.verdict or self._verdict_at(step, proposal)
        self._finish(proposal, verdict)
        if verdict != _COMMIT:
            return ()
        if self._rank != 0:
            with self._guard.catch("telling rank 0 that its commit was read"):
                self._say("known", proposal)
        return proposal.actions

    def _verdict_at(self, step: int, proposal: _Proposal) -> str:
        """Return what holds for `proposal`, deciding it if no rank has."""
        if step != proposal.step:
            return self._decide(proposal, f"rank {self._rank} went from step {self._previous} to {step}")
        if self._rank == 0:
            ready = self._all_have("ack", proposal)
            return self._decide(proposal, _COMMIT if ready else "not every rank answered in time")
        deadline = self._clock.monotonic() + self._wait_s
        while (verdict := self._read_verdict(proposal)) is None:
            if self._clock.monotonic() >= deadline:
                return self._decide(proposal, f"rank {self._rank} was at the step long before rank 0")
            self._pause(_LOOK_EVERY_S)
        return verdict

    def _decide(self, proposal: _Proposal, verdict: str) -> str:
        """Write `verdict` unless there is one; return the valid one, which never changes again."""
        return self._store.compare_set(self._key("verdict", proposal.number), "", verdict).decode()

    def _read_verdict(self, proposal: _Proposal) -> str | None:
        key = self._key("verdict", proposal.number)
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _finish(self, proposal: _Proposal, verdict: str) -> None:
        with self._lock:
            if self._armed is not proposal:
                return
            self._disarm()
            if self._rank != 0:
                return
            self._attempt += 1
            if verdict != _COMMIT and self._attempt < MAX_ATTEMPTS:
                return
            self._attempt = 0
            self._wanted = [action for action in self._wanted if action not in proposal.actions]
            if verdict == _COMMIT:
                self._taken = proposal
            else:
                self._given_up.extend((action, verdict) for action in proposal.actions)

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, (self._prefix, *parts)))


@dataclass(slots=True, kw_only=True, eq=False)
class _Proposal:
    """Actions to be taken at a step, and what this rank knows of it."""

    number: int
    step: int
    gap: int
    actions: tuple[str, ...]
    verdict: str | None = None
    said: set[str] = field(default_factory=set)
    """What this rank reported to rank 0: "ack", that its loop will look at the step; "known", that it read a commit."""

    def encode(self) -> str:
        return json.dumps([self.number, self.step, self.gap, self.actions])

    @staticmethod
    def decode(data: bytes) -> _Proposal:
        number, step, gap, actions = json.loads(data)
        return _Proposal(number=number, step=step, gap=gap, actions=tuple(actions))
