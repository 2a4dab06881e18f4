"""A loss or gradient norm that is NaN on some ranks while it is finite on the others."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.finding import ranks_as_evidence, ranks_in
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, Row, folded_into, name_of
from toolkit.telemetry.runfolder.records import STEP

_KIND: Final = "rank_nan"
_WATCHED: Final = (LOSS, GRAD_NORM)
_MOST_RANKS: Final = 1024
_MOST_SPANS: Final = 64
_MOST_QUESTIONS: Final = 16
"""Steps at which the ranks are compared at a time; the oldest is given up."""
_ROWS_TO_WAIT: Final = 50
"""Records of rank 0 after which ranks that have not written anything are not waited for."""


class RankNan:
    """Compares the ranks at each step at which one of them becomes NaN.

    The step record of another rank says whether it was finite there: at that step itself, or as one of the steps that
    were folded into a later record. If all ranks are NaN at the same step, that is the finding `nan`. An infinite
    gradient norm does not count: an fp16 loss scale at work gives one.

    The records of the ranks may come in any order.
    """

    signals: tuple[str, ...] = ("*",)
    all_ranks = True

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._ranks: dict[int, _Rank] = {}
        self._questions: deque[_Question] = deque(maxlen=_MOST_QUESTIONS)
        self._incident: Incident | None = None
        self._bad: dict[int, int] = {}
        """Ranks of the open incident that are still NaN, and how many finite records each has had since."""
        self._named: set[int] = set()

    def restart(self, step: int) -> None:
        """Start over: weights from before the NaN may have been loaded."""
        self._close(step)
        self._ranks = {}
        self._questions.clear()

    def take(self, row: Row) -> None:
        """Add a rank's step, and compare the ranks where one has become NaN."""
        number = row.rank
        if row.event != STEP:
            return
        rank = self._rank(number)
        if rank is None:
            return
        if row.step < rank.newest:
            # It went back and repeats these steps.
            rank.forget()
        is_bad = False
        for signal in _WATCHED:
            value = row.values.get(signal)
            if value is None:
                continue
            if value - value == 0.0 or (signal == GRAD_NORM and not math.isnan(value)):
                rank.add_finite(signal, row.step)
            else:
                is_bad = True
                if rank.add_bad(signal, row.step, folded_into(row.record)):
                    self._ask(signal, row)
        rank.newest = row.step
        for question in self._questions:
            self._answer(question, number, rank)
        if self._questions:
            self._judge(row)
        if self._incident is not None:
            self._follow(number, row, is_bad=is_bad)

    def _rank(self, number: int) -> _Rank | None:
        rank = self._ranks.get(number)
        if rank is None and len(self._ranks) < _MOST_RANKS:
            rank = self._ranks[number] = _Rank()
        return rank

    def _ask(self, signal: str, row: Row) -> None:
        if any(each.signal == signal and each.step == row.step for each in self._questions):
            return
        question = _Question(signal, row.step, name_of(signal, row.record), self._incidents.rows)
        self._questions.append(question)
        for number, rank in self._ranks.items():
            if number != row.rank:
                self._answer(question, number, rank)

    def _answer(self, question: _Question, number: int, rank: _Rank) -> None:
        """Note how one rank was at the step in question, once it has come to that step."""
        if rank.newest < question.step or number in question.answered:
            return
        question.answered.add(number)
        is_finite = rank.is_finite(question.signal, question.step)
        if is_finite is not None:
            (question.finite if is_finite else question.bad).add(number)
        elif question.signal in rank.spans:
            question.unknown.add(number)

    def _judge(self, row: Row) -> None:
        left: list[_Question] = []
        for question in self._questions:
            is_complete = self._is_complete(question)
            if question.bad and question.finite:
                self._report(question, row)
            elif is_complete and question.bad and not question.unknown:
                # All that log this metric are NaN: `nan` says so, unless rank 0 is not among them.
                if 0 not in question.bad:
                    self._report(question, row)
                elif self._incident is not None:
                    self._spread(self._incident, question)
            if not is_complete:
                left.append(question)
        if len(left) != len(self._questions):
            self._questions = deque(left, maxlen=_MOST_QUESTIONS)

    def _is_complete(self, question: _Question) -> bool:
        """Return whether no more answers come: perhaps not all ranks write records."""
        answers = len(question.answered)
        is_old = self._incidents.rows - question.asked_at > _ROWS_TO_WAIT
        return answers >= max(2, len(self._ranks), 0 if is_old else self._incidents.ranks)

    def _report(self, question: _Question, row: Row) -> None:
        incident = self._incident
        if question.reported is not None and question.bad <= question.named:
            # Another rank had come to this step; the incident may be over by now.
            incident = question.reported
        elif incident is None:
            incident = self._incident = self._incidents.open(
                _KIND, question.metric, start_step=question.step, noticed_step=max(row.step, question.step)
            )
            incident.variant = "alone"
            incident.evidence.pop("spread", None)
            # Those of before, if it is the same incident again.
            self._named = set(ranks_in(incident.evidence))
        if question.finite and incident.variant == "alone":
            incident.variant = ""
        new = question.bad - question.named
        if new:
            self._named |= new
            self._bad.update(dict.fromkeys(new, 0))
            incident.evidence.update(ranks_as_evidence(self._named))
        elif question.finite_then >= len(question.finite) and question.reported is not None:
            return
        question.reported, question.named = incident, set(question.bad)
        if question.step == incident.start_step:
            question.finite_then = len(question.finite)
            incident.evidence["finite_ranks"] = float(question.finite_then)
        self._incidents.mark_changed(incident)

    def _spread(self, incident: Incident, question: _Question) -> None:
        """Note that the others have become NaN, too: the finding says where it began."""
        if "spread" not in incident.evidence and question.step > incident.start_step:
            incident.evidence["spread"] = float(question.step)
            incident.variant = "spread"
            self._incidents.mark_changed(incident)

    def _follow(self, number: int, row: Row, *, is_bad: bool) -> None:
        incident = self._incident
        if incident is None or number not in self._bad:
            return
        if is_bad:
            self._bad[number] = 0
            incident.count += row.step != incident.end_step
            incident.end_step = max(incident.end_step, row.step)
            return
        if any(signal in row.values for signal in _WATCHED):
            self._bad[number] += 1
        if self._bad[number] >= at.FINITE_AGAIN:
            del self._bad[number]
            if not self._bad:
                self._close(row.step)

    def _close(self, step: int) -> None:
        if self._incident is not None:
            self._incidents.close(self._incident, resolved_step=step)
        self._incident = None
        self._bad = {}
        self._named = set()


