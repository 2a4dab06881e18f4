"""Takes the completions of one session and writes them: at once, as many as the options allow, and counts the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.run_context import RunContext
from toolkit.telemetry.logger.options.blocks import CompletionOptions
from toolkit.telemetry.logger.records.completions.budget import Budget, StepRange
from toolkit.telemetry.logger.records.completions.fitting import fit
from toolkit.telemetry.logger.records.completions.readable import readable
from toolkit.telemetry.logger.records.plain_values import PlainValues
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.runfolder.records import COMPLETION, COMPLETIONS_DROPPED

SCRIPT: Final = "script"
"""The source of what a script logs itself; what is collected from a trainer names another."""

_TEXTS: Final = ("prompt", "completion", "chosen", "rejected")
_LONGEST_HELD: Final = 64 * 1024


class CompletionRecorder:
    """The completions of one session. Safe to use from several threads.

    A completion that is written is safe from a kill when `put` returns, like any record. Those beyond the budget are
    counted; the newest of them are held, and written when the run ends within the range of steps that they are from.
    """

    def __init__(
        self,
        options: CompletionOptions,
        values: PlainValues,
        *,
        record_queue: RecordQueue,
        before_first: Callable[[], None],
        context: RunContext,
    ) -> None:
        self.options = options
        self._values = values
        self._record_queue = record_queue
        self._before_first = before_first
        self._wall = context.clock.wall
        self._elapsed = context.elapsed
        self._budget = Budget(options.interval)
        # A signal handler may log, too, while its own thread is in here.
        self._lock = threading.RLock()
        self._held: deque[_Held] = deque(maxlen=options.buffer)

    def put(self, step: Any, given: Mapping[str, Any], *, source: str = SCRIPT) -> None:
        """Take one completion: texts under `prompt`, `completion`, `chosen` and `rejected`, and any numbers."""
        if not self.options.enabled:
            return
        wall, elapsed = self._wall(), self._elapsed()
        self._before_first()
        with self._lock:
            steps, is_new = self._budget.range_of(source, step)
            if is_new:
                self._leave_earlier(source)
            is_within = steps.written < self.options.buffer
            steps.written += is_within
            steps.dropped += not is_within
        named = self._with_texts(step, given)
        if is_within:
            fields, pending = self._values.fields(named)
            self._record_queue.put(COMPLETION, wall, elapsed, fit(fields), pending)
            return
        # Of a structure nothing is taken from a device: what is never written would keep its place there for good.
        fields, _ = self._values.fields(self._values.tree(named))
        held = _Held(steps, wall, elapsed, _shortened(fields))
        with self._lock:
            self._held.append(held)
        if steps.dropped == 1:
            # At once, so that a kill does not hide that something is missing; how much is said in the end.
            self._report(steps)

    def close(self) -> None:
        """Write the newest that were held, and say how many are missing."""
        with self._lock:
            # A range that is long over is remembered by nothing else.
            ranges = [held.steps for held in self._held]
            while self._held:
                held = self._held.popleft()
                held.steps.dropped -= 1
                held.steps.written += 1
                self._record_queue.put(COMPLETION, held.wall, held.elapsed, fit(held.fields))
            for steps in (*ranges, *self._budget.unreported()):
                if steps.dropped != steps.said:
                    self._report(steps)

    def _with_texts(self, step: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a completion: its texts as texts, several rewards by their functions' names."""
        named = {"global_step": step, **given}
        for name in _TEXTS:
            if name in named:
                named[name] = readable(named[name], self._values.tree)
        if issubclass(type(named.get("reward")), Mapping):
            named["rewards"] = named.pop("reward")
        return named

    def _leave_earlier(self, source: str) -> None:
        """Drop what the source's earlier ranges hold, since those are the newest no more, and say how many."""
        kept = [held for held in self._held if held.steps.source != source]
        self._held.clear()
        self._held.extend(kept)
        for steps in self._budget.unreported():
            self._report(steps)

    def _report(self, steps: StepRange) -> None:
        steps.said = steps.dropped
        fields: dict[str, Any] = {
            "from_step": steps.first_step,
            "to_step": steps.last_step,
            "written": steps.written,
            "dropped": steps.dropped,
        }
        if steps.source != SCRIPT:
            fields["split"] = steps.source
        self._record_queue.put(COMPLETIONS_DROPPED, self._wall(), self._elapsed(), fields)


class _Held(NamedTuple):
    """A completion that waits whether it is among the last ones."""

    steps: StepRange
    wall: float
    elapsed: float
    fields: dict[str, Any]


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` fit for memory: a text that no record has room for is not held whole."""
    too_long = any(type(value) is str and len(value) > _LONGEST_HELD for value in fields.values())
    return fit(fields) if too_long else fields
