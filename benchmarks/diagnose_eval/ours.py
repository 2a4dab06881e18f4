"""Our detectors on a corpus: what they report, when, and whether live and history agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.diagnose_eval.corpus import Prediction, Rows
from toolkit.telemetry.diagnostics.examiner import Examiner, examine
from toolkit.telemetry.diagnostics.finding import INFO, SEVERITIES, Finding

_AS_LABELLED = {"memory_growth": "mem_leak"}
"""Kinds that have another name in the corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """One report of a finding, at the step of the record that caused it."""

    step: int
    finding: Finding

    @property
    def is_loud(self) -> bool:
        """Whether it is an open finding above `info`."""
        return self.finding.severity != INFO and self.finding.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The result of examining a run record by record."""

    findings: Sequence[Finding]
    tellings: Sequence[Telling]
    agrees: bool
    """Whether the same records, all at once, gave the same result."""

    def predictions(self) -> list[Prediction]:
        """Return the findings in the evaluator's format, each with the highest severity it was reported with."""
        return as_predictions(_loudest(self.findings, (telling.finding for telling in self.tellings)))


def predictions(rows: Rows) -> list[Prediction]:
    """Return the findings of a live run in the evaluator's format, each with the highest severity it ever had."""
    return as_predictions(findings_of(rows))


def findings_of(rows: Rows) -> list[Finding]:
    """Return the findings of a live run, each with the highest severity it ever had.

    Whoever was alerted is not helped by a warning that is taken back later.
    """
    examiner = Examiner()
    reported = [finding for row in rows for finding in examiner.take([row])]
    return _loudest(examiner.findings(), reported)


def _loudest(findings: Iterable[Finding], reported: Iterable[Finding]) -> list[Finding]:
    highest: dict[str, str] = {}
    for finding in reported:
        before = highest.get(finding.id, finding.severity)
        highest[finding.id] = max(before, finding.severity, key=SEVERITIES.index)
    return [replace(finding, severity=highest.get(finding.id, finding.severity)) for finding in findings]


def as_predictions(findings: Iterable[Finding]) -> list[Prediction]:
    """Return `findings` in the evaluator's format."""
    return [
        {
            "kind": _AS_LABELLED.get(finding.kind, finding.kind),
            "start_step": finding.start_step,
            "end_step": finding.end_step,
            "detected_step": finding.noticed_step,
            "severity": finding.severity,
        }
        for finding in findings
    ]


def follow(rows: Rows) -> Examined:
    """Examine the records one by one, as in a live run."""
    examiner = Examiner()
    tellings = []
    step = 0
    for row in rows:
        step = max(step, int(row["global_step"]))
        tellings += [Telling(step=step, finding=finding) for finding in examiner.take([row])]
    findings = examiner.findings()
    return Examined(findings=findings, tellings=tellings, agrees=findings == list(examine(rows)))
