"""How sure a finding is: the share of findings like it that were right on labelled runs."""

from __future__ import annotations

from typing import Final

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.confidence_table import KINDS, STRENGTHS
from toolkit.telemetry.diagnostics.finding import INFO, Finding
from toolkit.telemetry.diagnostics.incident import Incident

CERTAIN: Final = 1.0

TAKEN_BACK: Final = 0
"""The run contradicted it later: a validation loss that fell again, a jump that stayed, a pause that ended."""
DOUBTED: Final = 1
"""Its detector calls it `info`, or it is a plateau that ended."""
USUAL: Final = 2
CLEAR: Final = 3
"""A loss at several times its level, or one that is exactly constant."""

_NOT_A_NUMBER: Final = frozenset({"nan", "rank_nan"})
_INSTABILITY: Final = frozenset({"spike", "divergence"})


Judged = Incident | Finding


def confidence_of(found: Judged) -> float | None:
    """Return the probability that `found` is right; None if no labelled run has a finding of its kind."""
    if found.kind in _NOT_A_NUMBER:
        # It is in the record: there is nothing to be wrong about.
        return CERTAIN
    return STRENGTHS[strength_of(found)][0] if found.kind in KINDS else None


def strength_of(found: Judged) -> int:
    """Return how strong the evidence is, from `TAKEN_BACK` to `CLEAR`.

    `severity` must be the detector's own, and not one that was configured.
    """
    kind, is_doubted = found.kind, found.severity == INFO
    if kind == "plateau":
        return _of_plateau(found, is_doubted=is_doubted)
    if not found.is_open and (
        kind == "overfit" or (kind == "val_spike" and found.count > at.VAL_SPIKE_LONGEST)
    ):
        return TAKEN_BACK
    if is_doubted:
        return DOUBTED
    return CLEAR if kind in _INSTABILITY and found.evidence.get("ratio", 0.0) >= at.CLEAR_RATIO else USUAL


def counts_of(confidence: float) -> tuple[int, int, int] | None:
    """Return how many findings of this confidence were right, of how many, and how many more the labels leave open.

    None if it comes from another table.
    """
    return next((row[1:] for row in STRENGTHS if row[0] == confidence), None)


def _of_plateau(found: Judged, *, is_doubted: bool) -> int:
    if found.evidence.get("noise") == 0.0:
        return CLEAR
    if found.is_open:
        return DOUBTED if is_doubted else USUAL
    return TAKEN_BACK if is_doubted else DOUBTED
