"""The learning rate at each step."""

from __future__ import annotations

import math


def learning_rate(step: int, *, lr: float, kind: str, warmup: int, steps: int) -> float:
    """Return the rate for `step`, which counts from 1 to `steps`.

    It rises to `lr` in the first `warmup` steps; then it stays (`constant`) or falls to nearly nothing at the
    last step, in a straight line (`linear`) or half a wave (`cosine`).
    """
    if step <= warmup:
        return lr * step / warmup
    done = (step - warmup - 1) / max(1, steps - warmup)
    if kind == "constant":
        return lr
    return lr * (1 - done if kind == "linear" else 0.5 + 0.5 * math.cos(math.pi * done))
