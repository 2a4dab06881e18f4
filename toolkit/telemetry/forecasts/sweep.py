"""The runs of a sweep as `stopping.py` judges them, and its answer in words."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from toolkit.telemetry.diagnostics.metric_aliases import LR
from toolkit.telemetry.forecasts.curve import Plan
from toolkit.telemetry.forecasts.run import change_of, curve_of, last_step
from toolkit.telemetry.forecasts.stopping import RISK, Judged, Stopping, SweptRun, which_to_stop
from toolkit.telemetry.runfolder.metrics import Direction
from toolkit.telemetry.runs.formatting import count, duration
from toolkit.telemetry.runs.signals import metric_of
from toolkit.telemetry.runs.store import RunCard, RunStore

MOST: Final = 60
"""Runs that are read: those that are live first, then the best of the others."""
_LOST: Final = 5
"""Losses that are not a number one after another: a single one may be skipped by a gradient scaler."""


def stopping_of(
    store: RunStore,
    cards: Iterable[RunCard],
    *,
    metric: str,
    direction: Direction,
    risk: float = RISK,
    wait_s: float = 1.0,
) -> Stopping:
    """Read the runs and say which of the live ones can be stopped; without a live one nothing is read."""

    def place(card: RunCard) -> tuple[bool, float]:
        reached = card.evaluations.get(metric)
        value = math.nan if reached is None else reached.last
        return not card.live, (-value if direction == "max" else value) if math.isfinite(value) else math.inf

    ordered = sorted(cards, key=place)
    chosen, left_out = ordered[:MOST], [card.name for card in ordered[MOST:] if card.live]
    if not any(card.live for card in chosen):
        return Stopping()
    store.refresh_all([card.key for card in chosen], wait_s=wait_s)
    runs = [_swept(store, card, metric) for card in chosen]
    found = which_to_stop(runs, metric=metric, direction=direction, risk=risk)
    return replace(found, left_out=tuple(left_out))


def _swept(store: RunStore, card: RunCard, metric: str) -> SweptRun:
    key, metrics = card.key, {info.name: info for info in store.metrics(card.key)}
    lr = metric_of(LR, metrics)
    power = fnmatch.filter(metrics, "gpu/*/power_w") if card.live else []
    watts = sum(float(np.mean(store.means(key, name, 1))) for name in power)

    def is_lost(name: str) -> bool:
        newest = store.recent(key, name, most := _LOST if name == card.loss_metric else 1)
        return len(newest) == most and not np.isfinite(newest).any()

    return SweptRun(
        key=key,
        name=card.name,
        curve=curve_of(store, key, metric, buckets=600),
        plan=Plan(
            last_step=last_step(card), lr=None if lr is None else curve_of(store, key, lr, buckets=100)
        ),
        settings=card.config,
        is_live=card.live,
        is_lost=is_lost(metric) or is_lost(card.loss_metric or metric),
        doubt=change_of(store, key),
        step=float(card.step or 0),
        step_s=card.duration_s / card.steps_done if card.duration_s and card.steps_done else None,
        watts=watts if power and math.isfinite(watts) else None,
    )


def stopping_text(found: Stopping) -> str:
    """Return the answer as a sentence or two."""
    stoppable, live = found.stoppable, len(found.runs)
    of = f"{count(live)} live {'run' if live == 1 else 'runs'}"
    text = f"None of {of} can be stopped yet." if live else "No run is live."
    if stoppable:
        *first, last = _amounts(stoppable)
        risk = f"{round(100 * found.risk)} in 100 that {'it' if len(stoppable) == 1 else 'one of them'}"
        text = f"Can be stopped: {count(len(stoppable))} of {of}. Saves about {', '.join(first)}"
        text += f"{' and ' if first else ''}{last}; risk {risk} would be the best."
        if all(run.kwh is None for run in stoppable):
            text += " No power is recorded, so the energy is not known."
    if found.left_out:
        more = f" and {count(len(found.left_out) - 5)} more" if len(found.left_out) > 5 else ""
        text += f" More than {MOST} are live; not judged: {', '.join(found.left_out[:5])}{more}."
    return text


def saved_text(run: Judged) -> str:
    """Return what stopping a run saves: steps, time, energy."""
    return ", ".join(_amounts([run]))


def _amounts(runs: Sequence[Judged]) -> list[str]:
    amounts = [f"{count(round(sum(run.steps for run in runs)))} steps"]
    if known := [run.seconds for run in runs if run.seconds is not None]:
        amounts.append(duration(sum(known)))
    if with_power := [run.kwh for run in runs if run.kwh is not None]:
        of = "" if len(with_power) == len(runs) else f" (of {count(len(with_power))} with recorded power)"
        amounts.append(f"{sum(with_power):.2g} kWh{of}")
    return amounts
