"""Overview page: is this run healthy, how far along is it, is the loss going down, is the hardware busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import streamlit as st

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR
from toolkit.telemetry.reports.ledger_labels import has_content
from toolkit.telemetry.runfolder.metrics import INTERNAL, metric_direction
from toolkit.telemetry.runfolder.records import SAMPLE, is_spread
from toolkit.telemetry.runs.formatting import count, learning_rate, short_number, size
from toolkit.telemetry.runs.listing.pins import Pins
from toolkit.telemetry.runs.listing.run_table import Primary
from toolkit.telemetry.runs.signals import KNOWN, metric_of, validation_loss_of
from toolkit.telemetry.runs.statistics import trend_of
from toolkit.telemetry.runs.store import Health, MetricInfo, TimeSpent

from ..components import page_states
from ..components.alert_card import what_now_html
from ..components.baseline import against_text, baseline_of
from ..components.cards import Card, cards_html, ledger_bar
from ..components.curve_panel import (
    Around,
    Panel,
    chart_switches,
    curve_panel,
    marks_of,
    pin_box,
    pin_star,
)
from ..components.event_list import event_list
from ..components.forecast_line import forecast_line
from ..components.frame import RunPage, curves_from, has_rest, live, open_run
from ..components.pictures import latest_samples
from ..components.resume_card import resume_card

_SPARK_POINTS = 40
_SPEEDS = ("samples_per_sec", "tokens_per_sec")
_NOT_CUSTOM = ("gpu", "cpu_", "ram_", "process_", *INTERNAL)
_REWARDS: Final = ("reward", "reward_mean", "mean_reward", "rewards_mean", "reward/mean")
_MAX_CUSTOM = 6
_RECENT: Final = 100

_FIRST_WAIT_S = 0.05
_WAIT_S = 0.4
_REFRESH_WHILE_PARTIAL_S = 1.0
_ENOUGH: Final = 0.95
"""The share of the records from which on their sum is worth showing."""


def main() -> None:
    """Draw the page."""
    page = open_run(summary=summary_html, drawn_from=_drawn_from)
    if page is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="switches"):
        chart_switches(page)
        pins = pin_box(page)
    ahead = st.container(key="forecast") if has_rest(page.card) else None
    if ahead is not None:
        # A container with nothing in it has no height, and the charts would move.
        ahead.empty()
    # Outside of what refreshes: the browser asks for new values by itself.
    page_states.guarded("The charts", lambda: _charts(page, pins))
    # Last: the rest of the page does not wait for it.
    if ahead is not None:
        with ahead:
            forecast_line(page, has_words=True)


def _drawn_from(page: RunPage, alerts: Sequence[Finding]) -> object:
    return curves_from(page, alerts), page.store.count_events(page.key).get(SAMPLE, 0)


def summary_html(page: RunPage) -> str:
    """Return what to do now with a run that has stopped, and its cards, as HTML made from escaped text."""
    cards = cards_of(page, page.store.refresh(page.key, wait_s=0.0))
    return what_now_html(page) + (cards_html(cards) if cards else "")


# ---------------------------------------------------------------- cards


# A metric and its card.
MetricCard = tuple[str, Card]


def cards_of(page: RunPage, health: Health) -> list[Card]:
    """Return the numbers at the top of the page; none without a metric."""
    metrics = {info.name: info for info in page.store.metrics(page.key)}
    if not metrics:
        return []
    found = [_loss(page, metrics), _reward(metrics), _validation(metrics)]
    for signal, label, words in (
        (LR, "Learning rate", learning_rate),
        (GRAD_NORM, "Gradient norm", short_number),
    ):
        name = metric_of(signal, metrics)
        if name is not None:
            found.append((name, Card(label=label, value=words(metrics[name].last))))
    about_the_machine = [card for card in (_speed(page, metrics), _hardware(metrics)) if card is not None]
    cards = [card for card in found if card is not None]
    cards = [(name, _against(page, name, card)) for name, card in cards]
    if len(cards) + len(about_the_machine) < 3 or metric_of(LOSS, metrics) is None:
        shown = {name for name, _ in cards}
        own = [name for name in _own_metrics(metrics) if name not in shown]
        own = own[: 6 - len(cards) - len(about_the_machine)]
        cards += [(name, Card(label=name[:60], value=short_number(metrics[name].last))) for name in own]
    cards += about_the_machine
    if not health.complete:
        in_part = f"{health.fraction_read:.0%} read"
        cards = [(name, replace(card, about=in_part, delta=None, tone="muted")) for name, card in cards]
    return [replace(card, spark=_spark(page, metric)) for metric, card in cards]


def _against(page: RunPage, metric: str, card: Card) -> Card:
    """Return a card that also says how far the run is from the baseline of its project."""
    primary = Primary(metric=metric, direction=metric_direction(metric) or "min")
    if primary.best_of(page.card) is None:
        return card
    text = against_text(page.card, baseline_of(page.store, page.card.project), primary)
    if not text:
        return card
    if text == "baseline":
        return replace(card, about=" · ".join(filter(None, (card.about, "the baseline"))))
    # A card has no room for the trend as well, which its help has.
    best = card.about if card.about and card.about.startswith("best ") else "best"
    return replace(card, about=f"{best} {text} vs baseline", delta=None, tone="muted")


def _spark(page: RunPage, metric: str) -> list[float | None]:
    means = page.store.means(page.key, metric, _SPARK_POINTS)
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in means.tolist()]


def _loss(page: RunPage, metrics: dict[str, MetricInfo]) -> MetricCard | None:
    name = metric_of(LOSS, metrics)
    if name is None:
        return None
    info = metrics[name]
    card = Card(label="Train loss", value=short_number(info.last), about="last value")
    trend = trend_of(page.store.recent(page.key, name, _RECENT))
    if trend is None or not np.isfinite(info.last):
        return name, card
    help_text = (
        f"The last logged value. The mean of the last {trend.records} records is {short_number(trend.mean)}, "
        f"that of the {trend.records} before {short_number(trend.mean - trend.change)}."
    )
    if not trend.is_clear:
        return name, replace(card, about="last value · flat", help=help_text)
    return name, replace(
        card,
        delta=f"{'↓' if trend.change < 0 else '↑'} {short_number(abs(trend.change))}",
        about=f"vs {trend.records} before",
        tone="good" if trend.change < 0 else "critical",
        help=help_text,
    )


def _reward(metrics: dict[str, MetricInfo]) -> MetricCard | None:
    """Return the card of the reward, if there is one and no loss."""
    own = _own_metrics(metrics)
    if metric_of(LOSS, metrics) is not None or not own or _reward_rank(own[0]) > 1:
        return None
    info = metrics[own[0]]
    best = f"best {short_number(info.high)}" if np.isfinite(info.high) else None
    return own[0], Card(label=own[0][:60], value=short_number(info.last), about=best)


def _validation(metrics: dict[str, MetricInfo]) -> MetricCard | None:
    name = validation_loss_of(metrics)
    if name is None:
        return None
    info = metrics[name]
    best = f"best {short_number(info.low)}" if np.isfinite(info.low) else None
    return name, Card(label="Validation loss", value=short_number(info.last), about=best)


def _speed(page: RunPage, metrics: dict[str, MetricInfo]) -> MetricCard | None:
    name = next((name for name in _SPEEDS if name in metrics), None)
    if name is None:
        return None
    recent = page.store.recent(page.key, name, 200)
    recent = recent[np.isfinite(recent)]
    now = float(np.median(recent[-20:])) if len(recent) else metrics[name].last
    usual = float(np.median(recent)) if len(recent) else now
    card = Card(label="Samples / s" if name == "samples_per_sec" else "Tokens / s", value=short_number(now))
    if len(recent) < 40 or usual <= 0:
        return name, card
    # The standard error of a median of 20, from the quartiles.
    error = 1.25 * float(np.subtract(*np.percentile(recent, (75, 25)))) / 1.35 / np.sqrt(20)
    if abs(now / usual - 1) < 0.05 or abs(now - usual) < 3 * error:
        return name, replace(card, about="stable")
    tone: Literal["good", "critical"] = "good" if now > usual else "critical"
    return name, replace(card, delta=f"{now / usual - 1:+.0%}", about="vs median", tone=tone)


def _hardware(metrics: dict[str, MetricInfo]) -> MetricCard | None:
    for name in ("gpu_util", "gpu/0/util"):
        if name in metrics:
            memory = metrics.get("gpu_mem_reserved") or metrics.get("gpu_mem_allocated")
            about = f"{memory.last:.3g} GB in use" if memory is not None else None
            return name, Card(label="GPU utilization", value=_percent(metrics[name].last), about=about)
    if "gpu_mem_reserved" in metrics:
        used = f"{metrics['gpu_mem_reserved'].last:.3g} GB"
        return "gpu_mem_reserved", Card(label="GPU memory", value=used)
    if "process_cpu_percent" in metrics:
        memory = metrics.get("cpu_mem_rss_mb")
        about = f"{size(memory.last * 1e6)} in use" if memory is not None else None
        value = _percent(metrics["process_cpu_percent"].last)
        return "process_cpu_percent", Card(label="Process CPU", value=value, about=about)
    return None


def _percent(value: float) -> str:
    return f"{value:.0f} %" if abs(value) < 1e6 else f"{short_number(value)} %"


def _is_custom(name: str, info: MetricInfo) -> bool:
    return info.event == "step" and name not in KNOWN and not name.startswith(_NOT_CUSTOM)


def _own_metrics(metrics: dict[str, MetricInfo]) -> list[str]:
    """Return the metrics that only this training has, rewards first."""
    own = [name for name, info in metrics.items() if _is_custom(name, info) and not is_spread(name, metrics)]
    return sorted(own, key=_reward_rank)


def _reward_rank(name: str) -> int:
    lower = name.lower()
    last = lower.rsplit("/", 1)[-1]
    if last in _REWARDS:
        return 0
    return 1 if "reward" in lower or last in ("return", "episode_return", "ep_rew_mean") else 2


# ---------------------------------------------------------------- where the time went


def _time_and_events(page: RunPage) -> None:
    """Show the time ledger of the records processed so far, and the latest events; refresh until it is complete."""
    first = page.store.time_spent(page.key, wait_s=_FIRST_WAIT_S)
    in_part = first.fraction < 1.0

    def draw() -> None:
        spent = page.store.time_spent(page.key, wait_s=_WAIT_S) if page.is_refreshing else first
        if in_part and spent.fraction >= 1.0:
            # Complete: a finished run needs no timer.
            st.rerun()
        left, right = st.columns([2, 1], gap="medium")
        with left:
            page_states.guarded("The resume", lambda: resume_card(page))
            page_states.guarded("The time ledger", lambda: _ledger(page, spent))
        with right:
            page_states.guarded("The events", lambda: event_list(page))

    # Below the fold.
    live(page, "Time and events", draw, idle_s=_REFRESH_WHILE_PARTIAL_S if in_part else None, slower=3)


def _ledger(page: RunPage, spent: TimeSpent) -> None:
    if spent.fraction < _ENOUGH:
        st.progress(spent.fraction, text=f"Adding up where the time went: {spent.fraction:.0%}")
    elif has_content(spent.ledger):
        with st.container(key="ledger"):
            ledger_bar(spent, key=page.key)
    health = page.store.refresh(page.key, wait_s=0.0)
    st.caption(f"{count(health.records)} records · {size(health.bytes_read)}")


# ---------------------------------------------------------------- charts


# Of each group, the first panel with logged metrics is drawn.
_BELOW: Final = (
    (
        Panel(title="Speed", metrics=(("samples_per_sec", "samples/s"),), unit="samples / s", from_zero=True),
        Panel(title="Speed", metrics=(("tokens_per_sec", "tokens/s"),), unit="tokens / s", from_zero=True),
        Panel(title="Step time", metrics=(("sec_per_step", "seconds per step"),), unit="s", from_zero=True),
    ),
    (
        Panel(
            title="GPU memory",
            metrics=(("gpu_mem_reserved", "reserved"), ("gpu_mem_allocated", "allocated")),
            unit="GB",
            from_zero=True,
        ),
        Panel(title="GPU memory", metrics=(("gpu/0/mem_used_gb", "GPU 0"),), unit="GB", from_zero=True),
        Panel(title="Process memory", metrics=(("cpu_mem_rss_mb", "resident"),), unit="MB", from_zero=True),
    ),
)


def _side_groups(metrics: dict[str, MetricInfo]) -> Sequence[Sequence[Panel]]:
    lr, norm = metric_of(LR, metrics) or "", metric_of(GRAD_NORM, metrics) or ""
    return (
        (Panel(title="Learning rate", metrics=((lr, "learning rate"),)),),
        (Panel(title="Gradient norm", metrics=((norm, "gradient norm"),)),),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Which metrics are drawn where."""

    title: str
    main: list[tuple[str, str]]
    side: list[Panel]
    pinned: list[str]
    below: list[Panel]
    own: list[str]


