"""What can be said of the rest of a run: final losses, its end, what runs out before, and the best run."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import CRITICAL
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR
from toolkit.telemetry.forecasts.curve import Curve, Forecast, NoForecast, Plan, forecast_curve
from toolkit.telemetry.forecasts.ends import ExpectedTime, end_of, full_at
from toolkit.telemetry.forecasts.schedule import rest_of_schedule
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, STEP
from toolkit.telemetry.runfolder.status import FINISHED, RUNNING
from toolkit.telemetry.runfolder.untrusted import number_in, whole_in
from toolkit.telemetry.runs.findings.health import findings_of
from toolkit.telemetry.runs.findings.remedies import knob_changes_text
from toolkit.telemetry.runs.formatting import count
from toolkit.telemetry.runs.signals import metric_of, validation_loss_of
from toolkit.telemetry.runs.store import NO_END, CurveSegment, MetricInfo, RunCard, RunQuery, RunStore

_MAY_STILL_RUN_S: Final = 900.0
_BUCKETS: Final = 25_000
"""Of up to four times as many records every one is looked at."""
_SMALL: Final = 600
"""Buckets of a chart: with so few, every point has its time."""
_COMPARED: Final = 10
_LAST_POINTS: Final = 4
_GPU: Final = re.compile(r"gpu/(\d+)/mem_total_gb")

Metrics = Mapping[str, MetricInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Something that runs out before the planned end, as far as that is known."""

    what: str
    """Such as `GPU memory`, `host memory`, `disk` or `time limit`."""
    when: ExpectedTime
    step: float | None
    """The step that is done by then, if the pace is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Whether this run will be better than the best other run of its project."""

    run: str
    name: str
    metric: str
    value: float
    step: float | None
    """Where the middle of the forecast passes it; None if it does not."""
    is_ahead: bool
    """Whether the run is better already."""
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast:
    """What can be said of the rest of a run; `train` may be of the metric that was asked for."""

    train: Forecast | NoForecast
    val: Forecast | NoForecast | None = None
    """None if the run has no validation loss, or another metric was asked for."""
    ends: ExpectedTime | None = None
    """When its last step is done; None if it is not running, has stalled, or has no planned end."""
    limits: tuple[Limit, ...] = ()
    passing: Passing | None = None

    @property
    def losses(self) -> list[Forecast]:
        """The forecasts of losses that could be made."""
        return [one for one in (self.train, self.val) if isinstance(one, Forecast)]


def forecast_run(
    store: RunStore, key: str, *, metric: str | None = None, now: float | None = None
) -> RunForecast:
    """Return the forecasts of a run from the records and findings that `store` has read and examined so far.

    With `metric`, that one is forecast instead of the losses.
    """
    card, now = store.card(key), time.time() if now is None else now
    metrics = {info.name: info for info in store.metrics(key)}
    loss, lr = metric_of(LOSS, metrics), metric_of(LR, metrics)
    last = last_step(card)
    rates = None if lr is None else curve_of(store, key, lr)
    # What an integration read from its trainer is in the start record.
    settings = {"scheduler": store.meta(key).start.get("scheduler"), **card.config}
    plan = Plan(last_step=last, lr=rates, planned_lr=rest_of_schedule(rates, last, settings))
    why = _refusal(store, key)
    curve = None if loss is None else curve_of(store, key, loss)

    def final(name: str) -> Forecast | NoForecast:
        if name not in metrics:
            return NoForecast(f"The run has logged no {name}.")
        if metric_direction(name) != "min":
            return NoForecast(f"{name} is not the name of a loss, and only losses can be forecast.")
        if why:
            return NoForecast(why)
        own, records = curve_of(store, key, name), metrics[name].count
        found = forecast_curve(name, own, plan, other=None if name == loss else curve)
        points = len(own.steps)
        if isinstance(found, Forecast) and points < records - metrics[name].non_finite:
            basis = found.basis.replace(f"{points} records", f"{count(records)} records")
            found = replace(found, records=records, basis=basis)
        return found

    train = final(metric or loss or "training loss")
    val = validation_loss_of(metrics) if metric is None else None
    of_val = None if val is None else final(val)
    ends, limits = None, tuple[Limit, ...]()
    is_open = card.status.name == NO_END and now - (card.last_sign or 0.0) < _MAY_STILL_RUN_S
    if card.status.name == RUNNING or is_open:
        ends = end_of_run(store, card, now)
        limits = _limits(store, card, metrics, ends)
    judged = of_val if isinstance(of_val, Forecast) else train
    passing = _passing(store, card, judged) if isinstance(judged, Forecast) else None
    return RunForecast(train=train, val=of_val, ends=ends, limits=limits, passing=passing)


def end_of_run(store: RunStore, card: RunCard, now: float) -> ExpectedTime | None:
    """Return when the last planned step of a run will be done; None if that is not known."""
    last = last_step(card)
    counts = {info.name: info.count for info in store.metrics(card.key) if info.event == STEP}
    if last is None or not counts:
        return None
    newest = _newest(store, card.key, max(counts, key=lambda name: counts[name]))
    return None if newest is None or newest.time is None else end_of(newest.x, newest.time, last, now)


def _newest(store: RunStore, key: str, metric: str, axis: str = "step") -> CurveSegment | None:
    """Return the part of a curve from the newest session."""
    return next(iter(store.series(key, metric, axis=axis, buckets=_SMALL).segments[-1:]), None)


def last_step(card: RunCard) -> int | None:
    """Return the last planned step of a run; of another tool's run it is in the settings, if at all."""
    planned = card.max_steps or whole_in(card.config.get("max_steps"))
    return planned - card.from_zero if planned and planned > 0 else None


