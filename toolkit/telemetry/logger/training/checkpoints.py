"""Checkpoints: the work each one saves, and how long the training waits for them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from toolkit.telemetry.logger.machine.checkpoint_files import look_at
from toolkit.telemetry.logger.spans.span import AnySpan, NoSpan
from toolkit.telemetry.logger.training.config import ASYNC, SYNC
from toolkit.telemetry.logger.training.job import Job
from toolkit.telemetry.logger.training.phases import Phase
from toolkit.telemetry.logger.training.sums import Attributes, Sums, known
from toolkit.telemetry.timing.names import (
    CHECKPOINT_SAVE_ASYNC,
    CHECKPOINT_SAVE_FINALIZATION,
    CHECKPOINT_SAVE_SYNC,
)

_LOOK_S: Final = 0.2
"""How long a success waits for the disk to report the checkpoint's size."""


class Checkpoints:
    """The checkpoints of a job. They may succeed in any order, reported by any thread."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.attempts: Counter[str] = Counter()
        self.waits = {SYNC: Sums(), ASYNC: Sums()}
        self.pending: dict[int, CheckpointSave] = {}
        """Those that have begun and not succeeded, by their step."""
        self._succeeded: list[float] = []
        """When the first one succeeded, and each later one."""

    def save_of(self, global_step: Any, path: Any = None, strategy: str | None = None) -> CheckpointSave:
        """Return the checkpoint that is meant; the strategy defaults to the configuration's."""
        step = self.job.whole_or_none("global_step", global_step)
        if strategy not in (None, SYNC, ASYNC):
            self.job.guard.report_misuse("the strategy of a checkpoint must be 'sync' or 'async'")
            strategy = None
        strategy = strategy or self.job.config.save_checkpoint_strategy
        return CheckpointSave(self, self.job.completed if step is None else step, path, strategy)

    def succeed(
        self, global_step: Any, path: Any = None, size: Any = None, time: float | None = None
    ) -> None:
        """Record that the checkpoint of a step is saved, from any thread, and the work saved with it."""
        job = self.job
        if not job.log.is_live or not job.config.is_save_checkpoint_enabled:
            return
        save = self.save_of(global_step)
        where = job.application or job.loop
        if save.step not in self.pending:
            job.guard.report_misuse("a checkpoint succeeded that never began, or succeeded twice")
        else:
            save = self.pending.pop(save.step)
            # The span of an async checkpoint has ended by now.
            where = save.span if save.strategy == SYNC else where
        with job.guard.catch("recording a checkpoint"):
            files = look_at(path if path is not None else save.path, _LOOK_S, job.guard)
            given_size = job.whole_or_none("size", size)
            self._succeeded.append(time if time is not None else job.clock.wall())
            attributes = known(
                checkpoint_strategy=save.strategy,
                current_iteration=save.step,
                first_successful_save_checkpoint_timestamp_sec=self._succeeded[0],
                latest_successful_save_checkpoint_timestamp_sec=self._succeeded[-1],
                save_checkpoint_success_count=len(self._succeeded),
                **save.work,
                checkpoint_size=given_size if given_size is not None else files.size,
                checkpoint_directory=files.directory,
                training_start_timestamp_sec=job.loop_started,
            )
            job.write(where, "save_checkpoint_success", attributes, time)


class CheckpointSave(Phase):
    """One checkpoint: a sync one is saved when its block ends, an async one when its success is reported."""

    def __init__(self, checkpoints: Checkpoints, step: int, path: Any, strategy: str) -> None:
        name = CHECKPOINT_SAVE_SYNC if strategy == SYNC else CHECKPOINT_SAVE_ASYNC
        super().__init__(checkpoints.job, name)
        self._checkpoints = checkpoints
        self.step, self.path, self.strategy = step, path, strategy
        self.work: Attributes = {}
        """How much was done when it began."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self.strategy == SYNC:
            self._checkpoints.succeed(self.step)
        self.end(error)

    def begin(self, start_time: float | None = None) -> AnySpan:
        """Begin to save a checkpoint of the work done so far."""
        job, attempts = self._job, self._checkpoints.attempts
        if not job.config.is_save_checkpoint_enabled:
            return super().begin(start_time)
        attempts[self.strategy] += 1
        self._attributes = {
            "checkpoint_strategy": self.strategy,
            "current_iteration": self.step,
            "save_checkpoint_attempt_count": attempts[self.strategy],
        }
        span = super().begin(start_time)
        with job.guard.catch("beginning a checkpoint"):
            self.work = job.work_done()
            self._checkpoints.pending[self.step] = self
        return span

    def end(self, error: BaseException | str | None = None, stop_time: float | None = None) -> None:
        """Resume the training, and record how long it waited."""
        job, span = self._job, self.span
        if error is not None:
            self._checkpoints.pending.pop(self.step, None)
        if not isinstance(span, NoSpan) and job.config.is_save_checkpoint_enabled:
            with job.guard.catch("ending a checkpoint"):
                if stop_time is not None and span.start is not None:
                    seconds = max(0.0, stop_time - span.start)
                else:
                    seconds = job.clock.monotonic() - span.began
                waits = self._checkpoints.waits[self.strategy]
                waits.add(seconds)
                attributes = {
                    "save_checkpoint_sync_time_total_sec": waits.seconds,
                    "save_checkpoint_sync_time_min_sec": waits.shortest,
                    "save_checkpoint_sync_time_max_sec": waits.longest,
                }
                job.write(span, "sync_checkpoint_metrics_update", attributes, stop_time)
        super().end(error, stop_time)


class CheckpointFinalization(Phase):
    """Finalising an async checkpoint, on any thread: it is saved when the block ends without an exception."""

    def __init__(self, checkpoints: Checkpoints, global_step: Any, path: Any = None) -> None:
        step = checkpoints.job.whole_or_none("global_step", global_step)
        super().__init__(checkpoints.job, CHECKPOINT_SAVE_FINALIZATION, known(current_iteration=step))
        self._checkpoints, self._step, self._path = checkpoints, global_step, path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._checkpoints.succeed(self._step, self._path)
        self.end(error)