def plan_of(metrics: dict[str, MetricInfo], pins: Pins) -> Plan:
    """Return where the metrics of a run are drawn."""
    pinned = [name for name in pins.pinned if name in metrics]
    metrics = {name: info for name, info in metrics.items() if name in pinned or name not in pins.hidden}
    main, title = _loss_curves(metrics), "Loss"
    taken = {name for name, _ in main} | {metric_of(LR, metrics), metric_of(GRAD_NORM, metrics)}
    own = [name for name in _own_metrics(metrics) if name not in taken]
    if metric_of(LOSS, metrics) is None and own and _reward_rank(own[0]) < 2:
        # Reinforcement learning: what is evaluated besides comes later.
        own += [name for name, _ in main]
        main = []
    if not main and (pinned or own):
        # Only custom metrics: the most important one takes the place of the loss.
        title = (pinned or own)[0]
        main = [(title, title)]
    side, below = (
        [panel for group in groups if (panel := _first_logged(group, metrics)) is not None]
        for groups in (_side_groups(metrics), _BELOW)
    )
    shown = {name for name, _ in main}
    pinned = [name for name in pinned if name not in shown]
    return Plan(title, main, side, pinned, below, [name for name in own if name not in {*shown, *pinned}])


def _charts(page: RunPage, pins: Pins) -> None:
    metrics = {info.name: info for info in page.store.metrics(page.key)}
    if not metrics:
        return
    around, plan = Around(marks=marks_of(page)), plan_of(metrics, pins)
    left, right = (
        st.columns([2, 1], gap="medium") if plan.side and plan.main else (st.container(), st.container())
    )
    with left:
        if plan.main:
            main = Panel(title=plan.title, metrics=plan.main)
            _panel(page, main, around, height=390)
        page_states.guarded("The latest samples", lambda: latest_samples(page))
    with right:
        for number, panel in enumerate(plan.side):
            _panel(page, panel, around, height=165, color=1 + number)
    _own_charts(page, plan.pinned, around, pins)
    _time_and_events(page)
    row = st.columns(max(2, len(plan.below)), gap="medium")
    for number, (cell, panel) in enumerate(zip(row, plan.below, strict=False)):
        with cell:
            _panel(page, panel, around, height=190, color=3 + number)
    _own_charts(page, plan.own[:_MAX_CUSTOM], around, pins)
    if len(plan.own) > _MAX_CUSTOM:
        st.caption(f"{len(plan.own) - _MAX_CUSTOM} more on the Metrics page.")


