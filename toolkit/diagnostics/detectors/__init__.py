"""The detectors: one file each."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from toolkit.diagnostics.detector import Detector
from toolkit.diagnostics.incident import Incidents

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


def make_detectors(incidents: Incidents) -> list[Detector]:
    """Return one of each detector; they all write to `incidents`."""
    return [getattr(import_module(f"{__name__}.{file}"), name)(incidents) for file, name in DETECTORS.items()]