@dataclass(slots=True)
class _Question:
    """Which ranks are NaN in one metric at one step."""

    signal: str
    step: int
    metric: str
    asked_at: int
    """Records of rank 0 read by then."""
    answered: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    finite: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    finite_then: int = 0
    """Ranks with a finite value that the finding mentions."""
    reported: Incident | None = None
    named: set[int] = field(default_factory=set)
    """Ranks with NaN that were reported."""


class _Rank:
    """What is known of the steps of one rank, by signal."""

    __slots__ = ("_first", "newest", "spans")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.newest: float = -math.inf
        self._first: dict[str, int] = {}
        self.spans: dict[str, deque[_Span]] = {}
        """Steps with NaN, for each signal that it logs."""

    def add_finite(self, signal: str, step: int) -> None:
        spans = self._spans(signal, step)
        if spans and spans[-1].is_open:
            spans[-1].is_open = False

    def add_bad(self, signal: str, step: int, folded: int) -> bool:
        """Add a step with NaN; return whether it is the first in a row."""
        spans = self._spans(signal, step)
        if spans and spans[-1].is_open:
            spans[-1].last = step
            return False
        # Steps that no record describes lie between the record before and those folded into this one.
        spans.append(_Span(unknown_from=self.newest + 1, first=step, seen_from=step - folded, last=step))
        return True

    def is_finite(self, signal: str, step: int) -> bool | None:
        """Return whether it was finite at a step that it has passed; None if its records do not say."""
        if step < self._first.get(signal, step + 1):
            return None
        for span in reversed(self.spans[signal]):
            if span.first <= step <= span.last:
                return False
            if span.unknown_from <= step < span.seen_from:
                return None
        return True

    def _spans(self, signal: str, step: int) -> deque[_Span]:
        if signal not in self.spans:
            self._first[signal] = step
            self.spans[signal] = deque(maxlen=_MOST_SPANS)
        return self.spans[signal]


@dataclass(slots=True)
class _Span:
    """Records with NaN in a row."""

    unknown_from: float
    seen_from: int
    first: int
    last: int
    is_open: bool = True
