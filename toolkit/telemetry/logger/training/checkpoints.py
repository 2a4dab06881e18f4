"""Counts checkpoints: the work each one saves, and how long the training waits for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.logger.machine.checkpoint_files import CheckpointFiles
from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.logger.training.attributes import (
    Attributes,
    known,
)
from toolkit.telemetry.logger.training.config import ASYNC, SYNC
from toolkit.telemetry.logger.training.iteration_window import Durations

_MAX_PENDING: Final = 1000
"""Checkpoints whose success was not reported yet; beyond this number the oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSave:
    """One checkpoint to save."""

    global_step: int
    strategy: str
    path: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """How much was done when a checkpoint began."""

    iterations: int
    samples: int | None
    training_s: float
    validation_s: float
    flops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that is being saved."""

    save: CheckpointSave
    work: WorkDone
    span: AnySpan


class CheckpointCounts:
    """The checkpoints of this job. They may succeed in any order, reported by any thread."""

    def __init__(self) -> None:
        # A signal handler may save a checkpoint while another one is being saved.
        self._lock = threading.RLock()
        self._attempts = {SYNC: 0, ASYNC: 0}
        self._times = {SYNC: Durations(), ASYNC: Durations()}
        self._pending: dict[int, PendingCheckpoint] = {}
        self._succeeded = 0
        self._first_success: float | None = None

    def attempt(self, save: CheckpointSave) -> Attributes:
        """Count an attempt, and return its attributes."""
        with self._lock:
            self._attempts[save.strategy] += 1
            return known(
                checkpoint_strategy=save.strategy,
                current_iteration=save.global_step,
                save_checkpoint_attempt_count=self._attempts[save.strategy],
            )

    def begin(self, pending: PendingCheckpoint) -> None:
        """Remember the checkpoint until it has succeeded."""
        with self._lock:
            self._pending[pending.save.global_step] = pending
            while len(self._pending) > _MAX_PENDING:
                del self._pending[next(iter(self._pending))]

    def take(self, global_step: int) -> PendingCheckpoint | None:
        """Return the checkpoint that began at this step, once."""
        with self._lock:
            return self._pending.pop(global_step, None)

    def succeed(
        self,
        save: CheckpointSave,
        work: WorkDone | None,
        *,
        time: float,
        files: CheckpointFiles,
        training_started: float | None,
    ) -> Attributes:
        """Count a success, and return its attributes."""
        with self._lock:
            self._succeeded += 1
            succeeded = self._succeeded
            if self._first_success is None:
                self._first_success = time
            first = self._first_success
        return known(
            checkpoint_strategy=save.strategy,
            current_iteration=save.global_step,
            first_successful_save_checkpoint_timestamp_sec=first,
            latest_successful_save_checkpoint_timestamp_sec=time,
            save_checkpoint_success_count=succeeded,
            productive_train_iterations=work.iterations if work else None,
            productive_train_samples=work.samples if work else None,
            productive_train_iterations_sec=work.training_s if work else None,
            productive_validation_iterations_sec=work.validation_s if work else None,
            productive_train_tflops=work.flops / 1e12 if work and work.flops is not None else None,
            checkpoint_size=files.size,
            checkpoint_directory=files.directory,
            training_start_timestamp_sec=training_started,
        )

    def end(self, save: CheckpointSave, seconds: float) -> Attributes:
        """Count how long the training waited, and return the totals so far."""
        with self._lock:
            times = self._times[save.strategy]
            times.add(seconds)
            return known(
                save_checkpoint_sync_time_total_sec=times.seconds,
                save_checkpoint_sync_time_min_sec=times.shortest,
                save_checkpoint_sync_time_max_sec=times.longest,
            )
