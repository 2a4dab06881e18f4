"""Parts that reports of one run share: key figures, findings, where the time went, settings."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, WARNING, Finding, find_remedy
from toolkit.telemetry.diagnostics.metric_aliases import (
    GPU_UTIL,
    GRAD_NORM,
    LOSS,
    LR,
    RATE,
    STEP_TIME,
    VAL_LOSS,
)
from toolkit.telemetry.reports.content import RunContent, primary_metric, steps_of, window_of
from toolkit.telemetry.reports.document import (
    STEP,
    Band,
    Bar,
    Bars,
    Block,
    Bullets,
    Card,
    Chart,
    Curve,
    Fact,
    Facts,
    Level,
    Line,
    Point,
    Table,
    Text,
    Tone,
)
from toolkit.telemetry.reports.finding_text import (
    about_error,
    basis_text,
    counts_text,
    ending_text,
    message_of,
    numbers_of,
    place_of,
    sure_text,
    when_text,
)
from toolkit.telemetry.reports.ledger_labels import advice_on, has_content, label_of, percent
from toolkit.telemetry.runfolder.key_values import USUAL_NAMES
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runfolder.status import FAILED, LOST, RUNNING, STALLED
from toolkit.telemetry.runs.formatting import NO_VALUE, clock, count, duration, learning_rate, short_number
from toolkit.telemetry.runs.settings import setting_text

TONES: Final[Mapping[str, Tone]] = {CRITICAL: "critical", WARNING: "warning", INFO: "info"}
_MAX_FINDINGS: Final = 20
_MAX_METRICS: Final = 60
_MAX_SETTINGS: Final = 80
_LEVELS: Final = {"level": "level before", "best": "best", "usual": "typical before"}


def verdict_of(run: RunContent) -> tuple[str, Tone]:
    """Return how the run is, in a sentence, and how bad that is."""
    ended = how_it_ended(run)
    open_ones = [one for one in run.worst_first() if one.is_open]
    if not run.examined:
        return f"{ended}. Its records have not been examined.", "neutral"
    if not run.records and run.examined == 1.0:
        return f"{ended}. There are no records yet.", "critical" if run.status in (
            FAILED,
            LOST,
        ) else "neutral"
    counts = counts_text(run.findings, run.errors)
    where = f"{count(run.records)} records"
    if run.examined < 1.0:
        where = f"the {percent(run.examined)} of the records examined so far"
    if run.is_cut:
        where += "; others are missing"
    is_bad = run.ending.is_bad if run.ending is not None else run.status in (FAILED, LOST, STALLED)
    worst = (open_ones or run.worst_first())[:1]
    if worst:
        finding = worst[0]
        what = f"{title_of(finding)}, {when_text(finding).split(', ')[0]}"
        state = "" if finding.is_open else ", which is over"
        said = f"{ended}. {_sentence(counts)} in {where}. Worst: {what}{state}."
    else:
        nothing = "nothing else wrong" if is_bad else "nothing wrong"
        said = f"{ended}. {_sentence(counts or nothing)} in {where}."
    if is_bad or any(one.severity == CRITICAL for one in open_ones):
        return said, "critical"
    if any(one.severity in (CRITICAL, WARNING) for one in run.findings) or run.errors or run.is_cut:
        return said, "warning"
    return said, "good" if run.examined == 1.0 else "neutral"


def how_it_ended(run: RunContent) -> str:
    """Return how a run ended and where, without a full stop."""
    if run.ending is not None and run.ending.status:
        status, rest = ending_text(run.ending)
        rest = rest.rstrip(".")
        if not rest and run.step is not None:
            rest = f" at step {count(run.step)}"
        return f"{status.capitalize()}{rest}"
    return (run.status or "status unknown").capitalize()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def about_run(run: RunContent) -> list[str]:
    """Return status, steps, duration and start in a few words each."""
    found = [run.status] if run.status else []
    if run.step is not None:
        found.append(f"step {count(run.step)}" + (f" of {count(run.max_steps)}" if run.max_steps else ""))
    if run.duration_s is not None:
        found.append(duration(run.duration_s))
    if run.started is not None:
        found.append(f"started {clock(run.started)}")
    if run.logged_by:
        found.append(f"logged by {run.logged_by}")
    return found


def made_text(runs: Sequence[RunContent]) -> str:
    """Return when a report was made and what its data is."""
    records = sum(run.records for run in runs)
    bad = sum(run.bad_lines for run in runs)
    said = f"Made {clock(time.time())} from {count(records)} records"
    said += f", {count(bad)} lines could not be read." if bad else "."
    return f"{said} Every point of a curve was logged as it is drawn; long curves keep the extremes of each interval."


# ------------------------------------------------------------ figures and curves


def key_figures(run: RunContent) -> list[Block]:
    """Return the last values of what people look at first."""
    items: list[Fact] = []
    loss = run.metric_for(LOSS)
    if loss is not None:
        curve = run.curves[loss]
        lowest = f"lowest {_point(curve, curve.low)}" if curve.low else ""
        tone: Tone = "neutral" if math.isfinite(curve.last) else "critical"
        items.append(Fact(label="Train loss", value=short_number(curve.last), about=lowest, tone=tone))
    shown = {loss}
    best = next((name for name in (run.metric_for(VAL_LOSS), primary_metric([run])) if name), None)
    if best is not None and best not in shown:
        items.append(_evaluation(run.curves[best]))
        shown.add(best)
    for signal, label, words in (
        (LR, "Learning rate", learning_rate),
        (GRAD_NORM, "Gradient norm", short_number),
        (RATE, "Speed", short_number),
        (STEP_TIME, "Seconds per step", short_number),
        (GPU_UTIL, "GPU utilization", lambda value: f"{short_number(value)} %"),
    ):
        name = run.metric_for(signal)
        if name is None or (signal == STEP_TIME and run.metric_for(RATE) is not None):
            continue
        about = name.replace("_per_sec", " / s").replace("_", " ") if signal == RATE else ""
        items.append(Fact(label=label, value=words(run.curves[name].last), about=about))
        shown.add(name)
    if len(items) < 3:
        others = [name for name in run.own_metrics() if name not in shown][: 5 - len(items)]
        items += [Fact(label=name, value=short_number(run.curves[name].last)) for name in others]
    if run.ledger is not None and run.ledger.goodput is not None and has_content(run.ledger):
        items.append(
            Fact(label="Goodput", value=percent(run.ledger.goodput), about="of the time was training")
        )
    return [Facts(items=items)] if items else []


def _evaluation(curve: Curve) -> Fact:
    best = curve.best(metric_direction(curve.metric))
    about = f"best {_point(curve, best)}" if best is not None else ""
    return Fact(label=curve.metric, value=short_number(curve.last), about=about)


def _point(curve: Curve, point: Point) -> str:
    where = f"step {count(int(point.x))}" if curve.axis == STEP else duration(point.x)
    return f"{short_number(point.y)} at {where}"


def metrics_table(run: RunContent) -> list[Block]:
    """Return every metric with its last, lowest and highest value."""
    names = run.own_metrics()
    others = [name for name in run.curves if run.curves[name].event == "system"]
    rows = []
    for name in [*names, *others][:_MAX_METRICS]:
        curve = run.curves[name]
        best = curve.best(metric_direction(name))
        rows.append(
            (
                name,
                short_number(curve.last),
                NO_VALUE if best is None else _point(curve, best),
                NO_VALUE if curve.low is None else short_number(curve.low.y),
                NO_VALUE if curve.high is None else short_number(curve.high.y),
                count(curve.records),
                count(curve.values_not_finite) if curve.not_finite else "",
            )
        )
    more = len(names) + len(others) - len(rows)
    table = Table(
        title="Metrics",
        head=("metric", "last", "best", "lowest", "highest", "records", "NaN or infinite"),
        rows=rows,
        open=len(rows) <= 16,
        left_out=f"{count(more)} more metrics are left out." if more else "",
    )
    return [table] if rows else []


# ------------------------------------------------------------ findings


def finding_cards(run: RunContent) -> list[Block]:
    """Return a card for each finding and error, the worst first."""
    ordered = run.worst_first()
    cards: list[Block] = [_finding_card(run, finding) for finding in ordered[:_MAX_FINDINGS]]
    if len(ordered) > _MAX_FINDINGS:
        cards.append(
            Text(text=f"{count(len(ordered) - _MAX_FINDINGS)} more findings are left out.", quiet=True)
        )
    for error in run.errors[:_MAX_FINDINGS]:
        cards.append(
            Card(
                title=error.type,
                tone=TONES[error.severity],
                when=", ".join(about_error(error)),
                blocks=[
                    Text(text=message_of(error)),
                    *(Text(text=line, quiet=True) for line in place_of(error)),
                ],
            )
        )
    return cards


def _finding_card(run: RunContent, finding: Finding) -> Card:
    blocks: list[Block] = [Text(text=finding.message)]
    chart = _evidence_chart(run, finding)
    if chart is not None:
        blocks.append(chart)
    numbers = numbers_of(finding)
    if numbers:
        blocks.append(Text(text="Evidence: " + ", ".join(numbers) + ".", quiet=True))
    basis = basis_text(finding.kind, finding.confidence)
    if basis:
        blocks.append(Text(text=basis, quiet=True))
    if finding.causes:
        blocks.append(Bullets(title="Likely causes", items=finding.causes))
    if finding.advice:
        blocks.append(Bullets(title="What to try", items=finding.advice))
    remedy = find_remedy(finding.remedies, run.control) if run.status == RUNNING else None
    if remedy is not None:
        what = "knob" if remedy.is_knob else "action"
        blocks.append(
            Text(text=f"The run accepts requests: it declares the {what} {remedy.name}.", quiet=True)
        )
    title = f"{title_of(finding)}: {finding.metric}"
    sure = sure_text(finding.kind, finding.confidence)
    when = f"{when_text(finding)}, {sure}" if sure else when_text(finding)
    return Card(title=title, tone=TONES[finding.severity], when=when, blocks=blocks)


def _evidence_chart(run: RunContent, finding: Finding) -> Chart | None:
    """Return the metric of a finding around it, with the affected steps marked."""
    curve = run.evidence.get(finding.id)
    if curve is None or not curve.records:
        return None
    steps = steps_of(run.curves.get(finding.metric, curve))
    if steps is None:
        return None
    window = window_of(finding, *steps)
    end = steps[1] if finding.is_open or finding.end_step is None else float(finding.end_step)
    lines = [Line(label=finding.metric, curve=curve)]
    levels = [
        Level(value=finding.evidence[name], label=f"{label}: {short_number(finding.evidence[name])}")
        for name, label in _LEVELS.items()
        if name in finding.evidence and _is_near(finding.evidence[name], curve)
    ]
    title = title_of(finding)
    return Chart(
        title=f"{finding.metric}, steps {count(int(window[0]))} to {count(int(window[1]))}",
        lines=lines,
        bands=[Band(start=finding.start_step or 0, end=end, label=title, tone=TONES[finding.severity])],
        levels=levels,
        window=window,
    )


def _is_near(value: float, curve: Curve) -> bool:
    """Return whether a level is in the range of its curve: that of another metric would squeeze it."""
    if curve.low is None or curve.high is None or not math.isfinite(value):
        return False
    height = curve.high.y - curve.low.y
    return curve.low.y - height <= value <= curve.high.y + height


def marks_of(run: RunContent, metrics: Sequence[str]) -> list[Band]:
    """Return the severe findings about these metrics as bands."""
    found: list[Band] = []
    for finding in run.worst_first():
        steps = steps_of(run.curves[finding.metric]) if finding.metric in run.curves else None
        if finding.metric not in metrics or finding.severity == INFO or steps is None or len(found) >= 8:
            continue
        end = steps[1] if finding.is_open or finding.end_step is None else float(finding.end_step)
        label = f"{title_of(finding)}, {when_text(finding)}"
        found.append(Band(start=finding.start_step or 0, end=end, label=label, tone=TONES[finding.severity]))
    return found


# ------------------------------------------------------------ time and settings


def time_spent(run: RunContent) -> list[Block]:
    """Return where the time went; nothing if that is unknown."""
    ledger = run.ledger
    if ledger is None or not has_content(ledger):
        return []
    lines = sorted((line for line in ledger.lines if line.seconds > 0), key=lambda line: -line.seconds)
    has_power = ledger.kwh is not None
    items = [
        Bar(
            label=label_of(line.entry) + (" (inferred)" if line.inferred else ""),
            share=line.share,
            value=percent(line.share),
            about=duration(line.seconds)
            + (f", {line.kwh:.3g} kWh" if has_power and line.kwh is not None else ""),
        )
        for line in lines
    ]
    goodput = percent(ledger.goodput or 0.0)
    said = f"{duration(ledger.wall_s)} of wall time, {goodput} of it training that was kept."
    if len(ledger.sessions) > 1:
        said += f" {count(len(ledger.sessions))} sessions."
    advice = advice_on(ledger)
    return [
        Text(text=f"{said} {advice.text}" if advice is not None else said),
        Bars(head=("entry", "share", "time"), items=items, stacked=True),
        *(Text(text=note, quiet=True) for note in ledger.notes),
    ]


def settings_table(run: RunContent) -> list[Block]:
    """Return the configuration in one level, well-known settings first."""
    known = [name for name in USUAL_NAMES.values() if name in run.settings]
    names = dict.fromkeys([*known, *run.settings])
    rows = [(name, setting_text(run.settings[name])) for name in names]
    more = len(rows) - _MAX_SETTINGS
    table = Table(
        title="Settings",
        head=("setting", "value"),
        rows=rows[:_MAX_SETTINGS],
        open=len(rows) <= 12,
        left_out=f"{count(more)} more settings are left out." if more > 0 else "",
    )
    return [table] if rows else []
