"""How often findings were right on labelled runs; written by `make diagnose-eval`."""

from __future__ import annotations

from typing import Final

RUNS: Final = 264

STRENGTHS: Final = (
    (0.18, 0, 8, 6),
    (0.55, 9, 17, 8),
    (0.89, 61, 68, 50),
    (0.97, 41, 41, 5),
)
"""For each strength of the evidence, weakest first: confidence, right, judged and unsure findings."""

KINDS: Final = {
    "data_starvation": (1, 1),
    "divergence": (23, 24),
    "exploding_grad": (4, 4),
    "low_gpu_util": (2, 2),
    "nan": (14, 14),
    "overfit": (20, 22),
    "plateau": (14, 21),
    "spike": (26, 27),
    "throughput_drop": (1, 1),
    "val_spike": (7, 8),
}
"""For each kind with a judged finding: right and judged ones. Those on unsure labels are not judged."""
