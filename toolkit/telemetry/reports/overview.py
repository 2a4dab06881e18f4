"""The report of one run: is it healthy, how far is it, is the loss going down, where did the time go."""

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

_MAX_OWN: Final = 8


def overview(run: RunContent) -> Document:
    """Return the report of one run."""
    verdict, tone = parts.verdict_of(run)
    sections: list[Section] = []
    figures = parts.key_figures(run)
    if figures is not None:
        sections.append(Section(title="Key figures", blocks=[figures]))
    charts = _charts(run)
    if charts:
        sections.append(Section(title="Curves", blocks=charts, columns=True))
    cards = parts.finding_cards(run, in_full=False)
    if cards:
        sections.append(Section(title="Findings", blocks=cards))
    if run.pictures:
        sections.append(Section(title="Latest samples", blocks=[Pictures(items=run.pictures)]))
    spent = parts.time_section(run)
    if spent is not None:
        sections.append(spent)
    tables: list[Block] = [
        table for table in (parts.settings_table(run), parts.metrics_table(run)) if table is not None
    ]
    tables += [Text(text=note, quiet=True) for note in run.notes]
    if tables:
        sections.append(Section(title="Settings and metrics", blocks=tables))
    return Document(
        title=run.name,
        kind="Run report",
        verdict=verdict,
        tone=tone,
        about=parts.about_run(run),
        sections=sections,
        made=parts.made_text([run]),
    )


def _charts(run: RunContent) -> list[Block]:
    main = [name for name in (run.metric_for(LOSS), run.metric_for(VAL_LOSS)) if name is not None]
    main = [name for name in main if run.curves[name].axis == run.curves[main[0]].axis]
    own = run.own_metrics()
    if run.metric_for(LOSS) is None:
        first = primary_metric([run]) or next(iter(own), None)
        main = [first] if first is not None else []
    charts: list[Block] = []
    if main:
        lines = [Line(label=name, curve=run.curves[name], colour=at) for at, name in enumerate(main)]
        title = "Loss" if run.metric_for(LOSS) in main else main[0]
        charts.append(Chart(title=title, lines=lines, bands=parts.marks_of(run, main), large=True))
    shown = set(main)
    signals = (LR, GRAD_NORM, RATE, STEP_TIME, GPU_MEMORY, RSS, GPU_UTIL)
    usual = [run.metric_for(signal) for signal in signals]
    if usual[2] is not None:
        usual[3] = None
    if usual[4] is not None:
        usual[5] = None
    evaluations = [name for name in run.evaluations() if name not in shown]
    others = [name for name in own if name not in shown and name not in usual and name not in evaluations]
    for name in [*evaluations[:_MAX_OWN], *usual, *others[: max(0, _MAX_OWN - len(evaluations))]]:
        if name is None or name in shown:
            continue
        shown.add(name)
        charts.append(
            Chart(
                title=name,
                lines=[Line(label=name, curve=run.curves[name])],
                bands=parts.marks_of(run, [name]),
                from_zero=name in usual[2:],
            )
        )
    left_out = len([name for name in own if name not in shown])
    if left_out:
        charts.append(Text(text=f"{left_out:,} more metrics are only in the table below.", quiet=True))
    return charts
