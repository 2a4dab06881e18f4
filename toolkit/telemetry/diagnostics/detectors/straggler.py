"""One rank that the others wait for, and the part of the step in which it is slow."""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import DATA_TIME, STEP_TIME, Row, Shape, name_of
from toolkit.telemetry.runfolder.records import STEP, Record

_KIND: Final = "straggler"
_MOST_RANKS: Final = 1024
"""Ranks that are compared."""
_MOST_LOOKS_BEHIND: Final = 20
"""How many looks rank 0 may be ahead of a rank before the others are compared without it."""
_LOOKS_WITHOUT_A_WORD: Final = 5
"""The same for a rank that has not written anything: its folder may be another one."""

_HOST: Final = "time/"
_DEVICE: Final = "device_time/"
_SAVE: Final = "checkpoint_save_sync"
_MOST_SHAPES: Final = 256


class Times(NamedTuple):
    """Seconds of one step of one rank, by part; those before a sum of them in the order in which they come.

    A step begins after the exchange of gradients, in which the ranks waited for each other: with the optimizer's
    update, then the data, the forward pass, and the backward pass with the next exchange.
    """

    step: float
    optimizer: float
    data: float
    forward: float
    backward: float
    """Includes the wait for the other ranks if they exchange gradients in it."""
    upto_data: float
    upto_forward: float
    upto_backward: float
    rest: float
    """Outside of all parts."""


_AHEAD: Final = ("optimizer", "upto_data", "upto_forward", "upto_backward", "step")
"""A rank that is slow is behind the others in one of these sums; from the exchange on they are equal again."""
_PARTS: Final = ("data", "forward", "backward", "optimizer")
_OF_TWO: Final = tuple(name for name in _AHEAD if name != "upto_backward")
_PARTS_OF_TWO: Final = tuple(name for name in _PARTS if name != "backward")
_SPAN_OF: Final = {
    "data": "data_loading",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer_update",
}


