"""The report of a sweep: which run is best, and which settings explain it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.reports.document import (
    Bar,
    Bars,
    Block,
    Document,
    Dot,
    Scatter,
    Section,
    Table,
    Text,
    Tone,
)
from toolkit.telemetry.runfolder.metrics import guess_primary_metric, metric_direction
from toolkit.telemetry.runs.formatting import clock, count, short_number
from toolkit.telemetry.runs.settings import as_number, setting_text
from toolkit.telemetry.runs.store import RunCard
from toolkit.telemetry.runs.sweep.answer import SweepAnswer, answer, is_log_scale
from toolkit.telemetry.runs.sweep.runs import SweepRun, of_one_task, sweep_runs
from toolkit.telemetry.runs.sweep.text import answer_text, beyond_chance, percent

_MAX_BARS: Final = 15
_MAX_SCATTERS: Final = 4
_MAX_SETTINGS: Final = 12
_MAX_ROWS: Final = 1_000


def sweep_report(runs: Sequence[RunCard], *, metric: str | None = None, is_chosen: bool = False) -> Document:
    """Return the report of runs with different names, by `metric` or the one that most of them share.

    Of runs that are not comparable, unless `is_chosen`, it is about the most that are.
    """
    total, project = len(runs), None
    if not is_chosen:
        runs, project = of_one_task(runs)
    metric = metric or guess_primary_metric([run.evaluations for run in runs])
    if metric is None:
        return Document(
            title=f"{count(len(runs))} runs",
            kind="Sweep",
            verdict="None of these runs has logged a metric to compare, such as a loss, an accuracy or a reward.",
            tone="neutral",
        )
    direction = metric_direction(metric) or "min"
    masker = Masker()
    compared = [
        replace(one, key=run.place, name=masker.mask_name(one.name), config=masker.mask(dict(one.config)))
        for run, one in zip(runs, sweep_runs(runs, metric, direction), strict=True)
    ]
    statuses = {run.place: run.status.name for run in runs}
    found = answer(compared, metric=metric, direction=direction, project=project)
    return sweep_document(compared, found, statuses, others=total - len(runs))


def sweep_document(
    runs: Sequence[SweepRun], found: SweepAnswer, statuses: Mapping[str, str], *, others: int = 0
) -> Document:
    """Return the report of an answer; `statuses` are by the key of a run, `others` are those left out."""
    text = answer_text(found)
    said = [" ".join(part) for part in (text.best[1:], text.why, text.luck, text.next) if part]
    sections = [Section(title="The answer", blocks=[Text(text=part) for part in said])] if said else []
    if found.factors:
        sections.append(Section(title="What explains the differences", blocks=_importance(found)))
    varied = [key for factor in found.factors for key in factor.keys] or list(found.varied)
    scatters = [chart for key in varied[:_MAX_SCATTERS] if (chart := _scatter(runs, found, key)) is not None]
    if scatters:
        sections.append(Section(title=f"{found.metric} by setting", blocks=scatters, columns=True))
    sections.append(Section(title="Runs", blocks=_table(runs, found, varied, statuses)))
    tones: dict[str, Tone] = {"decided": "good", "undecided": "warning"}
    return Document(
        title=f"Sweep of {count(len(runs))} runs",
        kind="Sweep",
        verdict=text.best[0],
        tone=tones.get(found.verdict, "info"),
        about=[
            f"{found.metric}, {'lower' if found.direction == 'min' else 'higher'} is better",
            *([f"{count(others)} runs of other projects or settings are left out"] if others else []),
        ],
        sections=sections,
        made=f"Made {clock(time.time())} from {count(len(runs))} runs.",
    )


def _importance(found: SweepAnswer) -> list[Block]:
    items = [
        Bar(
            label=factor.name,
            share=factor.share,
            value=percent(factor.share),
            about=f"{100 * factor.low:.0f} to {percent(factor.high)}",
            low=factor.low,
            high=factor.high,
            tone="info" if factor.named else "neutral",
        )
        for factor in found.factors[:_MAX_BARS]
    ]
    return [
        Bars(head=("setting", "explains", "90 % interval"), items=items),
        Text(
            text=f"{beyond_chance(found, 'Coloured')} {count(found.counted)} runs, "
            f"{count(found.configurations)} different settings.",
            quiet=True,
        ),
    ]


def _scatter(runs: Sequence[SweepRun], found: SweepAnswer, key: str) -> Block | None:
    shown = [run for run in runs if run.config.get(key) is not None and run.is_measured]
    if len(shown) < 2:
        return None
    numbers = [as_number(run.config[key]) for run in shown]
    are_numbers = all(number is not None for number in numbers)
    labels = list(dict.fromkeys(setting_text(run.config[key]) for run in shown))
    if not are_numbers and len(labels) > 12:
        return None
    best = found.best.key if found.best is not None else None
    dots = [
        Dot(
            name=run.name,
            x=float(number)
            if are_numbers and number is not None
            else labels.index(setting_text(run.config[key])),
            y=float(run.value or 0.0),
            is_best=run.key == best,
            is_open=run.state != "done",
        )
        for run, number in zip(shown, numbers, strict=True)
    ]
    return Scatter(
        title=f"{found.metric} by {key}",
        x=key,
        y=found.metric,
        dots=dots,
        log_x=are_numbers and is_log_scale([number for number in numbers if number is not None]),
        categories=() if are_numbers else labels,
    )


def _table(
    runs: Sequence[SweepRun], found: SweepAnswer, varied: Sequence[str], statuses: Mapping[str, str]
) -> list[Block]:
    sign = 1.0 if found.direction == "min" else -1.0
    ordered = sorted(
        runs,
        key=lambda run: (not run.is_measured, run.state != "done", sign * (run.value or 0.0), run.key),
    )
    keys = list(varied[:_MAX_SETTINGS])
    rows = [
        (
            run.name,
            short_number(run.value),
            *(setting_text(run.config.get(key)) for key in keys),
            statuses.get(run.key, run.state),
        )
        for run in ordered[:_MAX_ROWS]
    ]
    best = {(at, 1) for at, run in enumerate(ordered) if found.best is not None and run.key == found.best.key}
    more = len(ordered) - len(rows)
    return [
        Table(
            title="",
            head=("run", found.metric, *keys, "status"),
            rows=rows,
            best=frozenset(best),
            left_out=f"{count(more)} more runs are left out." if more else "",
        )
    ]
