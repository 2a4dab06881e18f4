"""The detectors."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from toolkit.telemetry.diagnostics.detector import Detector
from toolkit.telemetry.diagnostics.incident import Incidents
from toolkit.telemetry.diagnostics.metric_aliases import (
    DATA_TIME,
    ENTROPY,
    GPU_UTIL,
    LORA_B,
    REWARD,
    ZERO_GRADS,
)

DETECTORS: Final = {
    "non_finite": "non_finite:NonFinite",
    "instability": "instability:Instability",
    "exploding_grad": "exploding_grad:ExplodingGradients",
    "plateau": "plateau:Plateau",
    "val_spike": "val_spike:ValidationSpike",
    "overfit": "overfit:Overfit",
    "vanishing_grad": "no_gradients:VanishingGradients",
    "throughput": "throughput:ThroughputDrop",
    "data_starvation": "waiting:DataStarvation",
    "gpu_idle": "waiting:IdleGpu",
    "memory_growth": "memory_growth:MemoryGrowth",
    "stall": "stall:Stall",
    "learning_rate": "learning_rate:LearningRate",
    "loss_scale": "loss_scale:LossScale",
    "straggler": "straggler:Straggler",
    "rank_nan": "rank_nan:RankNan",
    "reward_hacking": "reinforcement:RewardHacking",
    "policy_collapse": "reinforcement:PolicyCollapse",
    "label_leak": "label_leak:LabelLeak",
    "dead_lora": "no_gradients:DeadLora",
    "data_repeated": "data_repeated:DataRepeated",
    "underflow": "underflow:Underflow",
    "time_limit": "throughput:TimeLimit",
}
"""File and class of each detector by its name, in the order in which they look at a record.

To add one: write the class, add a line here, add its kind of finding to `catalogue.py` and to docs/detectors.md.
"""


SEVERAL_RANKS: Final = "several ranks"
"""Not a signal: the run has declared several ranks, or there is a record of another one than rank 0."""
TIME_LIMIT: Final = "time limit"
"""Not a signal either: the start record says when the job must end."""

READ_SELDOM: Final = {
    "data_starvation": (DATA_TIME,),
    "gpu_idle": (GPU_UTIL,),
    "reward_hacking": (REWARD,),
    "policy_collapse": (ENTROPY,),
    "dead_lora": (LORA_B,),
    "underflow": (ZERO_GRADS,),
    "straggler": (SEVERAL_RANKS,),
    "rank_nan": (SEVERAL_RANKS,),
    "time_limit": (TIME_LIMIT,),
}
"""Detectors whose signals most records do not have, with these: they are imported when there is such a record.

None of them may do anything in `restart` before it has read a record.
"""


def make_detector(name: str, incidents: Incidents) -> Detector:
    """Return the detector called `name`; it writes to `incidents`."""
    file, _, class_name = DETECTORS[name].partition(":")
    detector: Detector = getattr(import_module(f"{__name__}.{file}"), class_name)(incidents)
    return detector
