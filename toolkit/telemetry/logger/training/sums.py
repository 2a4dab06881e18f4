"""Sums over iterations: count, time, samples, tokens and floating-point operations."""

from __future__ import annotations

import math
from typing import Any, Final

Attributes = dict[str, Any]
Sizes = tuple[float, float, float]
"""Samples, tokens and floating-point operations of an iteration."""

UNKNOWN: Final = math.nan
"""An amount that is unknown, and so is every sum with it."""
UNKNOWN_SIZES: Final[Sizes] = (UNKNOWN, UNKNOWN, UNKNOWN)


class Sums:
    """Count, sums and extremes of iterations, of checkpoints, or of anything else that takes time."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.shortest = math.inf
        self.longest = 0.0
        self.samples: float = 0
        self.tokens: float = 0
        self.flops = 0.0
        self._slowest, self._fastest = math.inf, 0.0
        """Operations per second of the slowest iteration and of the fastest one."""

    def add(self, seconds: float, sizes: Sizes = UNKNOWN_SIZES) -> None:
        """Count an iteration with its samples, tokens and operations."""
        samples, tokens, flops = sizes
        self.count += 1
        self.seconds += seconds
        self.shortest = min(self.shortest, seconds)
        self.longest = max(self.longest, seconds)
        self.samples += samples
        self.tokens += tokens
        self.flops += flops
        # An iteration of length 0, by a coarse clock, has no rate. A comparison with an unknown rate is never true.
        if seconds > 0.0:
            self._slowest = min(self._slowest, flops / seconds)
            self._fastest = max(self._fastest, flops / seconds)

    def times(self) -> Attributes:
        """Return mean, extremes and total of the durations, as events have them."""
        if not self.count:
            return {}
        return {
            "avg_iteration_time_sec": self.seconds / self.count,
            "min_iteration_time_sec": self.shortest,
            "max_iteration_time_sec": self.longest,
            "total_iteration_time_sec": self.seconds,
        }

    def speeds(self, world_size: int) -> Attributes:
        """Return mean samples, tokens per second, and TFLOP/s per GPU."""
        per_second = 1.0 / self.seconds if self.seconds > 0.0 else UNKNOWN
        tera = 1e12 * world_size
        return {
            "avg_batch_size": self.samples / self.count,
            "avg_tokens_per_second": self.tokens * per_second,
            "avg_tflops": self.flops * per_second / 1e12,
            "train_throughput_per_gpu": self.flops * per_second / tera,
            "train_throughput_per_gpu_max": self._fastest / tera or UNKNOWN,
            "train_throughput_per_gpu_min": self._slowest / tera if self._slowest < math.inf else UNKNOWN,
        }


def known(**fields: Any) -> Attributes:
    """Return the attributes that are known: the others are left out of the record."""
    return {name: value for name, value in fields.items() if value is not None and not is_unknown(value)}


def is_unknown(amount: Any) -> bool:
    """Whether an amount is unknown."""
    return type(amount) is float and amount != amount


def amount(given: float | None) -> float:
    """Return an amount that may not have been given."""
    return UNKNOWN if given is None else given
