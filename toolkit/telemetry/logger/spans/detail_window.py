"""When short spans, which are usually only added up, are written one by one, and which of the last still can be."""

from __future__ import annotations

from collections import deque
from typing import Final

from toolkit.telemetry.logger.records.step_gate import StepGate
from toolkit.telemetry.logger.spans.span import FoldedSpan, step_of
from toolkit.telemetry.logger.spans.totals import SpanTimes

_REMEMBERED: Final = 2_000
_MOST_AT_ONCE: Final = 2_000
_INCIDENTS_AT_ONCE: Final = 20
_INCIDENT_EVERY_S: Final = 60.0
"""Incidents are looked at closely each, until there are many: a loss that stays NaN would fill the disk."""


class DetailWindow:
    """Keeps the short spans of some steps: the first, the last, those around an incident, and on request.

    Inside a window `folding` is empty, so that the recorder makes each span; else it holds the names it need not make.
    """

    def __init__(self, gate: StepGate, folding: dict[str, SpanTimes], *, steps: int) -> None:
        self.why: str | None = None
        """Why short spans are written one by one now; None where they are not."""
        self.foldable: dict[str, SpanTimes] = {}
        """Names whose spans are only added up outside of a window."""
        self._unasked: dict[str, SpanTimes] = {}
        """Those of them that `folding` holds then."""
        self.has_incident = False
        self._gate = gate
        self._folding = folding
        self._steps = steps
        self._asked: str | None = None
        """Why the next spans are to be looked at closely; taken up by the thread that makes the next one."""
        self._steps_left = 0
        self._spans = 0
        self._seen_step = gate.last_step
        self._incidents = 0
        self._next_incident = 0.0
        self._last: deque[FoldedSpan] = deque(maxlen=_REMEMBERED)
        if steps:
            self.ask("start")

    def ask(self, why: str) -> None:
        """Have the short spans of the next steps written one by one."""
        self._asked = why
        # So that the recorder makes the next span.
        self._folding.clear()

    def add(self, name: str, times: SpanTimes, *, is_always_asked: bool) -> None:
        """Only add up spans of `name` outside of a window."""
        self.foldable[name] = times
        if not is_always_asked:
            self._unasked[name] = times
            if self.why is None and self._asked is None:
                self._folding[name] = times

    def count(self) -> None:
        """Count a span that is made; called by the thread that makes it."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self.why = asked
            self._steps_left = max(1, self._steps)
            self._spans = 0
            self._seen_step = self._gate.last_step
            self._folding.clear()
        elif self.why is not None:
            self._spans += 1
            step = self._gate.last_step
            if step != self._seen_step:
                self._seen_step = step
                self._steps_left -= 1
            if self._steps_left <= 0 or self._spans >= _MOST_AT_ONCE:
                self._end()

    def _end(self) -> None:
        self.why = None
        self._folding.update(self._unasked)
        if self._asked is not None:
            # Asked for by another thread just now.
            self._folding.clear()

    def remember(self, span: FoldedSpan) -> None:
        """Hold on to a span that was only added up, for a while."""
        self._last.append(span)

    def of_the_last_steps(self) -> list[FoldedSpan]:
        """Return the short spans of the last steps, as far as they are remembered, and forget them."""
        newest = max(map(step_of, self._last), default=0)
        wanted = [span for span in self._last if step_of(span) > newest - self._steps]
        self._last.clear()
        # Without steps it is not known which spans belong to the last ones.
        most = _MOST_AT_ONCE // 2 if newest > 0 else 20 * self._steps
        return wanted[-most:]

    def take_incident(self, now: float) -> bool:
        """Say whether there was an incident that is worth a closer look."""
        if not self.has_incident:
            return False
        self.has_incident = False
        if self._incidents >= _INCIDENTS_AT_ONCE and now < self._next_incident:
            return False
        self._incidents += 1
        self._next_incident = now + _INCIDENT_EVERY_S
        return True
