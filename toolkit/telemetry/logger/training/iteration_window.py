"""Totals over iterations: count, time, samples, tokens and floating-point operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSizes:
    """The size of one iteration, as far as it is known."""

    batch: int | None = None
    tokens_per_sample: int | None = None
    flops_per_sample: float | None = None


class Durations:
    """Count, sum and extremes of durations."""

    __slots__ = ("count", "longest", "seconds", "shortest")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.shortest = math.inf
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.seconds += seconds
        if seconds < self.shortest:
            self.shortest = seconds
        if seconds > self.longest:
            self.longest = seconds

    def add_all(self, others: Durations) -> None:
        """Count all of `others` too."""
        self.count += others.count
        self.seconds += others.seconds
        self.shortest = min(self.shortest, others.shortest)
        self.longest = max(self.longest, others.longest)

    @property
    def average(self) -> float | None:
        """Mean seconds; None before the first."""
        return self.seconds / self.count if self.count else None


class IterationWindow(Durations):
    """Consecutive training iterations: their times, samples, tokens and operations.

    The size of an iteration may become known only later; `settle` then counts the earlier ones too.
    """

    __slots__ = (
        *("best_rate", "flops", "samples", "tokens", "worst_rate"),
        *("_samples_without_flops", "_samples_without_tokens", "_unsized", "_unsized_with_tokens"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0
        self.tokens = 0
        self.flops = 0.0
        self.best_rate = 0.0
        """Operations per second of the fastest iteration, then of the slowest; 0 and infinity if unknown."""
        self.worst_rate = math.inf
        self._unsized = 0
        """Iterations of unknown batch size, and those of them with a known number of tokens."""
        self._unsized_with_tokens = 0
        self._samples_without_tokens = 0
        self._samples_without_flops = 0

    def add_alike(self, durations: Sequence[float], sizes: IterationSizes) -> None:
        """Count iterations of the same sizes by their durations."""
        if not durations:
            return
        alike = IterationWindow()
        alike.count = len(durations)
        alike.seconds = sum(durations)
        alike.shortest, alike.longest = min(durations), max(durations)
        alike._unsized = alike.count
        alike.settle(sizes)
        if sizes.batch is not None and sizes.flops_per_sample is not None:
            alike._see_rate(sizes.batch * sizes.flops_per_sample, alike.shortest)
            alike._see_rate(sizes.batch * sizes.flops_per_sample, alike.longest)
        self.merge(alike)

    def add_other(self, seconds: float, sizes: IterationSizes, batch: int | None, tokens: int | None) -> None:
        """Count an iteration with its own batch size or number of tokens."""
        self.add(seconds)
        if batch is None:
            batch = sizes.batch
        if tokens is not None:
            self.tokens += tokens
        if batch is None:
            self._unsized += 1
            self._unsized_with_tokens += tokens is not None
            return
        self.samples += batch
        if tokens is None:
            self._samples_without_tokens += batch
        self._samples_without_flops += batch
        self.settle(sizes)
        if sizes.flops_per_sample is not None:
            self._see_rate(batch * sizes.flops_per_sample, seconds)

    def _see_rate(self, flops: float, seconds: float) -> None:
        # An iteration of length 0, by a coarse clock, has no rate.
        if seconds > 0.0:
            self.best_rate = max(self.best_rate, flops / seconds)
            self.worst_rate = min(self.worst_rate, flops / seconds)

    def settle(self, sizes: IterationSizes) -> None:
        """Apply sizes known now to earlier iterations of unknown size."""
        if sizes.batch is not None:
            self.samples += self._unsized * sizes.batch
            self._samples_without_tokens += (self._unsized - self._unsized_with_tokens) * sizes.batch
            self._samples_without_flops += self._unsized * sizes.batch
            self._unsized = self._unsized_with_tokens = 0
        if sizes.tokens_per_sample is not None:
            self.tokens += self._samples_without_tokens * sizes.tokens_per_sample
            self._samples_without_tokens = 0
        if sizes.flops_per_sample is not None:
            self.flops += self._samples_without_flops * sizes.flops_per_sample
            self._samples_without_flops = 0

    def merge(self, other: IterationWindow) -> None:
        """Count all of `other`'s iterations too."""
        self.add_all(other)
        self.samples += other.samples
        self.tokens += other.tokens
        self.flops += other.flops
        self.best_rate = max(self.best_rate, other.best_rate)
        self.worst_rate = min(self.worst_rate, other.worst_rate)
        self._unsized += other._unsized
        self._unsized_with_tokens += other._unsized_with_tokens
        self._samples_without_tokens += other._samples_without_tokens
        self._samples_without_flops += other._samples_without_flops

    # Totals over all iterations; a total over only some of them would mislead.

    @property
    def known_samples(self) -> int | None:
        """Samples; None if the batch size of an iteration is unknown."""
        return None if self._unsized else self.samples

    @property
    def known_tokens(self) -> int | None:
        """Tokens; None if they are unknown for some samples, or not counted."""
        missing = self._unsized > self._unsized_with_tokens or self._samples_without_tokens
        return None if missing or not self.tokens else self.tokens

    @property
    def known_flops(self) -> float | None:
        """Operations; None if they are unknown for some samples."""
        missing = self._unsized or self._samples_without_flops
        return None if missing or not self.flops else self.flops
