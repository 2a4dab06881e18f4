"""How a run ended and what was found in it, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toolkit.diagnostics.ending import Ending, RunError
from toolkit.diagnostics.finding import CRITICAL, INFO, SEVERITIES, WARNING, Finding
from toolkit.runfolder.status import FAILED, STOPPED

_LONGEST_LINE: Final = 300
_PLURALS: Final = {CRITICAL: "critical", WARNING: "warnings", INFO: "infos"}


def ending_text(ending: Ending) -> tuple[str, str]:
    """Return the status of a run, and where and why it ended, to be written right after it."""
    status, error = ending.status or "", ending.error
    if not ending.is_bad:
        if status != STOPPED:
            return status, ""
        why = "" if ending.why == STOPPED else f" ({first_line(ending.why)})"
        return status, f"{at_step(ending.step)}{why}"
    if error is None:
        return status, f"{at_step(ending.step)}: {first_line(ending.why)}"
    if status == FAILED:
        who = f"rank {error.rank}: " if error.rank else ""
        return status, f"{at_step(ending.step)}: {who}{message_of(error)}"
    why = "" if ending.why == status else f" ({first_line(ending.why)})"
    return status, f"{at_step(ending.step)}{why}; rank {error.rank} failed: {message_of(error)}"


def ending_details(ending: Ending, stack_from: str) -> list[str]:
    """Return what a run that ended badly was doing; `stack_from` is the run as a command line has it."""
    lines = []
    if ending.error is not None:
        lines += place_of(ending.error)
        lines.append(f"`telemetry errors {stack_from}` shows the stack.")
    if ending.inside:
        lines.append(f"Open spans: {' > '.join(ending.inside)}.")
    if ending.hang is not None:
        lines.append(ending.hang)
    return lines


def counts_text(findings: Sequence[Finding], errors: Sequence[RunError]) -> str:
    """Return how many findings of each severity there are, the worst first, and errors; empty without any."""
    counts = []
    for severity in reversed(SEVERITIES):
        count = sum(finding.severity == severity for finding in findings)
        if count:
            counts.append(f"{count:,} {severity if count == 1 else _PLURALS[severity]}")
    if errors:
        counts.append(f"{len(errors):,} {'error' if len(errors) == 1 else 'errors'}")
    return ", ".join(counts)


def when_text(finding: Finding) -> str:
    """Return the steps of a finding."""
    if finding.is_open:
        when = f"since step {finding.start_step:,}"
    elif finding.end_step is None or finding.end_step == finding.start_step:
        when = f"step {finding.start_step:,}"
    else:
        when = f"steps {finding.start_step:,} to {finding.end_step:,}"
    if finding.noticed_step != finding.start_step:
        when += f", detected at {finding.noticed_step:,}"
    if finding.resolved_step is not None:
        when += f", resolved at {finding.resolved_step:,}"
    if finding.repeats:
        when += f", came back {finding.repeats:,} times" if finding.repeats > 1 else ", came back once"
    return when


def about_error(error: RunError) -> list[str]:
    """Return where and how often an error happened."""
    return [
        *([f"rank {error.rank}"] if error.rank else []),
        *([f"step {error.step:,}"] if error.step is not None else []),
        *([f"{error.count:,} times"] if error.count > 1 else []),
    ]


def message_of(error: RunError) -> str:
    """Return the first line of an error's message."""
    return first_line(error.message or error.type)


def place_of(error: RunError) -> list[str]:
    """Return the line of code and the open spans of an error, as one line; none if both are unknown."""
    spans = " > ".join(error.spans)
    place = ", ".join(part for part in (error.where, f"in {spans}" if spans else "") if part)
    return [place] if place else []


def first_line(text: str) -> str:
    """Return the first line of a text, at most some hundred characters."""
    return text.strip().split("\n")[0][:_LONGEST_LINE]


def at_step(step: int | None) -> str:
    """Return " at step 100", or nothing."""
    return "" if step is None else f" at step {step:,}"