def _own_charts(page: RunPage, names: Sequence[str], around: Around, pins: Pins) -> None:
    for cell, name in page_states.grid(names, 3):
        with cell:
            _panel(page, Panel.of(name), around, height=190, pins=pins)


def _loss_curves(metrics: dict[str, MetricInfo]) -> list[tuple[str, str]]:
    curves = [("train_loss", "train loss"), ("loss", "loss")]
    named = metric_of(LOSS, metrics)
    if named is not None and named not in ("train_loss", "loss"):
        curves = [(named, named)]
    elif named == "loss":
        curves = curves[1:]
    curves.append((validation_loss_of(metrics) or "", "validation loss"))
    return [(name, label) for name, label in curves if name in metrics]


def _first_logged(group: Sequence[Panel], metrics: dict[str, MetricInfo]) -> Panel | None:
    return next((panel for panel in group if any(name in metrics for name, _ in panel.metrics)), None)


def _panel(
    page: RunPage, panel: Panel, around: Around, *, height: int, color: int = 0, pins: Pins | None = None
) -> None:
    def draw() -> None:
        curve_panel(
            page,
            panel,
            around,
            height=height,
            first_color=color,
            star=None if pins is None else pin_star(page, panel.metrics[0][0], pins),
        )

    page_states.guarded(panel.title, draw)
