"""What the names that people give their metrics say: which is the training loss, and what is from an evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_EVALUATION: Final = re.compile(r"(val|valid|validation|eval|evaluation|test)([_/.\-: ]|$)", re.IGNORECASE)
_TRAINING_LOSS: Final = (
    "train_loss",
    "train/loss",
    "loss",
    "training_loss",
    "loss/train",
    "train/train_loss",
)
_LEARNING_RATE: Final = ("learning_rate", "train/lr", "train/learning_rate", "train_lr")
_PER_STEP: Final = ("", "_step")
# Lightning's `grad_norm` utility gives the total of all gradients such a name.
_GRADIENT_NORM: Final = re.compile(r"(train[_/])?(grad_norm|grad_2(\.0)?_norm_total)$")


def split(metrics: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics of a step and those of an evaluation, by their names, each under the name that it had."""
    of_step: dict[str, Any] = {}
    of_evaluation: dict[str, Any] = {}
    for name, value in metrics.items():
        (of_evaluation if _EVALUATION.match(str(name)) else of_step)[str(name)] = value
    return of_step, of_evaluation


def with_known_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's metrics, and the best-known ones also under the names that pages and detectors look for.

    These are `train_loss`, `lr` and `grad_norm`; what has such a name already stays as it is.
    """
    losses = [f"{loss}{ending}" for loss in _TRAINING_LOSS for ending in _PER_STEP]
    norms = [name for name in metrics if _GRADIENT_NORM.match(name)]
    named = dict(metrics)
    for known, others in (("train_loss", losses), ("lr", _LEARNING_RATE), ("grad_norm", norms)):
        found = next((name for name in others if name in metrics), None)
        if known not in named and found is not None:
            named[known] = metrics[found]
    return named
