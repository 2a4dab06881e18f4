"""How long steps take: worked out from when they are logged, and what else was done and logged between them."""

from __future__ import annotations

from typing import Any, Final

from toolkit.telemetry.logger.records.plain_values import is_finite_number
from toolkit.telemetry.logger.records.step_gate import NEVER, StepGate
from toolkit.telemetry.logger.spans.totals import SpanTotals

Point = tuple[int, float, float, float, float]
"""A time between two steps: the last step, and as of then the seconds of the session, those that were not spent on
steps, those that were spent on steps (0 where nothing times them), and the samples that were missing."""
Marks = tuple[tuple[Point, bool], ...]
"""Where other records were logged between two steps, and whether each is known to belong to the earlier one."""
Window = tuple[Point, Point, Marks]
"""What a speed is worked out from: where it begins, where it ends, and what was logged before its last step."""

NO_POINT: Final = (-NEVER, 0.0, 0.0, 0.0, 0.0)
_MOST_MARKS: Final = 16
_CALL_S: Final = 1e-3
"""Two calls that are closer together than this have no iteration between them."""
_ALIKE: Final = 3.0
"""A step that takes this many times as long as one before, or as short, has something else in it."""


class StepSpeed:
    """Measures the steps between two records, each from where the last measurement ended."""

    def __init__(self, gate: StepGate, times: SpanTotals) -> None:
        self.samples_per_step: float | None = None
        """Samples that one step trains on, where the start record says so."""
        self.samples_fewer = 0.0
        """How many samples fewer than that the steps of this session have had together."""
        self._gate = gate
        self._times = times
        self.begin: Point = NO_POINT
        self.marks: Marks = ()
        self._usual: float | None = None
        self.reported_s = 0.0
        """Seconds that were spent between steps, in no span, as the caller says."""

    def count_samples(self, share: Any) -> None:
        """Set which share of its usual samples the current step has."""
        if self.samples_per_step is not None and is_finite_number(share) and share >= 0:
            self.samples_fewer += self.samples_per_step * (1.0 - share)

    def leave_out(self, seconds: float) -> None:
        """Count seconds that have just passed as no step's."""
        if self._times.is_of_training_thread():
            self.reported_s += seconds

    def measure(self, step: int, elapsed: float, *, due: bool) -> Window:
        """Return the window up to a step that may be written later, and begin the next one if it is due."""
        window = (self.begin, self._point(step, elapsed), self.marks)
        # What came between two steps without a record is left out with the steps before.
        if step != self.begin[0] and (due or self.marks):
            self.begin, self.marks = window[1], ()
        return window

    def add_to(self, record: dict[str, Any], window: Window) -> None:
        """Say how fast the steps of a window were, unless the caller did: what else was done is the ledger's."""
        begin, end, marks = window
        steps = end[0] - begin[0]
        if begin[0] < 0 or steps <= 0 or "sec_per_step" in record:
            return
        if not marks:
            self._usual = seconds = _seconds_a_step(begin, end)
        elif end[3] > begin[3]:
            # Spans say which seconds were the steps'; those between them belong to what was logged there.
            seconds = (end[3] - begin[3]) / steps
        else:
            found = _begin_of_steps(window, self._usual)
            if found is None:
                self._usual = None
                return
            begin, steps = found, max(1, end[0] - found[0])
            seconds = _seconds_a_step(found, end)
        record["sec_per_step"] = seconds
        if self.samples_per_step is not None and seconds > 0 and "samples_per_sec" not in record:
            record["samples_per_sec"] = (self.samples_per_step - (end[4] - begin[4]) / steps) / seconds

    def note_other_record(self, elapsed: float, step: Any, seconds: float | None) -> None:
        """Take note of a record that belongs to `step`: what it took, `seconds` if that is known, is no step's."""
        times, gate = self._times, self._gate
        if not times.is_of_training_thread():
            return
        if seconds is not None and not times.times_checkpoints:
            self.reported_s += min(seconds, elapsed - self.begin[1])
            return
        is_over = type(step) is not int or step <= gate.last_step
        mark = (self._point(gate.last_step, elapsed), is_over)
        self.marks = (*self.marks[: _MOST_MARKS - 1], mark)
        # So that the time of the next step is known.
        gate.due_at = -NEVER

    def _point(self, step: int, elapsed: float) -> Point:
        away, at_steps = self._times.away_at(elapsed)
        return step, elapsed, away + self.reported_s, at_steps, self.samples_fewer


def _seconds(begin: Point, end: Point) -> float:
    return (end[1] - begin[1]) - (end[2] - begin[2])


def _seconds_a_step(begin: Point, end: Point) -> float:
    seconds = _seconds(begin, end)
    # Steps may be inside something that is not training, and was perhaps never ended.
    return (seconds if seconds > 0.0 else end[1] - begin[1]) / max(1, end[0] - begin[0])


def _begin_of_steps(window: Window, usual: float | None) -> Point | None:
    """Return where the steps of a window began in which other records were logged; None where nothing tells.

    What such a record is about was done before it, perhaps after the iteration whose step it is logged ahead of.
    """
    begin, end, marks = window
    found = begin
    for point, is_over in marks:
        if is_over and _seconds(point, end) >= _CALL_S:
            found = point
    if usual is None:
        return found
    for point in (found, begin, *(point for point, _ in marks)):
        if usual / _ALIKE <= _seconds_a_step(point, end) <= usual * _ALIKE:
            return point
    return None
