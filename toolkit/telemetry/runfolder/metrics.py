"""Which fields of a record are numbers of a curve, and what their names mean: one rule for every reader."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.records import (
    ENVELOPE,
    EPOCH,
    EVAL,
    LOSS_JUMP,
    NAN_INF_DETECTED,
    STEP,
    SYSTEM,
    Record,
)

KINDS: Final = (STEP, EVAL, EPOCH, SYSTEM)
"""The kinds of records whose numbers are metrics; columns have the indices. All others are events."""
# No set: a file may have a list as its event.
CARRIES_METRICS: Final = KINDS

NOT_METRICS: Final = frozenset({*ENVELOPE, "global_step", "epoch", NAN_INF_DETECTED, LOSS_JUMP})
"""Numbers of such records that are not metrics."""

EPOCH_PREFIX: Final = "epoch/"
"""In front of the name of an epoch record's metric: it is another curve than the one of the steps."""

OF_THE_MACHINE: Final = ("gpu", "cpu_", "ram_", "process_", "swap_", "disk_", "net_")
"""How the names of measurements of the machine begin."""

MAX_METRICS: Final = 5_000
"""Further names are counted and left out: a log with a new name in every record would fill the memory."""

_LARGEST_SESSION = 2**31 - 1


class Position(NamedTuple):
    """Where a record is on the x axes; NaN where it does not say."""

    time: float
    elapsed: float
    step: float
    epoch: float
    session: int
    """0 where the record has none."""


def position_of(record: Record) -> Position:
    """Return where `record` is on the x axes, and its session."""
    record = with_non_finite(record)
    session = as_float(record.get("session"))
    return Position(
        as_float(record.get("time")),
        as_float(record.get("elapsed")),
        as_float(record.get("global_step")),
        as_float(record.get("epoch")),
        int(min(max(session, 0), _LARGEST_SESSION)) if math.isfinite(session) else 0,
    )


def metrics_of(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each metric in `record`, in the order of its fields, NaN and infinity restored.

    A boolean counts as 0 or 1, an integer beyond a double as NaN. A record that is an event has no metrics.
    """
    event = record.get("event")
    if event not in CARRIES_METRICS:
        return
    prefix = EPOCH_PREFIX if event == EPOCH else ""
    for name, value in with_non_finite(record).items():
        if name in NOT_METRICS:
            continue
        if type(value) is float:
            yield prefix + name, value
        elif isinstance(value, (int, float)):
            yield prefix + name, as_float(value)


def as_float(value: object) -> float:
    """Return a number as a float, and NaN for anything else."""
    if type(value) is float:
        return value
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


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
    "train/train_loss",
)
"""Names of the training loss; the first one that a run has is used."""

LIKELY: Final = ("train_loss", "val_loss", "lr", "grad_norm", "samples_per_sec")
"""The metrics that people compare runs by, the first one first."""

VAL_LOSSES: Final = ("val_loss", "eval_loss", "eval/loss", "val/loss", "validation_loss", "loss/val")

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


def _kind(name: str) -> int:
    if name.removeprefix(EPOCH_PREFIX) in VAL_LOSSES:
        return 0
    if _words(name) & _EVALUATION:
        return 1 if "loss" in name.lower() else 2
    if name in TRAIN_LOSSES:
        return 5
    if metric_direction(name) == "max":
        # The sum of several rewards before one of its parts.
        return 3 if name.count("/") == 0 or name.lower().endswith(("/reward", "/ep_rew_mean")) else 4
    return 4


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", name.lower()))
