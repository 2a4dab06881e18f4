"""What a list shows of a run of another tool."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, signal_of
from toolkit.telemetry.importers.source import NO_STEP, SYSTEM, Batch, SourceInfo, named_columns
from toolkit.telemetry.importers.summary import add_session, before
from toolkit.telemetry.runfolder.key_values import KeyValues
from toolkit.telemetry.runfolder.listed_run import loss_name

_TREND_POINTS: Final = 400


class RunSummary:
    """What a list shows of a run: read once, then only what is new."""

    def __init__(self, limits: Mapping[int, int] | None = None) -> None:
        """Leave out the steps from a limit on, by session: those that a later one did again."""
        self.limits = limits or {}
        self.sessions: dict[int, dict[str, Any]] = {}
        self.step: int | None = None
        self.last: dict[str, float] = {}
        """The last value of each metric."""
        self.lr: float | None = None
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.sessions_seen = 0
        self._losses: list[float] = []
        self._every = 1
        self._seen = 0
        self.key_values = KeyValues()
        self._counts: Counter[str] = Counter()
        """How many points each metric has that may be the loss: a mean of the whole run is one point."""

    def add(self, info: SourceInfo, batch: Batch) -> None:
        """Add what was read of a run."""
        for name, column in named_columns(info, batch):
            if not len(column):
                continue
            times = [time for time in (column.times[0], column.times[-1]) if not math.isnan(time)]
            if times:
                self.first_time = min(times[0], self.first_time or math.inf)
                self.last_time = max(times[-1], self.last_time or -math.inf)
            if column.kind == SYSTEM:
                continue
            add_session(self.sessions, column)
            if column.session + 1 > self.sessions_seen:
                # A later session counts, even if it begins again at an earlier step.
                self.sessions_seen, self.step = column.session + 1, None
            column = before(column, self.limits.get(column.session))
            if not len(column):
                continue
            # Not the last one: a step may be logged again later.
            step = max(column.steps)
            if step != NO_STEP and column.session + 1 == self.sessions_seen:
                self.step = step if self.step is None else max(step, self.step)
            self.last[name] = column.values[-1]
            steps = [None if step == NO_STEP else step for step in column.steps]
            self.key_values.take_points(name, column.kind, steps, column.values)
            signal = signal_of(column.metric)
            if signal == LOSS:
                self._counts[name] += len(column)
                if name == self.loss_name:
                    self._add_losses(column.values)
            elif signal == LR:
                self.lr = column.values[-1]

    @property
    def loss_name(self) -> str | None:
        """The metric that is the training loss."""
        return max(self._counts, key=self._counts.__getitem__) if self._counts else loss_name(self.last)

    @property
    def loss(self) -> float | None:
        """The last training loss."""
        return None if self.loss_name is None else self.last[self.loss_name]

    def _add_losses(self, values: Sequence[float]) -> None:
        first = -self._seen % self._every
        self._losses += [value for value in values[first :: self._every] if math.isfinite(value)]
        self._seen += len(values)
        while len(self._losses) > _TREND_POINTS:
            self._losses = self._losses[::2]
            self._every *= 2

    def trend(self, points: int) -> list[float]:
        """Return about `points` losses along the run."""
        losses = self._losses
        return losses[:: max(1, len(losses) // points)]
