"""Saving checkpoints: their spans, and the events when they begin, succeed and end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.logger.machine.checkpoint_files import look_at
from toolkit.telemetry.logger.spans.span import AnySpan, FoldedSpan, NoSpan, Span
from toolkit.telemetry.logger.training.attributes import CHECKPOINT_METRICS, CHECKPOINT_SUCCESS
from toolkit.telemetry.logger.training.checkpoints import CheckpointCounts, CheckpointSave, PendingCheckpoint
from toolkit.telemetry.logger.training.config import ASYNC, SYNC
from toolkit.telemetry.logger.training.event_writer import EventWriter
from toolkit.telemetry.logger.training.job_log import JobLog
from toolkit.telemetry.logger.training.job_state import JobState
from toolkit.telemetry.timing.names import (
    CHECKPOINT_SAVE_ASYNC,
    CHECKPOINT_SAVE_FINALIZATION,
    CHECKPOINT_SAVE_SYNC,
)

_LOOK_S: Final = 0.2
"""How long a success waits for the disk to report the checkpoint's size."""


class Saving:
    """The checkpoints of a job, sync or async; any thread may report a success."""

    def __init__(self, log: JobLog, clock: Clock, state: JobState, events: EventWriter) -> None:
        self._log = log
        self._clock = clock
        self._state = state
        self._events = events
        self._guard = log.guard
        self._checkpoints = CheckpointCounts()

    def save_of(self, global_step: Any, path: Any, strategy: str | None) -> CheckpointSave:
        """Return the checkpoint that is meant; the strategy defaults to the configuration's."""
        step = self._events.whole_or_none("global_step", global_step)
        if strategy not in (None, SYNC, ASYNC):
            self._guard.report_misuse("the strategy of a checkpoint must be 'sync' or 'async'")
            strategy = None
        return CheckpointSave(
            global_step=step if step is not None else self._state.progress.completed,
            strategy=strategy or self._state.config.save_checkpoint_strategy,
            path=path,
        )

    def begin(self, save: CheckpointSave, start_time: float | None = None) -> AnySpan:
        """Begin to save a checkpoint of the work done so far."""
        name = CHECKPOINT_SAVE_SYNC if save.strategy == SYNC else CHECKPOINT_SAVE_ASYNC
        if not self._state.config.is_save_checkpoint_enabled:
            return self._log.start_span(name, start_time=start_time)
        attributes = self._checkpoints.attempt(save)
        span = self._log.start_span(name, attributes=attributes, start_time=start_time)
        with self._guard.catch("beginning a checkpoint"):
            self._checkpoints.begin(PendingCheckpoint(save=save, work=self._state.work_done(), span=span))
        return span

    def end_block(self, save: CheckpointSave, span: AnySpan, error: BaseException | None = None) -> None:
        """End a block in which a checkpoint was saved: a sync one succeeds unless an exception was raised."""
        if error is None and save.strategy == SYNC:
            self.succeed(save.global_step)
        self.end(save, span, error)

    def end(
        self,
        save: CheckpointSave,
        span: AnySpan,
        error: BaseException | None = None,
        stop_time: float | None = None,
    ) -> None:
        """Resume the training, and record how long it waited."""
        if error is not None:
            self._checkpoints.take(save.global_step)
        if not isinstance(span, NoSpan) and self._state.config.is_save_checkpoint_enabled:
            with self._guard.catch("ending a checkpoint"):
                attributes = self._checkpoints.end(save, self._seconds_in(span, stop_time))
                self._events.write(span, CHECKPOINT_METRICS, attributes, stop_time)
        self._events.end(span, error, stop_time)

    def succeed(
        self, global_step: Any, path: Any = None, size: Any = None, time: float | None = None
    ) -> None:
        """Record that the checkpoint of a step is saved, from any thread, and the work saved with it."""
        if not self._log.is_live or not self._state.config.is_save_checkpoint_enabled:
            return
        save = self.save_of(global_step, path, None)
        pending = self._checkpoints.take(save.global_step)
        where = self._state.application or self._state.loop
        if pending is None:
            self._guard.report_misuse("a checkpoint succeeded that never began, or succeeded twice")
        else:
            save = replace(pending.save, path=path if path is not None else pending.save.path)
            # The span of an async checkpoint has ended by now.
            where = pending.span if save.strategy == SYNC else where
        with self._guard.catch("recording a checkpoint"):
            files = look_at(save.path, _LOOK_S, self._guard)
            given_size = self._events.whole_or_none("size", size)
            attributes = self._checkpoints.succeed(
                save,
                pending.work if pending is not None else None,
                time=time if time is not None else self._clock.wall(),
                files=files if given_size is None else replace(files, size=given_size),
                training_started=self._state.progress.loop_started,
            )
            self._events.write(where, CHECKPOINT_SUCCESS, attributes, time)

    def begin_finalization(self, global_step: Any, start_time: float | None = None) -> AnySpan:
        """Begin to finalise an async checkpoint."""
        step = self._events.whole_or_none("global_step", global_step)
        attributes = {"current_iteration": step} if step is not None else None
        return self._log.start_span(
            CHECKPOINT_SAVE_FINALIZATION, attributes=attributes, start_time=start_time
        )

    def end_finalization_block(
        self, global_step: Any, path: Any, span: AnySpan, error: BaseException | None = None
    ) -> None:
        """End a block that finalised a checkpoint: it succeeds unless an exception was raised."""
        if error is None:
            self.succeed(global_step, path)
        self._events.end(span, error)

    def _seconds_in(self, span: Span | FoldedSpan, stop_time: float | None) -> float:
        """Return how long a span has been open, or will have been at `stop_time`."""
        if stop_time is not None and span.start is not None:
            return max(0.0, stop_time - span.start)
        return self._clock.monotonic() - span.began
