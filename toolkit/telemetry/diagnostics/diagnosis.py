"""What is wrong with one run: the answer that the command, agents, reports, notebooks and pages show."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.diagnostics.ending import Ending, Endings, RunError
from toolkit.telemetry.diagnostics.finding import CRITICAL, SEVERITIES, Finding, ranks_in
from toolkit.telemetry.runfolder.evidence.batches import Batches, read_batches
from toolkit.telemetry.runfolder.manifest import Manifest, incomplete_mirrors

_OF_ONE_BATCH: Final = ("spike", "nan", "divergence", "exploding_grad", "rank_nan")
"""What a batch may have done: its samples are named, where they were recorded."""
_SAYS_TO_LOOK: Final = re.compile(r"batch(?:es)? .*\bstep")


class NoRecordsError(ValueError):
    """A run without readable records; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with one run."""

    name: str
    path: Path = field(default_factory=Path)
    findings: Sequence[Finding] = ()
    """In the order in which they were detected."""
    ending: Ending | None = None
    """How it ended, or that it is running; None if unknown."""
    errors: Sequence[RunError] = ()
    """Its distinct errors of all sessions and ranks, but for the one that ended it."""
    records: int = 0
    bad_lines: int = 0
    """Unreadable lines."""
    is_cut: bool = False
    """Whether its records end before the last one that run.json counts; a note says so."""
    manifest: Manifest | None = None
    notes: Sequence[str] = ()
    """Remarks about how it was read."""
    left_out: int = 0
    """How many findings and errors were not asked for."""
    is_whole: bool = True
    """Whether all kinds were asked for: only then the ending counts."""

    @property
    def is_bad(self) -> bool:
        """Whether the run is unhealthy: it ended badly, records are missing, or one of these is critical."""
        ended_badly = self.ending is not None and self.ending.is_bad
        severities = {*(one.severity for one in self.findings), *(one.severity for one in self.errors)}
        return (self.is_whole and (ended_badly or self.is_cut)) or CRITICAL in severities

    def only(self, min_severity: str, kinds: Container[str] | None = None) -> Diagnosis:
        """Return it with what is at least so severe, and the samples of batches; with `kinds`, only these findings."""
        asked = SEVERITIES[SEVERITIES.index(min_severity) :]
        findings = [
            one for one in self.findings if one.severity in asked and (kinds is None or one.kind in kinds)
        ]
        errors = [error for error in self.errors if kinds is None and error.severity in asked]
        return replace(
            self,
            findings=findings if self.manifest is None else with_samples(findings, self.path),
            errors=errors,
            left_out=len(self.findings) - len(findings) + len(self.errors) - len(errors),
            is_whole=kinds is None,
        )


def with_samples(findings: Sequence[Finding], folder: Path) -> Sequence[Finding]:
    """Name the samples of the batches that may have done it, as far as the run in `folder` recorded them.

    They stand first in the advice, at the line that says to look at the batch; the message names them where none does.
    """
    suspects = [one for one in findings if one.kind in _OF_ONE_BATCH and "lr_before" not in one.evidence]
    # What one rank alone had is in its own file.
    ranks = {one.id: next(iter(ranks_in(one.evidence)), 0) for one in suspects}
    batches = {rank: read_batches(folder, rank) for rank in set(ranks.values())}
    return [_with_samples(one, batches[ranks[one.id]]) if one.id in ranks else one for one in findings]


def _with_samples(finding: Finding, batches: Batches) -> Finding:
    step = finding.start_step
    samples = "" if step is None else batches.samples_text(step, finding.session)
    about = [line for line in finding.advice if _SAYS_TO_LOOK.search(line)]
    if not samples or not about:
        return replace(finding, message=f"{finding.message} {samples}".rstrip())
    rest = [line for line in finding.advice if line not in about]
    return replace(finding, advice=(*(f"{line} {samples}" for line in about), *rest))


def notes_about(endings: Endings, manifest: Manifest | None) -> list[str]:
    """Return what the run itself said of its telemetry: failures, files that lack records, and lost records."""
    notes = []
    times, first = endings.records.of_telemetry, endings.records.first_of_telemetry
    if times:
        said = f"{'; first' if times > 1 else ''}: {first}" if first else ""
        notes.append(f"telemetry itself failed {'once' if times == 1 else f'{times:,} times'}{said}")
    incomplete = incomplete_mirrors(manifest)
    if incomplete:
        notes.append(f"the last records are missing in {incomplete}; `telemetry repair` rebuilds metrics.csv")
    lost = endings.lost_records
    if lost:
        notes.append(f"the run declared {lost:,} {'record' if lost == 1 else 'records'} lost")
    return notes
