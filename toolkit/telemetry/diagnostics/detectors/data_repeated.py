"""A loss that repeats itself from epoch to epoch: data in the same order, or learnt by heart."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.metric_aliases import FARTHEST, LOSS, Row
from toolkit.telemetry.diagnostics.robust import change_sigma, median

_EPOCH: Final = "epoch"


class DataRepeated(SingleIncidentDetector):
    """Compares the losses of an epoch with those at the same places of the epoch before.

    What each loss differs by from its two neighbours depends on its batch alone, not on a trend, a schedule or a
    running mean. If these differences are the same in each epoch, so is the order of the batches. A loss that falls
    from one epoch to the next but not within them is being learnt by heart. Each alone is `info`: some do not shuffle
    on purpose, and most fine-tunings of a few epochs look like stairs. Both together are a warning.
    """

    kind = "data_repeated"
    signals = (LOSS,)

    def _forget(self) -> None:
        self._epoch: int | None = None
        self._first_step: int = 0
        self._count: int = 0
        self._losses: list[float] = []
        self._latest: deque[float] = deque(maxlen=at.REPEATED_EDGE)
        self._before: tuple[int, list[float]] | None = None
        self._same: int = 0
        self._stairs: int = 0
        self._since: int = 0
        self._end_before: float | None = None
        """The level at the end of the epoch before."""

    def take(self, row: Row) -> None:
        """Collect the losses of an epoch, and compare it with the one before when it is complete."""
        loss, epoch = row.values[LOSS], row.record.get(_EPOCH)
        number = epoch if type(epoch) is int and epoch == self._epoch else _number_of(epoch)
        if loss - loss != 0.0 or number is None:
            return
        if number != self._epoch:
            if self._epoch is not None and number == self._epoch + 1:
                self._end_epoch(row)
            elif self._epoch is not None:
                self._resolve(row.step)
                self._before = self._end_before = None
                self._same = self._stairs = 0
            self._epoch, self._first_step, self._count = number, row.step, 0
            self._losses = []
            self._latest.clear()
        self._count += 1
        if self._count <= at.REPEATED_MOST:
            self._losses.append(loss)
        self._latest.append(loss)

    def _end_epoch(self, row: Row) -> None:
        count, losses, before = self._count, self._losses, self._before
        self._before = (count, losses)
        # An epoch that is no multiple of the logging interval has a record more now and then.
        is_comparable = before is not None and abs(count - before[0]) <= 1 and count >= at.REPEATED_FEWEST
        alike = _correlation(_details(losses), _details(before[1])) if before and is_comparable else 0.0
        is_reported = self._incident is not None and self._incident.variant != "stairs"
        enough = at.REPEATED_STILL if is_reported else at.REPEATED_ALIKE
        self._same = self._same + 1 if alike >= enough else 0
        if self._same == 1:
            self._since = self._first_step
        if self._incident is not None and is_reported:
            if self._same:
                self._incident.grow(row.step, count)
            else:
                self._resolve(row.step)
        elif self._same == at.REPEATED_EPOCHS:
            self._resolve(row.step)
            self._open("", row, count * (self._same + 1), alike_pct=float(round(100.0 * alike)))
        self._check_for_stairs(row)

    def _check_for_stairs(self, row: Row) -> None:
        """Check whether the loss fell before this epoch by more than within it; `row` is the first of the next."""
        losses, edge = self._losses, at.REPEATED_EDGE
        if len(losses) < 2 * edge:
            self._end_before, self._stairs = None, 0
            return
        begin, end = median(losses[:edge]), median(self._latest)
        end_before, self._end_before = self._end_before, end
        if end_before is None:
            return
        noise = change_sigma(losses) / math.sqrt(edge)
        fell, within = end_before - begin, begin - end
        is_stair = fell > max(at.REPEATED_STAIR * abs(end_before), at.REPEATED_SIGMAS * noise)
        if is_stair and within < 0.5 * fell:
            if not self._stairs:
                self._since = self._first_step
            self._stairs += 1
        else:
            self._stairs = 0
            if self._incident is not None and self._incident.variant == "stairs":
                self._resolve(row.step)
        if self._stairs < at.REPEATED_EPOCHS:
            return
        if self._incident is None:
            self._open(
                "stairs", row, self._count * self._stairs, fell_pct=float(round(100.0 * fell / end_before))
            )
        elif self._incident.variant == "":
            # In the same order and learnt by heart: the order is part of what is learnt.
            self._incident.variant = "by heart"
            self._incident.severity = None
            self._incidents.mark_changed(self._incident)

    def _open(self, variant: str, row: Row, count: int, **evidence: float) -> None:
        incident = self._report(LOSS, row, start_step=self._since, count=count, **evidence)
        incident.variant, incident.severity = variant, INFO


def _number_of(epoch: object) -> int | None:
    """Return the epoch that a record belongs to; fractions of one count from its start, and its last is a whole."""
    if type(epoch) is float and 0.0 <= epoch < FARTHEST:
        return math.ceil(epoch)
    return epoch if type(epoch) is int and 0 <= epoch < FARTHEST else None


def _details(losses: list[float]) -> list[float]:
    """Return by how much each value differs from the mean of its neighbours."""
    return [
        value - 0.5 * (left + right)
        for left, value, right in zip(losses, losses[1:], losses[2:], strict=False)
    ]


def _correlation(some: list[float], others: list[float]) -> float:
    """Return the correlation of values at the same places, each limited so that no single one decides."""
    pairs = list(zip(some, others, strict=False))
    limits = [3.0 * median([abs(value) for value in values]) for values in zip(*pairs, strict=True)]
    first, second = (
        [max(-limit, min(limit, value)) for value in values]
        for values, limit in zip(zip(*pairs, strict=True), limits, strict=True)
    )
    over = math.sqrt(sum(value * value for value in first) * sum(value * value for value in second))
    return sum(one * other for one, other in zip(first, second, strict=True)) / over if over > 0.0 else 0.0
