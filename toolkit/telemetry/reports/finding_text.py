"""Findings, errors and the end of a run in words and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from toolkit.telemetry.core.formatting import utc_minute
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.diagnostics.confidence import CERTAIN, counts_of
from toolkit.telemetry.diagnostics.confidence_table import KINDS, RUNS
from toolkit.telemetry.diagnostics.ending import Ending, RunError
from toolkit.telemetry.diagnostics.finding import (
    CRITICAL,
    INFO,
    SEVERITIES,
    WARNING,
    Finding,
    is_about_ranks,
    ranks_in_words,
)
from toolkit.telemetry.runfolder.status import FAILED, STOPPED
from toolkit.telemetry.runfolder.untrusted import finite_in
from toolkit.telemetry.runs.formatting import clean, count, duration, learning_rate, short_number, size

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
        lines.append(f"`telemetry show {stack_from} --errors` shows the stack.")
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
    if finding.start_step is None:
        return "at an unknown step"
    if finding.is_open:
        when = f"since step {finding.start_step:,}"
    elif finding.end_step is None or finding.end_step == finding.start_step:
        when = f"step {finding.start_step:,}"
    else:
        when = f"steps {finding.start_step:,} to {finding.end_step:,}"
    if finding.noticed_step not in (None, finding.start_step):
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


def sure_text(kind: str, confidence: float | None) -> str:
    """Return a few words, such as "89 % sure"; empty if there is nothing to say."""
    if confidence is None:
        # A record of an earlier version has no confidence, whatever its kind.
        return "not calibrated" if kind in CATALOGUE and kind not in KINDS else ""
    return "certain" if confidence == CERTAIN else f"{100 * confidence:.0f} % sure"


def basis_text(kind: str, confidence: float | None) -> str:
    """Return what the words rest on, as a sentence; empty if there are none."""
    if not sure_text(kind, confidence):
        return ""
    if confidence is None:
        return "How often such findings are right is not known: no labelled run has one."
    if confidence == CERTAIN:
        return "The value is in the record."
    counts = counts_of(confidence)
    if counts is None or kind not in KINDS:
        return "The share of such findings that were right on labelled runs."
    right, of, unsure = counts
    own_right, own_of = KINDS[kind]
    return (
        f"On {RUNS} labelled runs {right} of {of} findings with evidence as strong as this were right, "
        f"without {unsure} where a person was unsure, too; of this kind {own_right} of {own_of}."
    )


_MIB: Final = 1024.0 * 1024.0
_MAX_SHOWN: Final = 20


def _percent(value: float) -> str:
    return f"{short_number(round(value, 1))} %"


def _mib(value: float) -> str:
    return size(value * _MIB)


def _whole(value: float) -> str:
    return count(int(value))


_WORDS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "level": ("level before {}", short_number),
    "first": ("first values {}", short_number),
    "peak": ("highest {}", short_number),
    "peak_step": ("(at step {})", _whole),
    "ratio": ("({} times the level)", short_number),
    "now": ("last value {}", short_number),
    "now_ratio": ("({} times the level)", short_number),
    "last_good": ("last finite value {}", short_number),
    "lr": ("learning rate {}", learning_rate),
    "lr_step": ("(at step {})", _whole),
    "lr_before": ("before that {}", learning_rate),
    "before": ("before that {}", learning_rate),
    "highest": ("highest before {}", learning_rate),
    "others_cpu_pct": ("{} of all processors used by others", _percent),
    "others_cpu_before_pct": ("{} before", _percent),
    "others_gpu_gb": ("{} GB of GPU memory not the run's", short_number),
    "others_gpu_before_gb": ("{} GB before", short_number),
    "best": ("best {}", short_number),
    "best_step": ("(at step {})", _whole),
    "rise_pct": ("{} above the best", _percent),
    "noise": ("noise {}", short_number),
    "usual": ("typical before {}", short_number),
    "lost_pct": ("{} less", _percent),
    "share_pct": ("{} of each step waiting for data", _percent),
    "mean_pct": ("GPU busy {} of the time", _percent),
    "loss": ("loss {}", short_number),
    "seconds": ("{} without a step", duration),
    "usual_s": ("a step usually takes {}", duration),
    "mib_per_1k_steps": ("{} per 1,000 steps", _mib),
    "grown_mib": ("grown by {}", _mib),
    "free_mib": ("{} free", _mib),
    "rank": ("rank {}", _whole),
    "others": ("{} on the others", duration),
    "late_s": ("{} after the limit", duration),
    "limit_time": ("limit {}", utc_minute),
    "of": ("of {} records", _whole),
    "times": ("{} records", _whole),
}
_WORDS_BY_KIND: Final[Mapping[str, Mapping[str, tuple[str, Callable[[float], str]]]]] = {
    "plateau": {"level": ("level {}", short_number)},
    "straggler": {"seconds": ("{} a step", duration), "ratio": ("{} times the others", short_number)},
    "rank_nan": {
        "finite_ranks": ("finite on {} of the others", _whole),
        "spread": ("on all at step {}", _whole),
    },
    "rank_dead": {"seconds": ("{} without a record", duration)},
    "rank_hung": {"seconds": ("{} without a step", duration)},
    "rank_silent": {"seconds": ("{} without a record", duration)},
    "loss_scale": {"level": ("highest scale {}", short_number), "of": ("of {} norms", _whole)},
}

_VALUES: Final[Mapping[str, tuple[str, str]]] = {
    "spike": ("peak", "{} at worst"),
    "divergence": ("now", "now {}"),
    "plateau": ("level", "at {}"),
    "overfit": ("rise_pct", "+{}"),
    "val_spike": ("peak", "{} at worst"),
    "exploding_grad": ("peak", "{} at worst"),
    "vanishing_grad": ("now", "now {}"),
    "throughput_drop": ("lost_pct", "−{}"),  # noqa: RUF001 - a minus sign
    "data_starvation": ("share_pct", "{} waiting"),
    "low_gpu_util": ("mean_pct", "{} busy"),
    "memory_growth": ("grown_mib", "+{}"),
    "stalled": ("seconds", "{}"),
    "hang": ("seconds", "{}"),
    "lr_problem": ("lr", "lr {}"),
    "loss_scale": ("now", "scale {}"),
    "straggler": ("rank", "rank {}"),
}
"""By kind: the number that says most about one occurrence, and the words around it."""


def numbers_of(finding: Finding) -> list[str]:
    """Return the numbers of a finding, each with its name and unit; unknown names are shown as they are."""
    numbers = finding.evidence
    found: list[str] = []
    if "ranks" in numbers:
        # Several, each under a name of its own.
        found.append(ranks_in_words(numbers))
        numbers = {name: value for name, value in numbers.items() if not is_about_ranks(str(name))}
    for name, value in list(numbers.items())[:_MAX_SHOWN]:
        if name == "first" and "level" in finding.evidence:
            # The level before is what it started with.
            continue
        words, shown = _words(finding.kind, str(name))
        if "first" in finding.evidence and name == "level":
            words = _WORDS["first"][0]
        text = words.format(shown(value) if finite_in(value) is not None else clean(str(value))[:200])
        if found and text.startswith("("):
            found[-1] += f" {text}"
        else:
            found.append(text)
    return found


def value_of(finding: Finding) -> str:
    """Return the number that says most about a finding, such as −31 %; empty if there is none."""  # noqa: RUF002
    if "ranks" in finding.evidence:
        return ranks_in_words(finding.evidence)
    name, words = _VALUES.get(finding.kind, ("", ""))
    value = finite_in(finding.evidence.get(name))
    if value is not None:
        return words.format(_words(finding.kind, name)[1](value))
    return f"{count(finding.count)} records" if finding.count > 1 else ""


def _words(kind: str, name: str) -> tuple[str, Callable[[float], str]]:
    own = _WORDS_BY_KIND.get(kind, {})
    unknown = clean(name.replace("_", " "))[:60].replace("{", "{{").replace("}", "}}")
    return own.get(name) or _WORDS.get(name) or (f"{unknown} {{}}", short_number)
