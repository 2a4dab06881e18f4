"""Counts the seconds inside spans since the last boundary, each second in the innermost span only."""

from __future__ import annotations

from typing import Final

from toolkit.timing.segments import SLOTS

_MOST_INTERVALS: Final = 1_000
_MOST_OPEN: Final = 1_000


class SpanCover:
    """Finished spans since the last boundary, and open ones; an inner span is recorded first and keeps its seconds."""

    __slots__ = ("_intervals", "_open", "_since", "seconds")

    def __init__(self) -> None:
        self.seconds = [0.0] * SLOTS
        """By slot, in finished spans since the last boundary."""
        self._since = 0.0
        self._intervals: list[tuple[float, float]] = []
        self._open: dict[str, tuple[float, int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no span with an entry has ended since the last boundary."""
        return not self._intervals

    def start_at(self, at: float) -> None:
        """Start over at `at`; what is open stays open."""
        if self._intervals:
            self.seconds = [0.0] * SLOTS
            self._intervals = []
        self._since = at

    def opens(self, span_id: str, begin: float, slot: int) -> None:
        """Note an open span."""
        if len(self._open) < _MOST_OPEN:
            self._open[span_id] = (begin, slot)

    def is_open(self, span_id: str) -> bool:
        """Return whether a span is open."""
        return span_id in self._open

    def closes(self, span_id: str) -> None:
        """Note that a span has ended."""
        self._open.pop(span_id, None)

    def add(self, begin: float, end: float, slot: int) -> None:
        """Count the seconds from `begin` to `end` that are in no span yet as `slot`."""
        begin = max(begin, self._since)
        if end <= begin:
            return
        low, high, covered = begin, end, 0.0
        later: list[tuple[float, float]] = []
        while self._intervals and self._intervals[-1][1] > begin:
            first, last = self._intervals.pop()
            if first >= end:
                later.append((first, last))
                continue
            covered += min(last, end) - max(first, begin)
            low, high = min(low, first), max(high, last)
        self._intervals.append((low, high))
        self._intervals.extend(reversed(later))
        del self._intervals[:-_MOST_INTERVALS]
        self.seconds[slot] += max(0.0, end - begin - covered)

    def with_open(self, at: float) -> list[float]:
        """Return `seconds` as if all open spans had ended at `at`, without changing anything."""
        if not self._open:
            return list(self.seconds)
        trial = SpanCover()
        trial._since = self._since
        trial.seconds = list(self.seconds)
        trial._intervals = list(self._intervals)
        # The one that began last is the innermost.
        for begin, slot in sorted(self._open.values(), reverse=True):
            trial.add(begin, at, slot)
        return trial.seconds