def curve_of(store: RunStore, key: str, name: str, *, buckets: int = _BUCKETS) -> Curve:
    """Return all points of a metric; of very many the first, lowest, highest and last of neighbours.

    Those have the same median as all. Means would not: what a forecast was fitted on are records.
    """
    parts = store.series(key, name, buckets=buckets).segments
    steps = np.concatenate([np.empty(0), *(part.x for part in parts)])
    values = np.concatenate([np.empty(0), *(part.y for part in parts)])
    known = np.isfinite(values) & np.isfinite(steps)
    known[known] = np.diff(np.maximum.accumulate(steps[known]), prepend=-np.inf) > 0
    return Curve(steps[known], values[known])


def change_of(store: RunStore, key: str) -> str:
    """Return what makes the rest of a run another training than its curve so far, as a sentence; empty if nothing."""
    sessions = store.sessions(key)
    if len(sessions) > 1:
        return f"The run was resumed at step {count(int(sessions[-1].first_step))}: a forecast needs one session."
    for record in store.events(key, (CONTROL_CHANGE,), limit=200):
        if record.get("status") in ("applied", "clamped") and (changed := knob_changes_text(record)):
            step = number_in(record.get("global_step"))
            where = "" if step is None else f" at step {count(int(step))}"
            return f"A request changed the training{where}: {changed}."
    return ""


def _refusal(store: RunStore, key: str) -> str:
    """Return why no loss of this run can be forecast, as a sentence; empty if one may be."""
    card = store.card(key)
    if card.status.name == FINISHED and last_step(card) is None:
        return "The run has ended."
    if changed := change_of(store, key):
        return changed
    for alert in findings_of(store, key):
        if alert.kind == "divergence" or (alert.severity == CRITICAL and alert.is_open):
            since = "" if alert.start_step is None else f" since step {count(int(alert.start_step))}"
            return f"The run has a critical finding{since}: {title_of(alert)}."
    return ""


# ---------------------------------------------------------------- what runs out


def _limits(store: RunStore, card: RunCard, metrics: Metrics, ends: ExpectedTime | None) -> tuple[Limit, ...]:
    found: dict[str, ExpectedTime] = {}
    for what, (used, most) in _memories(metrics).items():
        # Samples of the machine have no step.
        newest = _newest(store, card.key, used, "time")
        if newest is not None and (
            when := full_at(newest.x, -newest.y if what == "disk" else newest.y, most)
        ):
            found[what] = when
    limit = number_in(store.meta(card.key).start.get("job_end_time"))
    if limit is not None and ends is not None:
        found["time limit"] = ExpectedTime(low=limit, middle=limit, high=limit)
    now, last = card.last_sign or 0.0, last_step(card)

    def step_at(time_s: float) -> float | None:
        if ends is None or last is None or card.step is None:
            return None
        return float(np.interp(time_s, [now, ends.middle], [card.step, last]))

    return tuple(
        Limit(what=what, when=when, step=step_at(when.middle))
        for what, when in sorted(found.items(), key=lambda one: one[1].middle)
        if ends is None or when.low < ends.high
    )


def _memories(metrics: Metrics) -> dict[str, tuple[str, float]]:
    """Return the metric of what is used and how much of it there is, by what it is."""
    found: dict[str, tuple[str, float]] = {}
    gpus = [match[1] for name in metrics if (match := _GPU.fullmatch(name))]
    for gpu in gpus:
        # Torch's own count, where it is known: what the driver counts contains what torch keeps for later.
        own = ["gpu_mem_allocated"] if gpu == "0" else []
        names = [f"gpu/{gpu}/mem_allocated_gb", *own, f"gpu/{gpu}/mem_used_gb"]
        used = next((name for name in names if name in metrics), None)
        if used is not None:
            what = "GPU memory" if len(gpus) == 1 else f"memory of GPU {gpu}"
            found[what] = used, metrics[f"gpu/{gpu}/mem_total_gb"].last
    if "ram_used_mb" in metrics and "ram_percent" in metrics and metrics["ram_percent"].last > 0:
        found["host memory"] = "ram_used_mb", 100 * metrics["ram_used_mb"].last / metrics["ram_percent"].last
    if "disk_free_gb" in metrics:
        found["disk"] = "disk_free_gb", 0.0
    return found


# ---------------------------------------------------------------- the best run so far


def _passing(store: RunStore, card: RunCard, forecast: Forecast) -> Passing | None:
    """Compare with the best value of an evaluation, or with the level at which the training losses of others end.

    Only runs of the same project are compared: of others it is not known whether they train the same.
    """
    if card.project is None:
        return None
    metric = forecast.metric
    is_evaluation = metric != card.loss_metric
    order = f"best:{metric}" if is_evaluation else "loss"
    listed = store.list_runs(RunQuery(project=card.project, sort=order, per_page=_COMPARED)).cards
    cards = {one.key: one for one in listed if one.key != card.key}
    if is_evaluation:
        known = {one: cards[one].evaluations.get(metric) for one in cards}
        levels = {
            one: found.best
            for one, found in known.items()
            if found and found.best is not None and found.direction in (None, "min")
        }
    else:
        trends = store.trends([one for one in cards if cards[one].loss_metric == metric])
        levels = {one: median(points[-_LAST_POINTS:]) for one, points in trends.items() if len(points)}
    levels = {one: level for one, level in levels.items() if math.isfinite(level)}
    if not levels:
        return None
    best = min(levels, key=lambda one: levels[one])
    steps, _, middle, _ = forecast.band
    below = np.flatnonzero(middle <= levels[best])
    return Passing(
        run=best,
        name=cards[best].name,
        metric=metric,
        value=levels[best],
        step=float(steps[below[0]]) if len(below) else None,
        is_ahead=bool(len(below)) and below[0] == 0,
        chance=forecast.chance_below(levels[best]),
    )
