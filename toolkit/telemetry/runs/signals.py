"""Which metric of a run is its training loss, its validation loss, its learning rate or its gradient norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolkit.telemetry.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR, signal_of
from toolkit.telemetry.runfolder.metrics import VAL_LOSSES
from toolkit.telemetry.runs.store import MetricInfo

KNOWN: Final = frozenset({"train_loss", "lr", "grad_norm", "sec_per_step", "samples_per_sec", "steps_folded"})
_OWN_NAMES: Final = {LOSS: "train_loss", LR: "lr", GRAD_NORM: "grad_norm"}


def metric_of(signal: str, metrics: Mapping[str, MetricInfo]) -> str | None:
    """Return the metric that is this signal: our own name, else the first one that a framework calls so."""
    own = _OWN_NAMES[signal]
    others = [name for name in metrics if name not in KNOWN and signal_of(name) == signal]
    most = max(others, key=lambda name: metrics[name].count, default=None)
    # Some tools log a mean of the whole run, as one point, under the name that we give the curve.
    if own in metrics and (most is None or metrics[own].count > 1):
        return own
    return most


def validation_loss_of(metrics: Mapping[str, MetricInfo]) -> str | None:
    """Return the metric that is the validation loss."""
    return next((name for name in (*VAL_LOSSES, "epoch/val_loss") if name in metrics), None)
