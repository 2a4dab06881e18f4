"""What a report knows about one run, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolkit.telemetry.diagnostics.ending import Ending, RunError
from toolkit.telemetry.diagnostics.finding import SEVERITIES, Finding
from toolkit.telemetry.diagnostics.metric_aliases import signal_of
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.reports.document import STEP, Curve, Picture
from toolkit.telemetry.runfolder.metrics import NOT_RESULTS, guess_primary_metric, is_evaluation
from toolkit.telemetry.runfolder.records import is_spread
from toolkit.telemetry.timing.ledger import Ledger

_FOLDED: Final = "steps_folded"
_MIN_WINDOW: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """One run."""

    name: str
    logged_by: str = ""
    """The format of another tool; empty for ours."""
    status: str = ""
    why: str = ""
    step: int | None = None
    max_steps: int | None = None
    started: float | None = None
    duration_s: float | None = None
    records: int = 0
    bad_lines: int = 0
    examined: float = 1.0
    """The fraction of its records that was read and that the detectors have seen."""
    is_cut: bool = False
    """Whether records of it are missing; a note says how many."""
    notes: Sequence[str] = ()
    curves: Mapping[str, Curve] = field(default_factory=dict)
    evidence: Mapping[str, Curve] = field(default_factory=dict)
    """By the id of a finding: its metric around it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The configuration in one level, by usual names."""
    findings: Sequence[Finding] = ()
    errors: Sequence[RunError] = ()
    """Those that did not end the run."""
    ending: Ending | None = None
    control: Mapping[str, Any] = field(default_factory=dict)
    """What may be asked of the run, from its manifest."""
    ledger: Ledger | None = None
    pictures: Sequence[Picture] = ()

    def metric_for(self, signal: str) -> str | None:
        """Return the metric that is this signal, such as the loss, with the most records."""
        names = [name for name in self.curves if signal_of(name) == signal]
        return max(names, key=lambda name: self.curves[name].records, default=None)

    def own_metrics(self) -> list[str]:
        """Return the metrics that people chart: no internals, no spreads, nothing about the machine."""
        return [
            name
            for name, curve in self.curves.items()
            if curve.event != "system"
            and name != _FOLDED
            and not name.startswith(NOT_RESULTS)
            and not is_spread(name, self.curves)
        ]

    def evaluations(self) -> list[str]:
        """Return the metrics that say how good the model is."""
        return [name for name in self.own_metrics() if is_evaluation(name, event=self.curves[name].event)]

    def worst_first(self) -> list[Finding]:
        """Return the findings: the most severe first, open before resolved, newest first."""
        return sorted(
            self.findings,
            key=lambda one: (-SEVERITIES.index(one.severity), not one.is_open, -(one.latest_step or 0)),
        )


def masked(content: RunContent) -> RunContent:
    """Return the content without secrets: in the configuration, names, messages and captions."""
    masker = Masker()
    text = masker.rewrite_text
    ending = content.ending
    if ending is not None:
        ending = replace(
            ending,
            why=text(ending.why),
            error=None if ending.error is None else _masked_error(ending.error, masker),
            hang=None if ending.hang is None else text(ending.hang),
        )
    return replace(
        content,
        name=masker.mask_name(content.name),
        why=text(content.why),
        notes=tuple(text(note) for note in content.notes),
        settings=masker.mask(dict(content.settings)),
        findings=tuple(replace(one, message=text(one.message)) for one in content.findings),
        errors=tuple(_masked_error(error, masker) for error in content.errors),
        ending=ending,
        pictures=tuple(replace(one, caption=text(one.caption)) for one in content.pictures),
    )


def _masked_error(error: RunError, masker: Masker) -> RunError:
    return replace(error, message=masker.rewrite_text(error.message), where=masker.rewrite_text(error.where))


def primary_metric(runs: Sequence[RunContent]) -> str | None:
    """Return the metric by which runs are compared."""
    return guess_primary_metric([run.evaluations() for run in runs])


def window_of(finding: Finding, first: float, last: float) -> tuple[float, float]:
    """Return the range of steps that shows a finding and what was before it."""
    began = finding.start_step or 0
    best = finding.evidence.get("best_step", began)
    start = min(began, best if best == best else began)
    end = last if finding.is_open or finding.end_step is None else finding.end_step
    margin = max(0.6 * (end - start), 0.05 * (last - first), _MIN_WINDOW)
    return max(first, start - margin), min(last, max(end, finding.latest_step or 0) + margin)


def steps_of(curve: Curve) -> tuple[float, float] | None:
    """Return the first and the last step of a curve; None if it has none."""
    points = [point.x for part in curve.parts for point in (part[0], part[-1])]
    return (min(points), max(points)) if points and curve.axis == STEP else None
