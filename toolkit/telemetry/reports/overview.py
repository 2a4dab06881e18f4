"""The report of one run: is it healthy, how far is it, what is wrong, where did the time go."""

from __future__ import annotations

from typing import Final

from toolkit.telemetry.diagnostics.metric_aliases import (
    GPU_MEMORY,
    GPU_UTIL,
    GRAD_NORM,
    LOSS,
    LR,
    RATE,
    RSS,
    STEP_TIME,
    VAL_LOSS,
)
from toolkit.telemetry.reports import run_parts as parts
from toolkit.telemetry.reports.content import RunContent, primary_metric
from toolkit.telemetry.reports.document import Block, Chart, Document, Line, Pictures, Section, Text
from toolkit.telemetry.reports.finding_text import ending_details

_MAX_OWN: Final = 8


def overview(run: RunContent) -> Document:
    """Return the report of one run."""
    verdict, tone = parts.verdict_of(run)
    notes = [Text(text=note, quiet=True) for note in run.notes]
    sections = [
        Section(title="Key figures", blocks=parts.key_figures(run)),
        Section(title="How the run ended", blocks=_ending(run)),
        Section(title="Curves", blocks=_charts(run), columns=True),
        Section(title="Findings", blocks=parts.finding_cards(run)),
        Section(title="Latest samples", blocks=[Pictures(items=run.pictures)] if run.pictures else []),
        Section(title="Where the time went", blocks=parts.time_spent(run)),
        Section(
            title="Settings and metrics",
            blocks=[*parts.settings_table(run), *parts.metrics_table(run), *notes],
        ),
    ]
    return Document(
        title=run.name,
        kind="Run report",
        verdict=verdict,
        tone=tone,
        about=parts.about_run(run),
        sections=[section for section in sections if section.blocks],
        made=parts.made_text([run]),
    )


def _ending(run: RunContent) -> list[Block]:
    """Return how a run ended badly, and what it was doing."""
    ending = run.ending
    if ending is None or not ending.status or (ending.sure and not ending.is_bad):
        return []
    blocks: list[Block] = [Text(text=f"{parts.how_it_ended(run)}.")]
    if ending.is_bad:
        blocks += [Text(text=line) for line in ending_details(ending, run.name)]
    if not ending.sure:
        blocks.append(Text(text="This is not certain: it follows from the run's last sign.", quiet=True))
    return blocks


def _charts(run: RunContent) -> list[Block]:
    own, evaluations, loss = run.own_metrics(), run.evaluations(), run.metric_for(LOSS)
    first = [loss, run.metric_for(VAL_LOSS)]
    if loss is None:
        first = [primary_metric([run]) or next(iter(own), None)]
    main = [name for name in first if name is not None]
    main = [name for name in main if run.curves[name].axis == run.curves[main[0]].axis]
    charts: list[Block] = []
    if main:
        lines = [Line(label=name, curve=run.curves[name], colour=at) for at, name in enumerate(main)]
        title = "Loss" if loss is not None else main[0]
        charts.append(Chart(title=title, lines=lines, bands=parts.marks_of(run, main), large=True))
    speed = run.metric_for(RATE) or run.metric_for(STEP_TIME)
    memory = run.metric_for(GPU_MEMORY) or run.metric_for(RSS)
    machine = (speed, memory, run.metric_for(GPU_UTIL))
    usual = (run.metric_for(LR), run.metric_for(GRAD_NORM), *machine)
    results = [name for name in evaluations if name not in main]
    others = [name for name in own if name not in (*main, *usual, *results)]
    names = dict.fromkeys([*results[:_MAX_OWN], *usual, *others[: max(0, _MAX_OWN - len(results))]])
    for name in names:
        if name is not None and name not in main:
            line, bands = Line(label=name, curve=run.curves[name]), parts.marks_of(run, [name])
            charts.append(Chart(title=name, lines=[line], bands=bands, from_zero=name in machine))
    left_out = len([name for name in own if name not in (*main, *names)])
    if left_out:
        charts.append(Text(text=f"{left_out:,} more metrics are only in the table below.", quiet=True))
    return charts
