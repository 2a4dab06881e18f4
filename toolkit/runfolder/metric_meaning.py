"""What a metric's name says: whether lower or higher is better, and whether it evaluates the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, Literal

Direction = Literal["min", "max"]

TRAIN_LOSSES: Final = (
    "train_loss",
    "loss",
    "train/loss",
    "loss/train",
    "training_loss",
    # ai-toolkit, Keras, kohya's scripts, Lightning
    "Loss",
    "epoch_loss",
    "loss/loss",
    "loss/current",
    "train_loss_step",
)
"""Names of the training loss; the first one that a run has is used."""

_LOWER: Final = frozenset(
    "loss error perplexity ppl mse rmse mae nll bpb wer cer fid kid lpips brier regret".split()
)
_HIGHER: Final = frozenset(
    "acc accuracy accuracies f1 auc auroc map recall precision reward rewards rew return returns margin margins score "
    "scores psnr ssim bleu rouge ndcg mrr iou dice r2 throughput".split()
)
_HIGHER_PARTS: Final = ("per_sec", "per_second", "gpu_util", "win_rate", "exact_match", "pass@")
_SPEEDS: Final = ("per_sec", "per_second", "throughput", "gpu_util")
_NEITHER: Final = frozenset("std stddev stderr var variance count".split())
_EVALUATION: Final = frozenset("val valid validation eval evaluation test dev".split())
_OF_TIME: Final = frozenset("time runtime seconds secs ms latency".split())
INTERNAL: Final = ("time/", "device_time/", "ledger/")
"""What telemetry itself measures about a run begins with these."""
NOT_RESULTS: Final = (*INTERNAL, "system/", "profiling/")
"""Metrics by which no two runs are compared begin with these."""


@lru_cache(maxsize=4096)
def metric_direction(name: str) -> Direction | None:
    """Return whether lower ("min") or higher ("max") values of a metric are better; None if its name does not say."""
    words, text = _words(name), name.lower()
    if words & _NEITHER:
        return None
    # Names such as LossG and cross_entropy_loss2 are losses too.
    if words & _LOWER or "loss" in text:
        return "min"
    return "max" if words & _HIGHER or any(part in text for part in _HIGHER_PARTS) else None


@lru_cache(maxsize=4096)
def is_evaluation(name: str, *, event: str = "step") -> bool:
    """Return whether a metric in a record of kind `event` measures how good the model is.

    In an `eval` record every metric does, except how long it took. Elsewhere the name must say so: it has a word such
    as val, eval or test, or is a reward or an accuracy. The training loss counts in `step` records.
    """
    text, words = name.lower(), _words(name)
    if text.startswith(NOT_RESULTS) or words & _OF_TIME or any(part in text for part in _SPEEDS):
        return False
    if event == "eval" or words & _EVALUATION:
        return True
    direction = metric_direction(name)
    return direction == "max" or (name in TRAIN_LOSSES if event == "step" else direction is not None)


def is_train_loss(name: str) -> bool:
    """Return whether a metric is the training loss."""
    return name in TRAIN_LOSSES


def guess_primary_metric(runs: Iterable[Collection[str]]) -> str | None:
    """Return the metric by which runs are compared, from the names of the evaluations of each run.

    Of those that at least half of the runs share: a validation loss, else another evaluation, else a reward or an
    accuracy, else the training loss. Without a shared one, the most common of the best kind. None without any.
    """
    named = [names for names in runs if names]
    counts = Counter(name for names in named for name in names if metric_direction(name) is not None)
    if not counts:
        return None
    order = {
        name: place for place, name in enumerate(dict.fromkeys(name for names in named for name in names))
    }
    shared = [name for name, count in counts.items() if 2 * count >= len(named)]
    return min(shared or counts, key=lambda name: (_kind(name), -counts[name], order[name]))


_USUAL: Final = (
    "val_loss",
    "eval_loss",
    "eval/loss",
    "val/loss",
    "validation_loss",
    "loss/val",
    "epoch/val_loss",
)


def _kind(name: str) -> int:
    if name in _USUAL:
        return 0
    if _words(name) & _EVALUATION:
        return 1 if "loss" in name.lower() else 2
    if is_train_loss(name):
        return 5
    if metric_direction(name) == "max":
        # The sum of several rewards before one of its parts.
        return 3 if name.count("/") == 0 or name.lower().endswith(("/reward", "/ep_rew_mean")) else 4
    return 4


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", name.lower()))
