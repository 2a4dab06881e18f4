"""The detectors: one file each."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from toolkit.diagnostics.detector import Detector
from toolkit.diagnostics.incident import Incidents
from toolkit.diagnostics.metric_aliases import DATA_TIME, ENTROPY, GPU_UTIL, LORA_B, REWARD

DETECTORS: Final = {
    "non_finite": "NonFinite",
    "instability": "Instability",
    "exploding_grad": "ExplodingGradients",
    "plateau": "Plateau",
    "overfit": "Overfit",
    "val_spike": "ValidationSpike",
    "vanishing_grad": "VanishingGradients",
    "throughput": "ThroughputDrop",
    "data_starvation": "DataStarvation",
    "gpu_idle": "IdleGpu",
    "memory_growth": "MemoryGrowth",
    "stall": "Stall",
    "learning_rate": "LearningRate",
    "loss_scale": "LossScale",
    "straggler": "Straggler",
    "rank_nan": "RankNan",
    "reward_hacking": "RewardHacking",
    "policy_collapse": "PolicyCollapse",
    "label_leak": "LabelLeak",
    "dead_lora": "DeadLora",
    "lr_too_small": "LearningRateTooSmall",
    "data_repeated": "DataRepeated",
    "underflow": "Underflow",
}
"""File and class of each detector, in the order in which they look at a record.

To add one: write the file, add a line here, add its kind of finding to `catalogue.py` and to docs/detectors.md.
"""


SEVERAL_RANKS: Final = "several ranks"
"""Not a signal: the run has declared several ranks, or there is a record of another one than rank 0."""

READ_SELDOM: Final = {
    "data_starvation": (DATA_TIME,),
    "gpu_idle": (GPU_UTIL,),
    "reward_hacking": (REWARD,),
    "policy_collapse": (ENTROPY,),
    "dead_lora": (LORA_B,),
    "straggler": (SEVERAL_RANKS,),
    "rank_nan": (SEVERAL_RANKS,),
}
"""Detectors whose signals most records do not have, with these: they are imported when there is such a record.

None of them may do anything in `restart` before it has read a record.
"""


def make_detector(file: str, incidents: Incidents) -> Detector:
    """Return the detector in `file`; it writes to `incidents`."""
    detector: Detector = getattr(import_module(f"{__name__}.{file}"), DETECTORS[file])(incidents)
    return detector
