"""Labels of the time ledger's entries, and advice on the largest cost besides training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from toolkit.telemetry.timing import names
from toolkit.telemetry.timing.ledger import Ledger

LABELS: Final[Mapping[str, str]] = {
    names.IN_TRAINING: "training",
    names.IN_DATA_WAIT: "waiting for data",
    names.IN_VALIDATION: "validation",
    names.IN_CHECKPOINT: "checkpoints",
    names.IN_SAMPLING: "sampling",
    names.IN_STARTUP: "start-up",
    names.IN_CONTROL: "control / paused",
    names.IN_OTHER: "other spans",
    names.STALLED: "stalled",
    names.REWORK: "rework after a crash",
    names.UNACCOUNTED: "unaccounted",
}

_MIN_FRACTION: Final = 0.05
_LARGE: Final = 0.2

# The subject of the sentence, and what would help.
_ADVICE: Final[Mapping[str, tuple[str, str]]] = {
    names.IN_DATA_WAIT: (
        "Waiting for data",
        "Try more loader workers, prefetching, or caching prepared samples on a fast disk.",
    ),
    names.IN_VALIDATION: ("Validation", "Validate less often, or on fewer batches."),
    names.IN_CHECKPOINT: (
        "Saving checkpoints",
        "Save less often, save less (adapter weights only), or save asynchronously.",
    ),
    names.IN_SAMPLING: ("Sampling", "Sample less often, with fewer prompts or fewer steps per image."),
    names.IN_STARTUP: (
        "Start-up",
        "Cache what it prepares (latents, text embeddings, compiled code). It matters less in longer runs.",
    ),
    names.IN_CONTROL: ("Pausing on request", "Nothing is wrong: it was requested."),
    names.IN_OTHER: ("Time in other spans", "The page Time and machine lists them by name."),
    names.STALLED: (
        "Being stalled",
        "Look for the cause under Alerts and under Time and machine: a full disk, a hung loader, a lost mount.",
    ),
    names.REWORK: ("Rework after a crash", "Save checkpoints more often, so that less is lost."),
    names.UNACCOUNTED: (
        "Time outside any span",
        "Add `with log.span(...)` around that work to give it a name.",
    ),
}


@dataclass(frozen=True, slots=True)
class Advice:
    """The largest cost besides training, and what would help."""

    text: str
    much: bool
    """Whether it is large enough to need attention."""


def label_of(entry: str) -> str:
    """Return the label of an entry."""
    return LABELS.get(entry, entry)


def has_content(ledger: Ledger) -> bool:
    """Return whether there is anything to show: time spent on training, rework or stalls."""
    shown = {names.IN_TRAINING, names.REWORK, names.STALLED}
    return ledger.wall_s > 0 and any(line.seconds > 0 for line in ledger.lines if line.entry in shown)


def advice_on(ledger: Ledger) -> Advice | None:
    """Return advice on the largest entry besides training; None if all of them are small."""
    others = [line for line in ledger.lines if line.entry in _ADVICE]
    worst = max(others, key=lambda line: line.seconds, default=None)
    if worst is None or worst.share < _MIN_FRACTION:
        return None
    subject, help_text = _ADVICE[worst.entry]
    text = f"{subject} is the largest cost besides training: {percent(worst.share)} of the time. {help_text}"
    return Advice(text=text, much=worst.share >= _LARGE and worst.entry != names.IN_CONTROL)


def percent(fraction: float) -> str:
    """Return a fraction as a percentage: small ones keep a digit, and nothing above zero becomes 0 %."""
    if 0 < fraction < 0.001:
        return "< 0.1 %"
    if 0.995 <= fraction < 1:
        return f"{100 * min(fraction, 0.999):.1f} %"
    return f"{100 * fraction:.1f} %" if 0 < fraction < 0.0995 else f"{100 * fraction:.0f} %"
