"""How often findings were right on labelled runs.

Written by `make evaluate QUESTION=confidence` on 2026-11-18.
"""

from __future__ import annotations

from typing import Final

RUNS: Final = 264

STRENGTHS: Final = (
    (0.24, 0, 6, 6),
    (0.56, 9, 17, 10),
    (0.93, 70, 73, 64),
    (0.97, 43, 43, 8),
)
"""For each strength of the evidence, weakest first: confidence, right, judged and unsure findings."""

KINDS: Final = {
    "data_starvation": (1, 1),
    "divergence": (18, 19),
    "exploding_grad": (4, 4),
    "low_gpu_util": (4, 4),
    "nan": (14, 14),
    "overfit": (20, 21),
    "plateau": (14, 21),
    "spike": (40, 40),
    "throughput_drop": (1, 1),
    "val_spike": (7, 7),
}
"""For each kind with a judged finding: right and judged ones. Those on unsure labels are not judged."""
