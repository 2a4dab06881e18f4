"""Sums over iterations: count, time, samples, tokens and floating-point operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.timing.names import BACKWARD, DATA_LOADING, FORWARD

Attributes = dict[str, Any]
ReadSpanTotals = Callable[[str], tuple[int, float]]
"""The number of spans of a name so far, and their total seconds."""

_PARTS: Final = {"forward": FORWARD, "backward": BACKWARD, "dataloader": DATA_LOADING}
"""Parts of an iteration whose mean seconds are reported, by their name in the events."""
_TERA: Final = 1e12
_MOST_NEW: Final = 1000
_ADDED: Final = (
    *("count", "seconds", "samples", "tokens", "flops"),
    *("unsized", "unsized_without_tokens", "samples_without_tokens", "samples_without_flops"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSizes:
    """The size of one iteration, as far as it is known."""

    batch: int | None = None
    tokens: int | None = None
    """Where they were counted; else each sample has `tokens_per_sample`."""
    tokens_per_sample: int | None = None
    flops_per_sample: float | None = None


_UNKNOWN: Final = IterationSizes()


class Sums:
    """Count, sums and extremes of some iterations, of checkpoints, or of anything else that takes time.

    The size of an iteration may become known only later; `settle` then counts the earlier ones too.
    """

    __slots__ = (*_ADDED, "best_rate", "longest", "shortest", "worst_rate")

    def __init__(self, durations: Sequence[float] = (), sizes: IterationSizes = _UNKNOWN) -> None:
        self.count = len(durations)
        self.seconds = sum(durations)
        self.shortest = min(durations, default=math.inf)
        self.longest = max(durations, default=0.0)
        self.samples = 0
        self.tokens = self.count * (sizes.tokens or 0)
        self.flops = 0.0
        self.best_rate = 0.0
        """Operations per second of the fastest iteration, then of the slowest; 0 and infinity if unknown."""
        self.worst_rate = math.inf
        self.unsized = self.count
        """Iterations of unknown batch size, and those of them with an unknown number of tokens."""
        self.unsized_without_tokens = self.count if sizes.tokens is None else 0
        self.samples_without_tokens = 0
        self.samples_without_flops = 0
        self.settle(sizes)
        for seconds in (self.shortest, self.longest):
            # An iteration of length 0, by a coarse clock, has no rate.
            if self.flops and seconds > 0.0:
                self.best_rate = max(self.best_rate, self.flops / self.count / seconds)
                self.worst_rate = min(self.worst_rate, self.flops / self.count / seconds)

    def settle(self, sizes: IterationSizes) -> None:
        """Apply sizes known now to earlier iterations of unknown size."""
        if sizes.batch is not None:
            self.samples += self.unsized * sizes.batch
            self.samples_without_tokens += self.unsized_without_tokens * sizes.batch
            self.samples_without_flops += self.unsized * sizes.batch
            self.unsized = self.unsized_without_tokens = 0
        if sizes.tokens_per_sample is not None:
            self.tokens += self.samples_without_tokens * sizes.tokens_per_sample
            self.samples_without_tokens = 0
        if sizes.flops_per_sample is not None:
            self.flops += self.samples_without_flops * sizes.flops_per_sample
            self.samples_without_flops = 0

    def merge(self, other: Sums) -> None:
        """Count all of `other` too."""
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.shortest = min(self.shortest, other.shortest)
        self.longest = max(self.longest, other.longest)
        self.best_rate = max(self.best_rate, other.best_rate)
        self.worst_rate = min(self.worst_rate, other.worst_rate)

    # Totals over all iterations; a total over only some of them would mislead.

    @property
    def known_samples(self) -> int | None:
        """Samples; None if the batch size of an iteration is unknown."""
        return None if self.unsized else self.samples

    @property
    def known_tokens(self) -> int | None:
        """Tokens; None if they are unknown for some samples, or not counted."""
        is_known = self.tokens and not self.unsized_without_tokens and not self.samples_without_tokens
        return self.tokens if is_known else None

    @property
    def known_flops(self) -> float | None:
        """Operations; None if they are unknown for some samples."""
        return self.flops if self.flops and not self.unsized and not self.samples_without_flops else None

    # What events say of them; a field that is None is left out.

    def times(self, prefix: str = "") -> Attributes:
        """Return mean, extremes and total of the durations."""
        if not self.count:
            return {}
        return {
            f"{prefix}avg_iteration_time_sec": self.seconds / self.count,
            f"{prefix}min_iteration_time_sec": self.shortest,
            f"{prefix}max_iteration_time_sec": self.longest,
            f"{prefix}total_iteration_time_sec": self.seconds,
        }

    def speeds(self, parts: Mapping[str, float], world_size: int, prefix: str = "") -> Attributes:
        """Return mean seconds of the parts and mean samples, tokens per second, and TFLOP/s per GPU."""
        tera = _TERA * world_size
        throughput = f"{prefix or 'train_'}throughput_per_gpu"
        return {
            **{
                f"{prefix}avg_{called}_time_sec": over(parts.get(name), self.count)
                for called, name in _PARTS.items()
            },
            f"{prefix}avg_batch_size": over(self.known_samples, self.count),
            f"{prefix}avg_tokens_per_second": over(self.known_tokens, self.seconds),
            throughput: over(self.known_flops, self.seconds * tera),
            f"{throughput}_max": self.best_rate / tera or None,
            f"{throughput}_min": self.worst_rate / tera if self.worst_rate < math.inf else None,
        }


class Tally:
    """The iterations of one kind: since the last event, and before it those of the open loop and of the job."""

    def __init__(self) -> None:
        self.job, self.loop, self._window = Sums(), Sums(), Sums()
        self._new: list[float] = []
        """Durations of iterations that are in no sum yet, and their sizes: appending to a list is cheapest."""
        self._sizes = _UNKNOWN

    def count(self, seconds: float, sizes: IterationSizes = _UNKNOWN) -> None:
        """Count an iteration."""
        if sizes is not self._sizes:
            self._add_up()
            self._sizes = sizes
        self._new.append(seconds)
        if len(self._new) >= _MOST_NEW:
            self._add_up()

    def settle(self, sizes: IterationSizes) -> None:
        """Apply sizes known now to earlier iterations of unknown size."""
        self._add_up()
        for sums in (self.job, self.loop, self._window):
            sums.settle(sizes)

    def begin_loop(self) -> None:
        """Begin a new loop."""
        self.loop = Sums()

    def end_window(self) -> Sums:
        """Return the iterations since the last call, which are in all sums from now on."""
        self._add_up()
        window, self._window = self._window, Sums()
        self.job.merge(window)
        self.loop.merge(window)
        return window

    @property
    def has_rest(self) -> bool:
        """Whether there are iterations since the last window."""
        return bool(self._new) or self._window.count > 0

    def so_far(self) -> tuple[Sums, Sums]:
        """Return the job's and the loop's sums; changes nothing, as a signal handler may save a checkpoint."""
        job, loop = (Sums(self._new, self._sizes) for _ in range(2))
        for whole, ended in ((job, self.job), (loop, self.loop)):
            whole.merge(self._window)
            whole.merge(ended)
        return job, loop

    def _add_up(self) -> None:
        new, self._new = self._new, []
        if new:
            self._window.merge(Sums(new, self._sizes))


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
        self._at_last_window: Mapping[str, float] = {}

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
        return {name: seconds for name, seconds in self._seconds.items() if seconds > 0.0}

    def end_window(self, total: Mapping[str, float]) -> dict[str, float]:
        """Return how much of `total` is new since the last call."""
        before, self._at_last_window = self._at_last_window, total
        return {name: seconds - before.get(name, 0.0) for name, seconds in total.items()}

    def _count(self) -> None:
        for name, before in self._read_at.items():
            _, self._read_at[name] = self._totals(name)
            if self._outside == 0:
                self._seconds[name] += self._read_at[name] - before


def known(**fields: Any) -> Attributes:
    """Return the attributes that are known: one that is None is left out of the record."""
    return {name: value for name, value in fields.items() if value is not None}


def over(amount: float | None, divisor: float) -> float | None:
    """Return a quotient; None if it is unknown or would be infinite."""
    return amount / divisor if amount is not None and divisor > 0 else None
