"""How sure a finding is, in words."""

from __future__ import annotations

from toolkit.diagnostics.catalogue import CATALOGUE
from toolkit.diagnostics.confidence import CERTAIN, counts_behind, is_calibrated
from toolkit.diagnostics.confidence_table import KINDS, RUNS


def sure_text(kind: str, confidence: float | None) -> str:
    """Return a few words, such as "89 % sure"; empty if there is nothing to say."""
    if confidence is None:
        # A record of an earlier version has no confidence, whatever its kind.
        return "not calibrated" if kind in CATALOGUE and not is_calibrated(kind) else ""
    return "certain" if confidence == CERTAIN else f"{100 * confidence:.0f} % sure"


def basis_text(kind: str, confidence: float | None) -> str:
    """Return what the words rest on, as a sentence; empty if there are none."""
    if not sure_text(kind, confidence):
        return ""
    if confidence is None:
        return "How often such findings are right is not known: no labelled run has one."
    if confidence == CERTAIN:
        return "The value is in the record."
    counts = counts_behind(confidence)
    if counts is None or kind not in KINDS:
        return "The share of such findings that were right on labelled runs."
    right, of, unsure = counts
    own_right, own_of = KINDS[kind]
    return (
        f"On {RUNS} labelled runs {right} of {of} findings with evidence as strong as this were right, "
        f"without {unsure} where a person was unsure, too; of this kind {own_right} of {own_of}."
    )
