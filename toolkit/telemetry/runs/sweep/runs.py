"""The runs of a sweep, each with its settings and what it reached, and which of them are comparable."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from toolkit.telemetry.runfolder.status import FAILED, FINISHED, LOST
from toolkit.telemetry.runs.store import UNREADABLE, RunCard

Direction = Literal["min", "max"]
State = Literal["done", "running", "failed", "stopped"]

_ENOUGH: Final = 0.8
"""A run that was stopped before this share of its steps is not a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run: its settings and its result."""

    key: str
    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings by name, not nested; one that is not there was not recorded."""
    value: float | None = None
    """Its value of the metric; None or NaN if it has none."""
    state: State = "done"
    """`stopped` if it was stopped too early to be compared."""
    steps: int | None = None
    planned: int | None = None
    """Steps done, and steps that it would have had; of a run without a plan, the median of the others."""

    @property
    def is_measured(self) -> bool:
        """Whether it has a finite value."""
        return self.value is not None and math.isfinite(self.value)

    @property
    def number(self) -> float:
        """Its value; NaN if it has none."""
        return math.nan if self.value is None else float(self.value)

    def cost(self, direction: Direction) -> float:
        """Return its value so that lower is better."""
        return self.number if direction == "min" else -self.number


def sweep_runs(
    cards: Iterable[RunCard], metric: str, direction: Direction, *, take_best: bool = True
) -> list[SweepRun]:
    """Return the runs with what each has reached: its best value, if known and asked for, or its last."""
    found = [(card, _run(card, metric, direction, take_best)) for card in cards]
    full = [run.steps for card, run in found if card.status.name == FINISHED and run.steps]
    usual = round(statistics.median(full)) if full else None
    return [
        replace(run, state="stopped", planned=run.planned or usual)
        if run.state == "done" and card.status.name != FINISHED and _is_short(run, usual)
        else run
        for card, run in found
    ]


def of_one_task(cards: Sequence[RunCard]) -> tuple[Sequence[RunCard], str | None]:
    """Return the most runs that are comparable, and their project, empty without one; all, and None, if all are."""
    counts = Counter(map(_task, cards))
    if len(counts) < 2:
        return cards, None
    chosen = max(counts, key=lambda task: (counts[task], task[0] or "", sorted(task[1])))
    return [card for card in cards if _task(card) == chosen], chosen[0] or ""


def are_comparable(cards: Collection[RunCard]) -> bool:
    """Return whether one of these runs may be called the best: all train the same thing, as far as they say."""
    return len(set(map(_task, cards))) < 2


def _task(card: RunCard) -> tuple[str | None, frozenset[str]]:
    """Return what a run says of what it trains: its project, and without one the names of its settings."""
    return card.project, frozenset(card.config if card.project is None else ())


def _run(card: RunCard, metric: str, direction: Direction, take_best: bool) -> SweepRun:
    reached = card.evaluations.get(metric)
    value = None if reached is None else reached.last
    if reached is not None and take_best and reached.direction in (None, direction):
        value = reached.last if reached.best is None else reached.best
    state: State = "running" if card.live else "done"
    if card.status.name in (FAILED, LOST, UNREADABLE):
        state = "failed"
    return SweepRun(
        key=card.key,
        name=card.name,
        config=card.config,
        value=value,
        state=state,
        steps=card.steps_done,
        planned=card.max_steps,
    )


def _is_short(run: SweepRun, usual: int | None) -> bool:
    planned = run.planned or usual
    return run.steps is not None and planned is not None and run.steps < _ENOUGH * planned
