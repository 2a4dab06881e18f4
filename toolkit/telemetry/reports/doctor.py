"""The report of a diagnosis: what is wrong with a run, the evidence, and what to change."""

from __future__ import annotations

from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.reports import run_parts as parts
from toolkit.telemetry.reports.config_change import change_for
from toolkit.telemetry.reports.content import RunContent
from toolkit.telemetry.reports.document import Block, Bullets, Code, Document, Section, Text
from toolkit.telemetry.reports.finding_text import ending_details, ending_text
from toolkit.telemetry.runs.formatting import duration


def doctor_report(run: RunContent) -> Document:
    """Return the report of what is wrong with a run."""
    verdict, tone = parts.verdict_of(run)
    cards = parts.finding_cards(run, in_full=True)
    nothing = Text(text="The detectors found nothing wrong.")
    spent = parts.time_section(run)
    sections = [
        Section(title="How the run ended", blocks=_ending(run)),
        Section(title="Findings", blocks=cards or [nothing]),
        *([spent] if spent is not None else []),
        Section(title="What to change in the configuration", blocks=_change(run)),
    ]
    return Document(
        title=run.name,
        kind="Diagnosis",
        verdict=verdict,
        tone=tone,
        about=parts.about_run(run),
        sections=sections,
        made=parts.made_text([run]),
    )


def _ending(run: RunContent) -> list[Block]:
    blocks: list[Block] = []
    if run.ending is None or not run.ending.status:
        blocks.append(Text(text="Its records do not say how it ended."))
    else:
        status, rest = ending_text(run.ending)
        why = run.ending.why if run.ending.why not in rest and run.ending.why != status else ""
        after = f" after {duration(run.duration_s)}" if run.duration_s and not run.ending.is_bad else ""
        said = f"{parts.how_it_ended(run)}{after}."
        blocks.append(Text(text=f"{said} {why.rstrip('.')}." if why else said))
        blocks += [Text(text=line) for line in ending_details(run.ending, run.name) if run.ending.is_bad]
        if not run.ending.sure:
            blocks.append(Text(text="This is not certain: it follows from the run's last sign.", quiet=True))
    figures = parts.key_figures(run)
    if figures is not None:
        blocks.append(figures)
    blocks += [Text(text=note, quiet=True) for note in run.notes]
    return blocks


def _change(run: RunContent) -> list[Block]:
    worst: list[Finding] = run.worst_first()
    given = run.config or dict(run.settings)
    change = change_for(given, worst)
    if change.diff:
        return [
            Code(text=change.diff, is_diff=True),
            Bullets(title="Why", items=change.reasons),
            Text(
                text="The diff is against the configuration that the run recorded, so comments and the order of the "
                "file are not in it. Change one thing at a time where you can.",
                quiet=True,
            ),
        ]
    if not worst:
        return [Text(text="Nothing: there is no finding to act on.")]
    if not given:
        return [Text(text="The run recorded no configuration. The advice at each finding applies.")]
    return [Text(text="No finding asks for another setting. The advice at each finding applies.")]
