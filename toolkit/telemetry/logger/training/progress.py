"""The training progress of this job, and the attributes of its `training_metrics_update` events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from toolkit.telemetry.logger.training.attributes import Attributes, known
from toolkit.telemetry.logger.training.config import TrainingConfig
from toolkit.telemetry.logger.training.iteration_window import IterationSizes, IterationWindow
from toolkit.telemetry.timing.names import BACKWARD, DATA_LOADING, FORWARD

_TERA: Final = 1e12
_MAX_USUAL: Final = 1000
_WATCHED: Final = (FORWARD, BACKWARD, DATA_LOADING)

ReadSpanTotals = Callable[[str], tuple[int, float]]
"""The number of spans of a name so far, and their total seconds."""


class PhaseSeconds:
    """Seconds of forward, backward and data loading in the training loop, excluding evaluations inside it.

    It reads totals that spans keep anyway, so an iteration costs nothing here. Starts outside of training.
    """

    def __init__(self, totals: ReadSpanTotals) -> None:
        self._totals = totals
        self._elsewhere = dict.fromkeys(_WATCHED, 0.0)
        """Seconds that do not belong to training."""
        self._left_at: dict[str, float] | None = dict.fromkeys(_WATCHED, 0.0)
        self._outside = 1
        """The nesting depth of what is not training; 0 while training."""
        self._at_last_window = dict.fromkeys(_WATCHED, 0.0)

    def leave_training(self) -> None:
        """Stop counting: from here on, forward belongs to an evaluation or to sampling."""
        if self._outside == 0:
            self._left_at = self._read()
        self._outside += 1

    def return_to_training(self) -> None:
        """Resume counting."""
        if self._outside == 0:
            return
        self._outside -= 1
        if self._outside == 0 and self._left_at is not None:
            for name, seconds in self._read().items():
                self._elsewhere[name] += seconds - self._left_at[name]
            self._left_at = None

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each timed phase in training so far."""
        found = self._left_at or self._read()
        training = {name: found[name] - self._elsewhere[name] for name in _WATCHED}
        return {name: seconds for name, seconds in training.items() if seconds > 0.0}

    def end_window(self, seconds: dict[str, float]) -> dict[str, float]:
        """Return how much of `seconds` is new since the last call."""
        fresh = {name: total - self._at_last_window[name] for name, total in seconds.items()}
        self._at_last_window.update(seconds)
        return fresh

    def _read(self) -> dict[str, float]:
        return {name: self._totals(name)[1] for name in _WATCHED}