class Straggler:
    """Reports a rank that is slower than the others, if their records are available.

    Ranks that exchange gradients wait for each other and have equal step times. So the parts of a step are compared:
    the slow rank is behind the others before the exchange, and waits the least in it. Ranks that do not wait differ in
    the step time itself.

    The records of the ranks may come in any order: each look waits until all ranks have come to the same step.
    """

    signals: tuple[str, ...] = (STEP_TIME,)
    all_ranks = True

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._ranks: dict[int, _Rank] = {}
        self._looks: deque[tuple[int, int]] = deque()
        """Steps of rank 0 at which the ranks are to be compared, and how many records it had by then."""
        self._reached: set[int] = set()
        """Ranks that have reached the first of these steps."""
        self._since_look = 0
        self._fields: dict[Shape, _Fields] = {}
        self._expects_all = True
        """Whether ranks that have not written anything are waited for."""

    def restart(self, step: int) -> None:
        """Start over: ranks may run elsewhere now."""
        for rank in self._ranks.values():
            for incident in (rank.incident, rank.saving):
                if incident is not None:
                    self._incidents.close(incident, resolved_step=step)
        self._ranks = {}
        self._looks.clear()
        self._reached.clear()
        self._since_look = 0
        self._expects_all = True

    def take(self, row: Row) -> None:
        """Add a rank's step, and compare the ranks if all have reached it."""
        number = row.rank
        seconds = row.values[STEP_TIME]
        if row.event != STEP or not 0.0 < seconds < math.inf:
            return
        rank = self._ranks.get(number)
        if rank is None:
            if len(self._ranks) >= _MOST_RANKS:
                return
            rank = self._ranks[number] = _Rank(number)
        fields = self._fields.get(row.shape)
        if fields is None:
            fields = _Fields(row.record)
            if len(self._fields) < _MOST_SHAPES:
                self._fields[row.shape] = fields
        if not rank.add(row, fields, seconds):
            return
        if fields.saves:
            rank.saves.append((row.step, _seconds(row.record, fields.saves, 1)))
        if not number:
            self._since_look += 1
            if self._since_look == at.RANK_CHECK_EVERY:
                self._since_look = 0
                self._looks.append((row.step, self._incidents.rows))
                if len(self._looks) == 1:
                    self._reached = self._ranks_at(row.step)
        if self._looks and row.step >= self._looks[0][0]:
            self._reached.add(number)
            self._compare_where_all_are(row)

    def _compare_where_all_are(self, row: Row) -> None:
        while self._looks:
            waiting = len(self._looks)
            self._expects_all = self._expects_all and waiting <= _LOOKS_WITHOUT_A_WORD
            expected = max(2, len(self._ranks), self._incidents.ranks if self._expects_all else 0)
            if len(self._reached) < expected and waiting <= _MOST_LOOKS_BEHIND:
                return
            step, rows = self._looks.popleft()
            there = [self._ranks[number] for number in sorted(self._reached)]
            for rank in there:
                rank.go_to(step)
            known = [rank for rank in there if len(rank.window) >= at.RANK_WINDOW]
            self._compare(known, _Check(step, rows, name_of(STEP_TIME, row.record)))
            self._reached = self._ranks_at(self._looks[0][0]) if self._looks else set()

    def _ranks_at(self, step: int) -> set[int]:
        return {number for number, rank in self._ranks.items() if rank.newest >= step}

    def _compare(self, ranks: list[_Rank], check: _Check) -> None:
        if len(ranks) < 2:
            return
        usual = [rank.medians() for rank in ranks]
        ordered = [sorted(column) for column in zip(*usual, strict=True)]
        slow_pass = _slower_pass(ranks)
        for rank, mine in zip(ranks, usual, strict=True):
            others = Times._make(map(_median_without, ordered, mine))
            in_pass = slow_pass.get(rank.number, 1.0)
            self._judge(rank, mine, others, in_pass, check, is_pair=len(ranks) == 2)
            if rank.saves and rank.saves[-1][0] != rank.judged_save:
                rank.judged_save = rank.saves[-1][0]
                self._judge_saves(rank, ranks, mine.step, check)

    def _judge(
        self, rank: _Rank, mine: Times, others: Times, in_pass: float, check: _Check, *, is_pair: bool
    ) -> None:
        behind, sum_of, part = _how_much_later(mine, others, is_pair=is_pair)
        # The step would be that much shorter if this rank were like the others.
        ratio = mine.step / max(mine.step - behind, 0.001 * mine.step)
        if ratio <= at.SLOW_RANK and in_pass >= at.SLOW_PASS:
            sum_of = part = "forward"
            behind = mine.forward - others.forward
        if rank.incident is not None:
            # The latest steps say sooner that it is over.
            is_slow = in_pass >= at.SLOW_PASS_OVER and mine.forward >= at.SLOW_PASS_OVER * others.forward
            if ratio < at.SLOW_RANK_OVER and not is_slow:
                self._incidents.close(rank.incident, resolved_step=check.step, at_row=check.rows)
                rank.incident = None
            else:
                rank.incident.grow(check.step, at.RANK_CHECK_EVERY)
            return
        usual: float = getattr(others, sum_of)
        is_slow = ratio > at.SLOW_RANK or in_pass >= at.SLOW_PASS
        if not is_slow or not rank.is_mostly_above(usual, sum_of):
            rank.slow_looks = 0
        else:
            if not rank.slow_looks:
                rank.slow_since = rank.first_above(usual + 0.5 * behind, sum_of)
            rank.slow_looks += 1
        if rank.slow_looks == at.RANK_LOOKS:
            rank.slow_looks = 0
            metric = _HOST + _SPAN_OF[part] if part in _SPAN_OF else check.step_time
            seconds = getattr(mine, part), getattr(others, part)
            count = at.RANK_LOOKS * at.RANK_CHECK_EVERY
            rank.incident = self._open(
                rank, metric, check, rank.slow_since, count, seconds, ratio=round(ratio, 2)
            )
            rank.incident.variant = {"step": "", "data": "data", "rest": "rest"}.get(part, "compute")

    def _open(
        self,
        rank: _Rank,
        metric: str,
        check: _Check,
        start_step: int,
        count: int,
        seconds: tuple[float, float],
        **evidence: float,
    ) -> Incident:
        """Open an incident of a rank; `seconds` are its own and those of the others."""
        mine, others = seconds
        return self._incidents.open(
            _KIND,
            metric,
            start_step=start_step,
            noticed_step=check.step,
            count=count,
            which=rank.number,
            at_row=check.rows,
            rank=float(rank.number),
            **evidence,
            seconds=float(f"{mine:.3g}"),
            others=float(f"{others:.3g}"),
        )

    def _judge_saves(self, rank: _Rank, ranks: list[_Rank], step_s: float, check: _Check) -> None:
        """Report a rank whose checkpoints take longer than those that the others save after the same steps."""
        theirs = [dict(other.saves) for other in ranks if other is not rank]
        known = []
        for at_step, seconds in rank.saves:
            others = sorted(each[at_step] for each in theirs if at_step in each)
            if at_step <= check.step and len(others) >= 2:
                known.append((at_step, seconds, others[len(others) // 2]))
        slow = [seconds >= at.SLOW_SAVE * usual for _, seconds, usual in known]
        if rank.saving is not None:
            if slow and not slow[-1]:
                self._incidents.close(rank.saving, resolved_step=check.step, at_row=check.rows)
                rank.saving = None
            return
        newest = known[-at.RANK_LOOKS :]
        if len(newest) < at.RANK_LOOKS or not all(slow[-at.RANK_LOOKS :]):
            return
        # Rank 0 often has more to save, and from the start.
        if not rank.number and all(slow):
            return
        waited = min(mine - others for _, mine, others in newest)
        if waited < at.SLOW_SAVE_SHARE * step_s * (newest[-1][0] - newest[-2][0]):
            return
        rank.saving = self._open(rank, _HOST + _SAVE, check, newest[0][0], at.RANK_LOOKS, newest[-1][1:])
        rank.saving.variant = "saving"


def _how_much_later(mine: Times, others: Times, *, is_pair: bool) -> tuple[float, str, str]:
    """Return by how many seconds a step the others wait for this rank, which sum says so, and the slow part."""
    more = dict(zip(Times._fields, map(operator.sub, mine, others), strict=True))
    # Of two ranks, the one with the longer backward pass usually waits in it; of more, the odd one out is the slow one.
    sums, parts = (_OF_TWO, _PARTS_OF_TWO) if is_pair else (_AHEAD, _PARTS)
    sum_of = max(sums, key=more.__getitem__)
    part = max(parts, key=more.__getitem__)
    behind = more[sum_of]
    if more[part] < 0.5 * behind:
        part = "step"
    # Outside of all parts it may work or wait: it works where the others wait for it in the exchange.
    if more["rest"] > behind and -more["backward"] > 0.5 * more["rest"]:
        return more["rest"], "rest", "rest"
    return behind, sum_of, part


def _slower_pass(ranks: list[_Rank]) -> dict[int, float]:
    """Return the one rank whose forward pass is slower than those of the others, and how many times as long it takes.

    The others wait in the backward pass, which hides how slow that is on it: so a forward pass that is a little slower
    may be a tenth of the whole step. It has to be the only one, and the others have to wait for it.
    """
    for count, least in ((at.RANK_WINDOW, at.MUCH_SLOWER_PASS), (at.STEADY_WINDOW, at.SLOW_PASS_OVER)):
        if len(ranks) < 3 or min(len(rank.window) for rank in ranks) < count:
            return {}
        passes = [rank.median("forward", count) for rank in ranks]
        ordered = sorted(passes)
        slowest, usual = ordered[-1], ordered[(len(ordered) - 1) // 2]
        more, rank = slowest - usual, ranks[passes.index(slowest)]
        if slowest < least * usual or usual <= 0.0 or slowest - ordered[-2] < 0.5 * more:
            continue
        behind, waits = (
            rank.median(name, count)
            - sorted(each.median(name, count) for each in ranks if each is not rank)[len(ranks) // 2 - 1]
            for name in ("upto_forward", "backward")
        )
        if (
            behind >= 0.5 * more
            and -waits >= 0.3 * more
            and more >= at.SLOW_PASS_SHARE * rank.median("step", count)
        ):
            return {rank.number: slowest / usual}
    return {}


def _median_without(ordered: list[float], one: float) -> float:
    """Return the median of sorted numbers without `one` of them."""
    without = bisect_left(ordered, one)
    left = len(ordered) - 1
    low, high = (left - 1) // 2, left // 2
    return 0.5 * (ordered[low + (low >= without)] + ordered[high + (high >= without)])


class _Check(NamedTuple):
    """One comparison of the ranks: the step, the records of rank 0 by then, and what the time of a step is called."""

    step: int
    rows: int
    step_time: str


class _Rank:
    """The latest steps of one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.newest: float = -math.inf
        self.window: deque[tuple[int, Times]] = deque(maxlen=at.STEADY_WINDOW)
        self.slow_looks = 0
        self.slow_since = 0
        self.incident: Incident | None = None
        self.saving: Incident | None = None
        self.saves: deque[tuple[int, float]] = deque(maxlen=2 * at.RANK_LOOKS + 2)
        """Steps after which it saved a checkpoint, and how many seconds each took."""
        self.judged_save = 0
        self._ahead: deque[tuple[int, Times]] = deque()
        """Steps after the next look."""

    def add(self, row: Row, fields: _Fields, seconds: float) -> bool:
        """Take a step; return False for the first, whose duration is unknown."""
        before, self.newest = self.newest, row.step
        if not before < row.step:
            # It went back and repeats these steps.
            self.window.clear()
            self._ahead.clear()
        if not -math.inf < before < row.step:
            return False
        self._ahead.append((row.step, _times_of(row, fields, seconds, row.step - int(before))))
        if len(self._ahead) > at.RANK_CHECK_EVERY * (_MOST_LOOKS_BEHIND + 1):
            self._ahead.popleft()
        return True

    def go_to(self, step: int) -> None:
        """Move the steps up to `step` into the window."""
        while self._ahead and self._ahead[0][0] <= step:
            self.window.append(self._ahead.popleft())

    def medians(self) -> Times:
        """Return the medians of the latest steps by part."""
        half = at.RANK_WINDOW // 2
        newest = itertools.islice(reversed(self.window), at.RANK_WINDOW)
        columns = (sorted(column) for column in zip(*(times for _, times in newest), strict=True))
        return Times._make(0.5 * (column[half - 1] + column[half]) for column in columns)

    def median(self, name: str, count: int) -> float:
        """Return the median of one part or sum in the `count` latest steps."""
        newest = itertools.islice(reversed(self.window), count)
        seconds: float = sorted(getattr(times, name) for _, times in newest)[count // 2]
        return seconds

    def is_mostly_above(self, seconds: float, name: str) -> bool:
        """Return whether three of four of the newest steps take longer, in this part or sum: a few are chance."""
        newest: list[float] = [getattr(times, name) for _, times in self.window][-at.RANK_CHECK_EVERY :]
        return 4 * sum(each > seconds for each in newest) >= 3 * len(newest)

    def first_above(self, seconds: float, name: str) -> int:
        """Return the step from which on most take longer than that."""
        above = 0
        first = self.window[-1][0]
        newest = itertools.islice(reversed(self.window), at.RANK_WINDOW)
        for count, (step, times) in enumerate(newest, start=1):
            is_above = getattr(times, name) > seconds
            above += is_above
            if is_above and 4 * above >= 3 * count:
                first = step
        return first


class _Fields:
    """Which fields of a record, of those with certain names, hold the seconds of which part."""

    def __init__(self, record: Record) -> None:
        self.optimizer = _fields_in(record, "optimizer_update", "zero_grad")
        self.data = _fields_in(record, "data_loading")
        self.forward = _fields_in(record, "forward")
        self.backward = _fields_in(record, "backward")
        self.saves = _fields_in(record, _SAVE)
        if not self.forward and not self.backward:
            # It contains both passes and the exchange.
            self.backward = _fields_in(record, "training_iteration")


def _fields_in(record: Record, *spans: str) -> tuple[str, ...]:
    """Return the fields with the seconds of these spans, of the device's clock if available."""
    found = (next((p + span for p in (_DEVICE, _HOST) if p + span in record), None) for span in spans)
    return tuple(name for name in found if name is not None)


def _times_of(row: Row, fields: _Fields, seconds: float, steps: int) -> Times:
    record = row.record
    optimizer = _seconds(record, fields.optimizer, steps)
    if fields.data:
        data = _seconds(record, fields.data, steps)
    else:
        data = row.values.get(DATA_TIME, 0.0)
        data = data if 0.0 < data < math.inf else 0.0
    forward = _seconds(record, fields.forward, steps)
    backward = _seconds(record, fields.backward, steps)
    upto_data = optimizer + data
    upto_forward = upto_data + forward
    timed = upto_forward + backward
    rest = max(0.0, seconds - timed)
    return Times(seconds, optimizer, data, forward, backward, upto_data, upto_forward, timed, rest)


def _seconds(record: Record, names: tuple[str, ...], steps: int) -> float:
    total = 0.0
    for name in names:
        seconds = record[name]
        # A script may use such a name for anything.
        if type(seconds) is float and 0.0 <= seconds < math.inf:
            total += seconds
    return total / steps
