"""The time ledger in words: what its entries are called, what costs most besides training, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from toolkit.timing import names
from toolkit.timing.ledger import Ledger

WORDS: Final[Mapping[str, str]] = {
    names.IN_TRAINING: "training",
    names.IN_DATA_WAIT: "waiting for data",
    names.IN_VALIDATION: "validation",
    names.IN_CHECKPOINT: "checkpoints",
    names.IN_SAMPLING: "sampling",
    names.IN_STARTUP: "start-up",
    names.IN_CONTROL: "control / paused",
    names.STALLED: "stalled",
    names.REWORK: "lost to a crash and done again",
    names.UNACCOUNTED: "unaccounted",
}

_WORTH_SAYING: Final = 0.05
_MUCH: Final = 0.2

# What each entry costs is said as the subject of a sentence; what would help stands behind it.
_ADVICE: Final[Mapping[str, tuple[str, str]]] = {
    names.IN_DATA_WAIT: (
        "Waiting for data",
        "More loader workers, prefetching, or samples prepared once and kept on a fast disk shorten it.",
    ),
    names.IN_VALIDATION: ("Validation", "Validate less often, or on fewer batches."),
    names.IN_CHECKPOINT: (
        "Saving checkpoints",
        "Save less often, save less (adapter weights alone), or save while training goes on.",
    ),
    names.IN_SAMPLING: ("Sampling", "Sample less often, with fewer prompts or fewer steps an image."),
    names.IN_STARTUP: (
        "Start-up",
        "Keep what it prepares (latents, text embeddings, compiled code); in a longer run its share shrinks.",
    ),
    names.IN_CONTROL: ("Pausing on request", "Nothing is wrong: somebody asked for it."),
    names.STALLED: (
        "Standing still",
        "The Alerts and System pages show what the machine did at the time: a full disk, a hung loader, a lost mount.",
    ),
    names.REWORK: (
        "Work that was lost to a crash and done again",
        "Save checkpoints more often, so that less is lost.",
    ),
    names.UNACCOUNTED: (
        "Time that no span speaks of",
        "Put `with log.span(...)` around what the loop does there, and it gets a name.",
    ),
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What costs most besides training, and what would help."""

    text: str
    much: bool
    """Whether it is so much that it should be looked into."""


def words_of(entry: str) -> str:
    """Return what people call an entry."""
    return WORDS.get(entry, entry)


def is_worth_showing(ledger: Ledger) -> bool:
    """Say whether there is anything to show: a run that has trained, or lost, some of its time."""
    shown = {names.IN_TRAINING, names.REWORK, names.STALLED}
    return ledger.wall_s > 0 and any(line.seconds > 0 for line in ledger.lines if line.entry in shown)


def advice_on(ledger: Ledger) -> Advice | None:
    """Return what to say about the largest entry besides training; None where all of them are small."""
    others = [line for line in ledger.lines if line.entry in _ADVICE]
    worst = max(others, key=lambda line: line.seconds, default=None)
    if worst is None or worst.share < _WORTH_SAYING:
        return None
    subject, help_text = _ADVICE[worst.entry]
    text = f"{subject} costs most besides training: {percent(worst.share)} of the time. {help_text}"
    return Advice(text=text, much=worst.share >= _MUCH and worst.entry != names.IN_CONTROL)


def percent(share: float) -> str:
    """Return a part of the whole as people read it: small ones keep a digit, and what is there is never 0 %."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.995 <= share < 1:
        return f"{100 * min(share, 0.999):.1f} %"
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"
