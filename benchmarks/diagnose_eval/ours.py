"""Our detectors on a corpus: what they say, when they say it, and whether live and history agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.diagnose_eval.corpus import Prediction, Rows
from toolkit.diagnostics.examiner import Examiner, examine
from toolkit.diagnostics.finding import INFO, Finding

_AS_LABELLED = {"memory_growth": "mem_leak"}
"""Kinds that the corpus calls otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """One word on a finding, at the step of the record that brought it."""

    step: int
    finding: Finding

    @property
    def is_loud(self) -> bool:
        """Whether it says that something is wrong now, and not only in passing."""
        return self.finding.severity != INFO and self.finding.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a run's records gave, one by one."""

    findings: Sequence[Finding]
    tellings: Sequence[Telling]
    agrees: bool
    """Whether the same records, all at once, gave the same."""


def predictions(rows: Rows) -> list[Prediction]:
    """Return what the detectors say of a run, in the evaluator's form."""
    return as_predictions(examine(rows))


def as_predictions(findings: Iterable[Finding]) -> list[Prediction]:
    """Return `findings` in the evaluator's form."""
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
    """Return what the detectors say when the records come one by one, as from a run that is going on."""
    examiner = Examiner()
    tellings = []
    step = 0
    for row in rows:
        step = max(step, int(row["global_step"]))
        tellings += [Telling(step=step, finding=finding) for finding in examiner.take([row])]
    findings = examiner.findings()
    return Examined(findings=findings, tellings=tellings, agrees=findings == list(examine(rows)))
