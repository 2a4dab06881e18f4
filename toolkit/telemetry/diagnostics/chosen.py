"""What to say about a diagnosed run: its findings and errors of some severity and kinds."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Final

from toolkit.telemetry.diagnostics.ending import RunError
from toolkit.telemetry.diagnostics.finding import CRITICAL, SEVERITIES, Finding
from toolkit.telemetry.diagnostics.history import Diagnosis
from toolkit.telemetry.runfolder.evidence.batches import Batches, read_batches

_OF_ONE_BATCH: Final = ("spike", "nan", "divergence", "exploding_grad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is said about one run, and whether it is bad."""

    found: Diagnosis
    findings: Sequence[Finding]
    errors: Sequence[RunError]
    """Those that did not end the run."""
    left_out: int
    is_bad: bool


def choose(found: Diagnosis, min_severity: str, kinds: Container[str] | None = None) -> Chosen:
    """Return the findings, with the samples of their batches, and errors that are at least so severe.

    With `kinds`, only findings of these.
    """
    lowest = SEVERITIES.index(min_severity)
    findings = [
        finding
        for finding in found.findings
        if (kinds is None or finding.kind in kinds) and SEVERITIES.index(finding.severity) >= lowest
    ]
    cause = None if found.ending is None else found.ending.error
    others = [error for error in found.errors if error != cause]
    errors = [error for error in others if kinds is None and SEVERITIES.index(error.severity) >= lowest]
    ended_badly = kinds is None and found.ending is not None and found.ending.is_bad
    severities = [finding.severity for finding in findings] + [error.severity for error in errors]
    blamed = [finding for finding in findings if finding.kind in _OF_ONE_BATCH]
    batches = read_batches(found.path) if blamed else Batches()
    texts = {finding.id: batches.samples_text(finding.start_step, finding.session) for finding in blamed}
    return Chosen(
        found=found,
        findings=[
            replace(finding, message=f"{finding.message} {texts[finding.id]}")
            if texts.get(finding.id)
            else finding
            for finding in findings
        ],
        errors=errors,
        left_out=len(found.findings) - len(findings) + len(others) - len(errors),
        is_bad=ended_badly or CRITICAL in severities or (found.is_cut and kinds is None),
    )
