"""Checkpoints: what of the work each of them makes safe, and how long they hold up the training."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.machine.checkpoint_files import CheckpointFiles
from toolkit.telemetry.spans.span import AnySpan
from toolkit.telemetry.training.attributes import (
    CheckpointSaveSpanAttributes,
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
)
from toolkit.telemetry.training.config import ASYNC, SYNC
from toolkit.telemetry.training.windows import Times

_MAX_UNDER_WAY: Final = 1000
"""Checkpoints that began and of which nobody has said yet that they succeeded; beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint that somebody saves."""

    global_step: int
    strategy: str
    path: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much was done when a checkpoint began."""

    iterations: int
    samples: int | None
    training_s: float
    validation_s: float
    flops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A checkpoint under way."""

    save: Save
    work: Work
    span: AnySpan


class Checkpoints:
    """The checkpoints of this job. They may succeed in any order, and be told of by any thread."""

    def __init__(self) -> None:
        # A signal handler may save a checkpoint in the middle of one that is being saved.
        self._lock = threading.RLock()
        self._attempts = {SYNC: 0, ASYNC: 0}
        self._times = {SYNC: Times(), ASYNC: Times()}
        self._under_way: dict[int, Begun] = {}
        self._succeeded = 0
        self._first_success: float | None = None

    def attempt(self, save: Save) -> CheckpointSaveSpanAttributes:
        """Count an attempt, and return what is known of it."""
        with self._lock:
            self._attempts[save.strategy] += 1
            return CheckpointSaveSpanAttributes(
                checkpoint_strategy=save.strategy,
                current_iteration=save.global_step,
                save_checkpoint_attempt_count=self._attempts[save.strategy],
            )

    def begin(self, begun: Begun) -> None:
        """Remember what the checkpoint holds until it has succeeded."""
        with self._lock:
            self._under_way[begun.save.global_step] = begun
            while len(self._under_way) > _MAX_UNDER_WAY:
                del self._under_way[next(iter(self._under_way))]

    def take(self, global_step: int) -> Begun | None:
        """Return the checkpoint that began at this step, once."""
        with self._lock:
            return self._under_way.pop(global_step, None)

    def succeed(
        self,
        save: Save,
        work: Work | None,
        *,
        time: float,
        files: CheckpointFiles,
        training_started: float | None,
    ) -> SaveCheckpointSuccessEventAttributes:
        """Count a success, and return what it makes safe."""
        with self._lock:
            self._succeeded += 1
            succeeded = self._succeeded
            if self._first_success is None:
                self._first_success = time
            first = self._first_success
        return SaveCheckpointSuccessEventAttributes(
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

    def end(self, save: Save, seconds: float) -> SyncCheckpointMetricsUpdateAttributes:
        """Count how long the training was held up, and return how long it has been so far."""
        with self._lock:
            times = self._times[save.strategy]
            times.add(seconds)
            return SyncCheckpointMetricsUpdateAttributes(
                save_checkpoint_sync_time_total_sec=times.seconds,
                save_checkpoint_sync_time_min_sec=times.shortest,
                save_checkpoint_sync_time_max_sec=times.longest,
            )
