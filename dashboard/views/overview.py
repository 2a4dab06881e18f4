"""Overview page: is this run healthy, how far along is it, is the loss going down, is the hardware busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import streamlit as st

from dashboard.components import page_states
from dashboard.components.cards import Card, draw_cards
from dashboard.components.curve_panel import ChartOptions, Tally, chart_switches, curve_panel, marks_of
from dashboard.components.event_list import event_list
from dashboard.components.frame import RunPage, footer, live, open_run, read
from dashboard.components.ledger_bar import ledger_bar
from dashboard.components.sample_strip import latest_samples
from dashboard.components.what_now import what_now_card
from dashboard.data.formatting import learning_rate, short_number, size
from dashboard.data.ledger_labels import has_content
from dashboard.data.run_store import MetricInfo
from toolkit.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR, VAL_LOSS, signal_of
from toolkit.runfolder.records import (
    is_spread,
)
from toolkit.timing.names import DEVICE_TIME_PREFIX, LEDGER_PREFIX, TIME_PREFIX

_SPARK_POINTS = 64
_VAL = ("val_loss", "eval_loss", "epoch/val_loss")
_SPEEDS = ("samples_per_sec", "tokens_per_sec")
_KNOWN = frozenset({"train_loss", "lr", "grad_norm", "sec_per_step", "samples_per_sec", "steps_folded"})
_NOT_CUSTOM = ("gpu", "cpu_", "ram_", "process_", LEDGER_PREFIX, TIME_PREFIX, DEVICE_TIME_PREFIX)
_MAX_CUSTOM = 6
_OWN_NAMES: Final = {LOSS: "train_loss", VAL_LOSS: "val_loss", LR: "lr", GRAD_NORM: "grad_norm"}

_FIRST_WAIT_S = 0.05
_WAIT_S = 0.4
_REFRESH_WHILE_PARTIAL_S = 1.0


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    live(page, "What to do now", lambda: what_now_card(page))
    live(page, "The cards", lambda: _cards(page))
    _time(page)
    options = chart_switches()
    live(page, "The charts", lambda: _charts(page, options))


# ---------------------------------------------------------------- cards


# A metric and its card.
MetricCard = tuple[str, Card]


def _cards(page: RunPage) -> None:
    read(page)
    metrics = {info.name: info for info in page.store.metrics(page.key)}
    if not metrics:
        page_states.no_records(page.card.status.why)
        return
    found = [_loss(page, metrics), _validation(metrics)]
    for signal, label, words in (
        (LR, "Learning rate", learning_rate),
        (GRAD_NORM, "Gradient norm", short_number),
    ):
        name = _named(signal, metrics)
        if name is not None:
            found.append((name, Card(label=label, value=words(metrics[name].last))))
    found += [_speed(page, metrics), _hardware(metrics)]
    cards = [card for card in found if card is not None]
    if len(cards) < 3:
        shown = {name for name, _ in cards}
        own = [info for name, info in metrics.items() if _is_custom(name, info) and name not in shown]
        own = own[: 6 - len(cards)]
        cards += [(info.name, Card(label=info.name[:60], value=short_number(info.last))) for info in own]
    draw_cards(
        [replace(card, spark=_spark(page, metric)) for metric, card in cards], key=f"_cards {page.key}"
    )


def _spark(page: RunPage, metric: str) -> list[float | None]:
    means = page.store.means(page.key, metric, _SPARK_POINTS)
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in means.tolist()]


def _named(signal: str, metrics: dict[str, MetricInfo]) -> str | None:
    """Return the metric that is this signal: our own name, else the first one that a framework calls so."""
    own = _OWN_NAMES[signal]
    others = [name for name in metrics if name not in _KNOWN and signal_of(name) == signal]
    most = max(others, key=lambda name: metrics[name].count, default=None)
    # Some tools log a mean of the whole run, as one point, under the name that we give the curve.
    if own in metrics and (most is None or metrics[own].count > 1):
        return own
    return most


def _loss(page: RunPage, metrics: dict[str, MetricInfo]) -> MetricCard | None:
    name = _named(LOSS, metrics)
    if name is None:
        return None
    info = metrics[name]
    recent = page.store.recent(page.key, name, 100)
    finite = recent[np.isfinite(recent)]
    if len(finite) < 8 or not np.isfinite(info.last):
        return name, Card(label="Train loss", value=short_number(info.last))
    part = len(finite) // 4
    now, before = float(finite[-part:].mean()), float(finite[:part].mean())
    arrow = "↓" if now < before else "↑"
    return name, Card(
        label="Train loss",
        value=short_number(now),
        delta=f"{arrow} {short_number(abs(now - before))}",
        about=f"over {len(recent)} records",
        tone="good" if now < before else "critical",
        help=f"Mean of the last {part} records. The last value was {short_number(info.last)}.",
    )


def _validation_name(metrics: dict[str, MetricInfo]) -> str | None:
    return next((name for name in _VAL if name in metrics), None) or _named(VAL_LOSS, metrics)


def _validation(metrics: dict[str, MetricInfo]) -> MetricCard | None:
    name = _validation_name(metrics)
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
    if abs(now / usual - 1) < 0.05:
        return name, replace(card, about="steady")
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
    return info.event == "step" and name not in _KNOWN and not name.startswith(_NOT_CUSTOM)


# ---------------------------------------------------------------- where the time went


def _time(page: RunPage) -> None:
    """Show the time ledger of the records processed so far; refresh until it is complete."""
    in_part = page.store.time_spent(page.key, wait_s=_FIRST_WAIT_S).fraction < 1.0

    def draw() -> None:
        spent = page.store.time_spent(page.key, wait_s=_WAIT_S)
        if in_part and spent.fraction >= 1.0:
            # Complete: a finished run needs no timer.
            st.rerun()
        if has_content(spent.ledger):
            ledger_bar(spent, key=page.key)

    if in_part:
        st.fragment(
            lambda: page_states.guarded("The time ledger", draw), run_every=_REFRESH_WHILE_PARTIAL_S
        )()
    else:
        live(page, "The time ledger", draw)


# ---------------------------------------------------------------- charts


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One of the small charts."""

    title: str
    metrics: tuple[tuple[str, str], ...]
    unit: str = ""
    digits: str = ".4~g"
    from_zero: bool = False
    log_too: bool = False
    """Whether the log-axis switch applies to this chart."""


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


