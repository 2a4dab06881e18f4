"""How the metric names of frameworks and scripts become `train_loss`, `lr`, `grad_norm` and evaluation metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from toolkit.telemetry.runfolder.metrics import TRAIN_LOSSES

_EVALUATION: Final = re.compile(r"(val|valid|validation|eval|evaluation|test)([_/.\-: ]|$)", re.IGNORECASE)
_NAMED: Final = (
    ("train_loss", tuple(f"{loss}{ending}" for loss in TRAIN_LOSSES for ending in ("", "_step"))),
    ("lr", ("learning_rate", "train/lr", "train/learning_rate", "train_lr")),
)
# Lightning's `grad_norm` utility gives the total norm such a name.
_GRADIENT_NORM: Final = re.compile(r"(train[_/])?(grad_norm|grad_2(\.0)?_norm_total)$")

ONE_LOGGER_LOSS: Final = "latest_loss"
"""The training loss in OneLogger's updates."""


def split(metrics: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics of a step and those of an evaluation, distinguished by name; names stay as they are."""
    of_step: dict[str, Any] = {}
    of_evaluation: dict[str, Any] = {}
    for name, value in metrics.items():
        (of_evaluation if _EVALUATION.match(str(name)) else of_step)[str(name)] = value
    return of_step, of_evaluation


def with_known_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's metrics, with `train_loss`, `lr` and `grad_norm` added if they have other names."""
    named = dict(metrics)
    # The names are the same on every step.
    for known, name in _known_names(tuple(metrics)):
        named[known] = metrics[name]
    return named


def as_number(value: Any) -> Any:
    """Return the number that a tensor in host memory holds; anything else, such as a GPU tensor, as it is."""
    # A number costs the logger much less than a tensor. Tensors of other classes may be spread over several ranks.
    kind = type(value)
    if kind.__name__ == "Tensor" and kind.__module__ == "torch" and value.is_cpu and value.numel() == 1:
        return value.item()
    return value


@lru_cache(maxsize=64)
def _known_names(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return which of a step's metrics are `train_loss`, `lr` and `grad_norm` under another name."""
    norms = [name for name in names if _GRADIENT_NORM.match(name)]
    found = []
    for known, others in (*_NAMED, ("grad_norm", norms)):
        name = next((name for name in others if name in names), None)
        if known not in names and name is not None:
            found.append((known, name))
    return found
