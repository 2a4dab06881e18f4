"""Sums over iterations: count, time, samples, tokens and floating-point operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.timing.names import BACKWARD, DATA_LOADING, FORWARD

Attributes = dict[str, Any]
ReadSpanTotals = Callable[[str], tuple[int, float]]
"""The number of spans of a name so far, and their total seconds."""

UNKNOWN: Final = math.nan
"""An amount that is unknown, and so is every sum with it."""
_PARTS: Final = {"forward": FORWARD, "backward": BACKWARD, "dataloader": DATA_LOADING}
"""Parts of an iteration whose mean seconds are reported, by their name in the events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSizes:
    """The size of one iteration, as far as it is known."""

    batch: float = UNKNOWN
    tokens: float = UNKNOWN
    """Where they were counted; else each sample has `tokens_per_sample`."""
    tokens_per_sample: float = UNKNOWN
    flops_per_sample: float = UNKNOWN

    def or_else(self, later: IterationSizes) -> IterationSizes:
        """Return these sizes, with `later` for what is unknown of them."""
        if self is later:
            return self
        return IterationSizes(
            batch=_first_known(self.batch, later.batch),
            tokens=self.tokens,
            tokens_per_sample=_first_known(self.tokens_per_sample, later.tokens_per_sample),
            flops_per_sample=_first_known(self.flops_per_sample, later.flops_per_sample),
        )


_NO_SIZES: Final = IterationSizes()


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
        self.best_rate = 0.0
        """Operations per second of the fastest iteration, then of the slowest; 0 and infinity if unknown."""
        self.worst_rate = math.inf

    def add(self, seconds: float, sizes: IterationSizes = _NO_SIZES) -> None:
        """Count an iteration."""
        self.count += 1
        self.seconds += seconds
        self.shortest = min(self.shortest, seconds)
        self.longest = max(self.longest, seconds)
        flops = sizes.batch * sizes.flops_per_sample
        self.samples += sizes.batch
        self.tokens += _first_known(sizes.tokens, sizes.batch * sizes.tokens_per_sample)
        self.flops += flops
        # An iteration of length 0, by a coarse clock, has no rate. A comparison with an unknown rate is never true.
        rate = flops / seconds if seconds > 0.0 else UNKNOWN
        self.best_rate = max(self.best_rate, rate)
        self.worst_rate = min(self.worst_rate, rate)

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

    def speeds(self, parts: Mapping[str, float], world_size: int) -> Attributes:
        """Return mean seconds of the parts and mean samples, tokens per second, and TFLOP/s per GPU."""
        tera = 1e12 * world_size
        return {
            **{f"avg_{called}_time_sec": parts[name] / self.count for called, name in _PARTS.items()},
            "avg_batch_size": self.samples / self.count,
            "avg_tokens_per_second": over(self.tokens, self.seconds),
            "avg_tflops": over(self.flops, self.seconds * 1e12),
            "train_throughput_per_gpu": over(self.flops, self.seconds * tera),
            "train_throughput_per_gpu_max": self.best_rate / tera or UNKNOWN,
            "train_throughput_per_gpu_min": self.worst_rate / tera if self.worst_rate < math.inf else UNKNOWN,
        }


class PartSeconds:
    """Seconds of forward, backward and data loading in the training loop, excluding evaluations inside it.

    It reads totals that spans keep anyway, so an iteration costs nothing here. Starts outside of training.
    """

    def __init__(self, totals: ReadSpanTotals) -> None:
        self._totals = totals
        self._outside = 1
        """The nesting depth of what is not training; 0 while training."""
        self._seconds = dict.fromkeys(_PARTS.values(), 0.0)
        self._read_at = dict(self._seconds)
        """The spans' totals that `_seconds` were last brought up to."""

    def leave_training(self) -> None:
        """Stop counting: from here on, forward belongs to an evaluation or to sampling."""
        self._count()
        self._outside += 1

    def return_to_training(self) -> None:
        """Resume counting."""
        self._count()
        self._outside = max(0, self._outside - 1)

    def total(self) -> dict[str, float]:
        """Return the seconds of each part in training so far."""
        self._count()
        return {name: seconds or UNKNOWN for name, seconds in self._seconds.items()}

    def _count(self) -> None:
        for name, before in self._read_at.items():
            _, self._read_at[name] = self._totals(name)
            if self._outside == 0:
                self._seconds[name] += self._read_at[name] - before


def known(**fields: Any) -> Attributes:
    """Return the attributes that are known: the others are left out of the record."""
    return {name: value for name, value in fields.items() if value is not None and not is_unknown(value)}


def is_unknown(amount: Any) -> bool:
    """Whether an amount is unknown."""
    return type(amount) is float and amount != amount


def over(amount: float, divisor: float) -> float:
    """Return a quotient; unknown if it would be infinite."""
    return amount / divisor if divisor > 0 else UNKNOWN


def _first_known(amount: float, otherwise: float) -> float:
    return otherwise if is_unknown(amount) else amount