class IterationProgress:
    """The training iterations of this job: those of the open window, and those before it."""

    def __init__(self, phases: PhaseSeconds) -> None:
        self.completed = 0
        """Completed iterations, including those before this job."""
        self.due_at = 0
        """`reach` is called once this many are completed."""
        self.usual: list[float] = []
        """Durations of iterations of the configured sizes, not in the window yet: appending to a list is cheapest."""
        self.loop_started: float | None = None
        self.first_finished: float | None = None
        self.last_finished: float | None = None
        self.loss: float | None = None
        """The latest loss the caller gave."""
        self._phases = phases
        self._sizes = IterationSizes()
        self._window = IterationWindow()
        self._before = IterationWindow()
        """The iterations of the closed windows; `_earlier` has those of earlier loops."""
        self._earlier = IterationWindow()
        self._iterations_start = 0
        self._samples_start: int | None = None
        self._every = 1
        self._ends_at = 0
        self.follow(TrainingConfig())

    def begin_loop(
        self,
        config: TrainingConfig,
        *,
        iterations_start: int,
        samples_start: int | None,
        iterations_target: int | None,
        samples_target: int | None,
    ) -> Attributes:
        """Start counting at `iterations_start`, and return the attributes of the loop."""
        self._fold()
        self._earlier.merge(self._before)
        self._before = IterationWindow()
        self.completed = self._iterations_start = iterations_start
        self._samples_start = samples_start
        self.follow(config)
        samples_target = samples_target if samples_target is not None else config.train_samples_target
        tokens_target = None
        if config.seq_length is not None and samples_target is not None:
            tokens_target = config.seq_length * samples_target
        return known(
            train_iterations_start=iterations_start,
            train_samples_start=self.samples_start(config),
            train_tokens_target=tokens_target,
            completed_floating_point_operations_overall=self._flops_before(config.sizes),
            train_iterations_target=(
                iterations_target if iterations_target is not None else config.train_iterations_target
            ),
            train_samples_target=samples_target,
        )

    def follow(self, config: TrainingConfig) -> None:
        """Apply a new configuration; earlier iterations of unknown size are counted by it."""
        self._fold()
        self._every = config.log_every_n_train_iterations
        self._ends_at = self._next_end()
        self._sizes = config.sizes
        self._look_again()
        self._settle()

    def add_other(
        self, seconds: float, sizes: IterationSizes, batch: int | None = None, tokens: int | None = None
    ) -> None:
        """Count an iteration with sizes of its own; the caller counts it as completed."""
        self._sizes = sizes
        self._window.add_other(seconds, sizes, batch, tokens)

    def reach(self) -> bool:
        """Add up the deferred iterations, and return whether the window is full."""
        self._fold()
        self._look_again()
        return self.completed >= self._ends_at

    @property
    def has_rest(self) -> bool:
        """Whether there are iterations since the last window."""
        return bool(self.usual) or self._window.count > 0

    def so_far(self) -> IterationWindow:
        """Return all iterations of this job."""
        return _both(self._earlier, self.in_this_loop())

    def in_this_loop(self) -> IterationWindow:
        """Return the iterations since the training loop began; most jobs have one loop."""
        whole = IterationWindow()
        whole.merge(self._before)
        whole.merge(self._window)
        whole.add_alike(self.usual[:], self._sizes)
        return whole

    def samples_start(self, config: TrainingConfig) -> int | None:
        """Return how many samples were trained on before this loop."""
        if self._samples_start is not None:
            return self._samples_start
        if config.global_batch_size is None:
            return None
        return self._iterations_start * config.global_batch_size

    def flops_overall(self, loop: IterationWindow, sizes: IterationSizes) -> float | None:
        """Return the operations of `loop`, the current one, and of all before it."""
        before, here = self._flops_before(sizes), loop.known_flops
        return None if before is None or (here is None and loop.count) else before + (here or 0.0)

    def end_window(self, config: TrainingConfig, world_size: int, latest_loss: float | None) -> Attributes:
        """Begin a new window, and return the attributes of the old one, which must not be empty."""
        self._fold()
        self._settle()
        window, self._window = self._window, IterationWindow()
        self._before.merge(window)
        job = _both(self._earlier, self._before)
        self._ends_at = self._next_end()
        self._look_again()
        phases = self._phases.seconds()
        overall = _speed_of(job, phases, world_size)
        recent = _speed_of(window, self._phases.end_window(phases), world_size)
        return known(
            train_iterations_start=self._iterations_start,
            current_iteration=self.completed - 1,
            num_iterations=job.count,
            train_samples_start=self.samples_start(config),
            num_train_samples=job.known_samples,
            interval=window.count,
            avg_iteration_time_sec=job.seconds / job.count,
            min_iteration_time_sec=job.shortest,
            max_iteration_time_sec=job.longest,
            total_iteration_time_sec=job.seconds,
            avg_forward_time_sec=overall.forward,
            avg_backward_time_sec=overall.backward,
            avg_dataloader_time_sec=overall.data_loading,
            avg_tflops=_over(job.known_flops, job.seconds * _TERA),
            train_tokens=job.known_tokens,
            avg_tokens_per_second=overall.tokens,
            latest_loss=latest_loss,
            avg_batch_size=overall.batch,
            completed_floating_point_operations_overall=self.flops_overall(self._before, config.sizes),
            total_flops=job.known_flops,
            train_throughput_per_gpu=overall.throughput,
            train_throughput_per_gpu_max=overall.highest,
            train_throughput_per_gpu_min=overall.lowest,
            first_logged_train_iterations_finish_timestamp_sec=self.first_finished,
            last_logged_train_iterations_finish_timestamp_sec=self.last_finished,
            window_num_iterations=window.count,
            window_avg_iteration_time_sec=window.seconds / window.count,
            window_min_iteration_time_sec=window.shortest,
            window_max_iteration_time_sec=window.longest,
            window_total_iteration_time_sec=window.seconds,
            window_avg_forward_time_sec=recent.forward,
            window_avg_backward_time_sec=recent.backward,
            window_avg_dataloader_time_sec=recent.data_loading,
            window_avg_batch_size=recent.batch,
            window_avg_tokens_per_second=recent.tokens,
            window_throughput_per_gpu=recent.throughput,
            window_throughput_per_gpu_max=recent.highest,
            window_throughput_per_gpu_min=recent.lowest,
        )

    def _fold(self) -> None:
        usual, self.usual = self.usual, []
        self._window.add_alike(usual, self._sizes)

    def _settle(self) -> None:
        self._window.settle(self._sizes)
        self._before.settle(self._sizes)
        self._earlier.settle(self._sizes)

    def _look_again(self) -> None:
        self.due_at = min(self._ends_at, self.completed + _MAX_USUAL)

    def _next_end(self) -> int:
        """Return the next multiple of the interval: a job resumed at 90 reports at 100, like the one before it."""
        return self.completed - self.completed % self._every + self._every

    def _flops_before(self, sizes: IterationSizes) -> float | None:
        if sizes.batch is None or sizes.flops_per_sample is None:
            return None
        return self._iterations_start * sizes.batch * sizes.flops_per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """Speed of some iterations: mean seconds and samples, tokens per second, TFLOP/s per GPU."""

    forward: float | None
    backward: float | None
    data_loading: float | None
    batch: float | None
    tokens: float | None
    throughput: float | None
    highest: float | None
    lowest: float | None


def _both(one: IterationWindow, other: IterationWindow) -> IterationWindow:
    whole = IterationWindow()
    whole.merge(one)
    whole.merge(other)
    return whole


def _speed_of(window: IterationWindow, phases: Mapping[str, float], world_size: int) -> _Speed:
    tera = _TERA * world_size
    return _Speed(
        forward=_over(phases.get(FORWARD), window.count),
        backward=_over(phases.get(BACKWARD), window.count),
        data_loading=_over(phases.get(DATA_LOADING), window.count),
        batch=_over(window.known_samples, window.count),
        tokens=_over(window.known_tokens, window.seconds),
        throughput=_over(window.known_flops, window.seconds * tera),
        highest=window.best_rate / tera if window.best_rate > 0.0 else None,
        lowest=window.worst_rate / tera if window.worst_rate < math.inf else None,
    )


def _over(amount: float | None, divisor: float) -> float | None:
    return amount / divisor if amount is not None and divisor > 0 else None