def _beside(metrics: dict[str, MetricInfo]) -> Sequence[Sequence[Panel]]:
    lr, norm = _named(LR, metrics) or "", _named(GRAD_NORM, metrics) or ""
    return (
        (Panel(title="Learning rate", metrics=((lr, "learning rate"),), digits=".3~e"),),
        (Panel(title="Gradient norm", metrics=((norm, "gradient norm"),), log_too=True),),
    )


def _charts(page: RunPage, options: ChartOptions) -> None:
    metrics = {info.name: info for info in page.store.metrics(page.key)}
    if not metrics:
        return
    tally = Tally()
    options = replace(options, marks=marks_of(page, options.axis))
    main_chart = _loss_curves(metrics)
    taken = {name for name, _ in main_chart} | {_named(LR, metrics), _named(GRAD_NORM, metrics)}
    own = [
        name
        for name, info in metrics.items()
        if _is_custom(name, info) and not is_spread(name, metrics) and name not in taken
    ]
    beside, below = (
        [panel for group in groups if (panel := _first_logged(group, metrics)) is not None]
        for groups in (_beside(metrics), _BELOW)
    )
    title = "Loss"
    if not main_chart and own:
        # Only custom metrics: the first one takes the place of the loss.
        main_chart, title = [(own[0], own[0])], own[0]
        own = own[1:]
    left, right = (
        st.columns([2, 1], gap="medium") if beside and main_chart else (st.container(), st.container())
    )
    with left:
        if main_chart:
            page_states.guarded("The loss", lambda: _main_chart(page, title, main_chart, options, tally))
        page_states.guarded("The latest samples", lambda: latest_samples(page, options.axis))
    with right:
        for number, panel in enumerate(beside):
            _small(page, panel, options, tally, height=185, color=1 + number)
    row = st.columns(len(below) + 1, gap="medium")
    for number, (cell, panel) in enumerate(zip(row, below, strict=False)):
        with cell:
            _small(page, panel, options, tally, height=190, color=3 + number)
    with row[-1]:
        page_states.guarded("The events", lambda: event_list(page))
    for start in range(0, min(_MAX_CUSTOM, len(own)), 3):
        for cell, name in zip(
            st.columns(3, gap="medium"), own[start : min(_MAX_CUSTOM, start + 3)], strict=False
        ):
            with cell:
                _small(
                    page,
                    Panel(title=name, metrics=((name, name),), log_too=True),
                    options,
                    tally,
                    height=190,
                    color=0,
                )
    if len(own) > _MAX_CUSTOM:
        st.caption(f"{len(own) - _MAX_CUSTOM} more on the Metrics page.")
    footer(page, tally.drawn, tally.total)


def _loss_curves(metrics: dict[str, MetricInfo]) -> list[tuple[str, str]]:
    curves = [("train_loss", "train loss"), ("loss", "loss")]
    named = _named(LOSS, metrics)
    if named is not None and named not in ("train_loss", "loss"):
        curves = [(named, named)]
    elif named == "loss":
        curves = curves[1:]
    curves.append((_validation_name(metrics) or "", "validation loss"))
    return [(name, label) for name, label in curves if name in metrics]


def _main_chart(
    page: RunPage, title: str, curves: Sequence[tuple[str, str]], options: ChartOptions, tally: Tally
) -> None:
    curve_panel(page, title, curves, options, tally, height=430, buckets=600, smooth=True)


def _first_logged(group: Sequence[Panel], metrics: dict[str, MetricInfo]) -> Panel | None:
    return next((panel for panel in group if any(name in metrics for name, _ in panel.metrics)), None)


def _small(
    page: RunPage, panel: Panel, options: ChartOptions, tally: Tally, *, height: int, color: int
) -> None:
    def draw() -> None:
        curve_panel(
            page,
            panel.title,
            panel.metrics,
            options if panel.log_too else replace(options, log_y=False),
            tally,
            height=height,
            unit=panel.unit,
            digits=panel.digits,
            from_zero=panel.from_zero,
            first_color=color,
            smooth=True,
        )

    page_states.guarded(panel.title, draw)


main()
