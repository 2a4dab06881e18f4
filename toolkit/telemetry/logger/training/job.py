"""A training job: its phases begin and end here, its iterations are counted, and its events written."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any, Final

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.logger.training.attributes import (
    CONFIG_UPDATE,
    INITIALIZATION,
    TRAINING_METRICS,
    known,
)
from toolkit.telemetry.logger.training.config import ConfigSource, TrainingConfig
from toolkit.telemetry.logger.training.event_writer import EventWriter
from toolkit.telemetry.logger.training.job_log import JobLog
from toolkit.telemetry.logger.training.job_state import Evaluations, JobState
from toolkit.telemetry.logger.training.phase import PhaseKind
from toolkit.telemetry.logger.training.progress import IterationProgress, PhaseSeconds
from toolkit.telemetry.logger.training.saving import Saving
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.timing import names

_PACKAGE: Final = "ai-toolkit-telemetry"
"""The distribution whose version the events carry."""


class Job:
    """What the context managers and the callbacks share.

    Each phase has a `begin_…`, which returns its span, and an `end_…`, which takes that span and the exception raised
    inside it. Times are wall-clock seconds; None means now. Nothing here raises, except for misuse with `strict`.
    """

    def __init__(self, log: JobLog, clock: Clock) -> None:
        self._log = log
        self._guard = log.guard
        self._source = ConfigSource(log.guard)
        self._phases = PhaseSeconds(log.span_totals)
        self._progress = IterationProgress(self._phases)
        self._state = JobState(self._progress)
        self._events = EventWriter(log)
        self.saving = Saving(log, clock, self._state, self._events)
        self.validation, self.testing = self._state.validation, self._state.testing
        self._first: AnySpan | None = None
        """The first iteration; `_latest` is the last one so far."""
        self._latest: AnySpan | None = None

    @property
    def is_live(self) -> bool:
        """Whether anything is written."""
        return self._log.is_live

    # The configuration.

    def configure(self, given: Mapping[str, Any]) -> None:
        """Add to the configuration, and write it. Raises ConfigError if a key or a value is wrong."""
        self._source.take(given)
        config = self._refresh_config()
        with self._guard.catch("configuring the training telemetry"):
            self._progress.follow(config)
            if config.perf_tag is not None or config.session_tag is not None:
                tags = config.perf_tag
                self._log.set_tags(
                    perf_tag=",".join(tags) if isinstance(tags, tuple) else tags,
                    session_tag=config.session_tag,
                )
            self._write_config(config)

    def _refresh_config(self) -> TrainingConfig:
        """Call the configuration's functions again and return the result."""
        self._state.config = self._source.now()
        return self._state.config

    def _write_config(self, config: TrainingConfig) -> None:
        tags = config.perf_tag or self._log.given_tags[0]
        attributes = known(
            perf_tag=list(tags) if isinstance(tags, tuple) else tags,
            global_batch_size=config.global_batch_size,
            log_every_n_train_iterations=config.log_every_n_train_iterations,
            micro_batch_size=config.micro_batch_size,
            seq_length=config.seq_length,
            flops_per_sample=config.flops_per_sample,
            train_iterations_target=config.train_iterations_target,
            train_samples_target=config.train_samples_target,
            checkpoint_strategy=config.save_checkpoint_strategy,
            is_train_iterations_enabled=config.is_train_iterations_enabled,
            is_validation_iterations_enabled=config.is_validation_iterations_enabled,
            is_test_iterations_enabled=config.is_test_iterations_enabled,
            is_save_checkpoint_enabled=config.is_save_checkpoint_enabled,
            is_log_throughput_enabled=config.logs_throughput,
            custom_metadata=_as_lines(config.custom_metadata),
        )
        self._events.write(self._state.application, CONFIG_UPDATE, attributes)

    # Phases that are only timed.

    def kind(self, name: str) -> PhaseKind:
        """Return what all phases of a name share, for phases that are a span."""
        count = {
            names.TRAINING_ITERATION: self.count_iteration,
            names.VALIDATION_ITERATION: self.validation.count,
            names.TESTING_ITERATION: self.testing.count,
        }
        return PhaseKind(name=name, make=self._log.span, fail=self._events.write_error, count=count.get(name))

    def begin_plain(self, name: str, start_time: float | None) -> AnySpan:
        """Begin a phase that is only timed."""
        return self._log.start_span(name, start_time=start_time)

    def end_plain(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End a phase that is only timed."""
        self._events.end(span, error, stop_time)

    def abandon(self, name: str, span: AnySpan) -> None:
        """End a phase whose end was never reported, without counting it as completed."""
        span.stop(error="its end was never reported")
        if name in names.APART_FROM_TRAINING:
            self._phases.return_to_training()

    # The application.

    def begin_application(
        self, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin the job, and record which process of which job this is. There is one at a time."""
        if self._state.application is not None:
            self._guard.report_misuse("a second application begins inside the first; it is left out")
            return NO_SPAN
        config = self._refresh_config()
        given = {"application_name": config.application_name} if config.application_name is not None else {}
        span = self._log.start_span(
            names.APPLICATION, attributes={**given, **(attributes or {})}, start_time=start_time
        )
        if span is NO_SPAN:
            return span
        self._state.application = span
        with self._guard.catch("recording the application"):
            rank = find_rank()
            started = known(
                world_size=self._world_size(),
                one_logger_training_telemetry_version=_own_version(),
                enable_for_current_rank=True,
                session_tag=config.session_tag or self._log.given_tags[1] or self._log.run_id,
                is_baseline_run=config.is_baseline_run,
                summary_data_schema_version=config.summary_data_schema_version,
                node_name=socket.gethostname(),
                rank=rank.rank,
                custom_metadata=_as_lines(config.custom_metadata),
            )
            self._events.write(span, INITIALIZATION, started, span.start)
            if not self._source.is_empty:
                self._write_config(config)
        return span

    def end_application(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End the job, and write the remaining iterations of a loop that is still open."""
        if span is NO_SPAN:
            return
        self.write_remaining(stop_time)
        self._events.end(span, error, stop_time)
        if span is self._state.application:
            self._state.application = None

    # Training.

    def begin_training_loop(
        self,
        iterations_start: Any = 0,
        samples_start: Any = None,
        iterations_target: Any = None,
        samples_target: Any = None,
        start_time: float | None = None,
    ) -> AnySpan:
        """Begin the training loop at an iteration; the targets default to the configuration's."""
        if self._state.loop is not None:
            self._guard.report_misuse(
                "a training loop starts before the previous one ended; the previous one is ended here"
            )
            self.end_training_loop(self._state.loop)
        start = self._events.whole_or_none("train_iterations_start", iterations_start) or 0
        attributes: dict[str, Any] = {}
        config = self._refresh_config()
        with self._guard.catch("beginning the training loop"):
            attributes = self._progress.begin_loop(
                config,
                iterations_start=start,
                samples_start=self._events.whole_or_none("train_samples_start", samples_start),
                iterations_target=self._source.ask("train_iterations_target", iterations_target),
                samples_target=self._source.ask("train_samples_target", samples_target),
            )
            self._state.validation.since = self._state.testing.since = start
        span = self._log.start_span(names.TRAINING_LOOP, attributes=attributes, start_time=start_time)
        if span is not NO_SPAN:
            self._state.loop = span
            self._progress.loop_started = span.start
            self._phases.return_to_training()
        return span

    def end_training_loop(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """Write the iterations since the last full window, and end the loop."""
        if span is not self._state.loop:
            # Already ended because another one began inside it, or telemetry is off.
            return
        self.write_remaining(stop_time)
        self._phases.leave_training()
        self._state.loop = None
        self._events.end(span, error, stop_time)

    def begin_iteration(self, start_time: float | None = None) -> AnySpan:
        """Begin a training iteration."""
        if start_time is not None:
            return self._log.start_span(names.TRAINING_ITERATION, start_time=start_time)
        return self._log.span(names.TRAINING_ITERATION).__enter__()

    def end_iteration(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End a training iteration, and count it unless an exception was raised."""
        self._events.end(span, error, stop_time)
        if error is None:
            self.count_iteration(span, stop_time)

    def count_iteration(self, span: AnySpan, stop_time: float | None = None) -> None:
        """Count a completed iteration; its `batch_size` and `tokens` override the configured batch."""
        seconds = span.duration
        if seconds is None:
            return
        progress = self._progress
        if span.attributes or self._source.sizes_change:
            self._count_sized(span, seconds)
        else:
            progress.usual.append(seconds)
        progress.completed = completed = progress.completed + 1
        self._latest = span
        if self._first is None and progress.first_finished is None:
            self._first = span
        if completed >= progress.due_at and progress.reach():
            self._end_window(stop_time)
        if self._state.loop is None:
            self._guard.report_misuse("a training iteration is outside of a training loop")

    def note_loss(self, loss: Any) -> None:
        """Remember the loss of an iteration if it is already a number: a device is never waited for."""
        # A tensor's value appears in the step records as soon as the device has delivered it.
        self._progress.loss = None
        if isinstance(loss, Real):
            with self._guard.catch("reading a loss"):
                self._progress.loss = float(loss)

    def given_sizes(self, batch_size: Any, tokens: Any) -> dict[str, int]:
        """Return the given sizes as attributes of an iteration; invalid ones are left out."""
        given = {"batch_size": batch_size, "tokens": tokens}
        numbers = {name: self._events.whole_or_none(name, value) for name, value in given.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def fail_current(self, error: BaseException) -> None:
        """Record an exception that was caught, on the span that is open here."""
        self._events.fail_current(error)

    def write_remaining(self, time: float | None = None) -> None:
        """Write the iterations since the last full window, if there are any."""
        if self._progress.has_rest:
            self._end_window(time)

    def _count_sized(self, span: AnySpan, seconds: float) -> None:
        """Count an iteration whose size is given by its attributes or by a function."""
        sizes = self._source.sizes_now() if self._source.sizes_change else self._state.config.sizes
        batch = self._events.whole_or_none("batch_size", span.attributes.get("batch_size"))
        tokens = self._events.whole_or_none("tokens", span.attributes.get("tokens"))
        self._progress.add_other(seconds, sizes, batch, tokens)

    def _end_window(self, time: float | None) -> None:
        with self._guard.catch("summing up training iterations"):
            progress, config = self._progress, self._state.config
            progress.last_finished = _end_of(self._latest)
            if progress.first_finished is None:
                progress.first_finished, self._first = _end_of(self._first), None
            loss = progress.loss if progress.loss is not None else self._log.latest_loss()
            attributes = progress.end_window(config, self._world_size(), loss)
            if config.is_train_iterations_enabled:
                where = self._state.loop if self._state.loop is not None else self._state.application
                self._events.write(where, TRAINING_METRICS, attributes, time)

    # Validation, testing and sampling, which pause the training.

    def begin_evaluation(
        self, loops: Evaluations, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin a validation or testing loop."""
        loops.begin_loop()
        return self.begin_pause(loops.loop_name, attributes, start_time)

    def end_evaluation(
        self,
        loops: Evaluations,
        span: AnySpan,
        error: BaseException | None = None,
        stop_time: float | None = None,
    ) -> None:
        """Write how long its iterations took, and end it."""
        attributes = loops.end_loop(self._progress.completed)
        config = self._state.config
        is_validation = loops is self._state.validation
        if config.is_validation_iterations_enabled if is_validation else config.is_test_iterations_enabled:
            self._events.write(span, loops.event, attributes, stop_time)
        self.end_pause(span, error, stop_time)

    def begin_sampling(
        self, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin sampling."""
        return self.begin_pause(names.SAMPLING, attributes, start_time)

    def begin_pause(
        self, name: str, attributes: Mapping[str, Any] | None, start_time: float | None
    ) -> AnySpan:
        """Begin a pause in which forward passes do not belong to the training."""
        self._phases.leave_training()
        return self._log.start_span(name, attributes=attributes, start_time=start_time)

    def end_pause(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End it."""
        self._events.end(span, error, stop_time)
        self._phases.return_to_training()

    def end_evaluation_iteration(
        self,
        loops: Evaluations,
        span: AnySpan,
        error: BaseException | None = None,
        stop_time: float | None = None,
    ) -> None:
        """End an iteration of such a loop, and count it unless an exception was raised."""
        self._events.end(span, error, stop_time)
        if error is None:
            loops.count(span)

    def _world_size(self) -> int:
        return self._state.config.world_size or find_rank().world_size


def _end_of(span: AnySpan | None) -> float | None:
    start, seconds = (span.start, span.duration) if span is not None else (None, None)
    return start + seconds if start is not None and seconds is not None else None


def _as_lines(metadata: Mapping[str, Any] | None) -> list[str] | None:
    if metadata is None:
        return None
    return [f"{key}:{value}" for key, value in mask_secrets(metadata).items()]


@cache
def _own_version() -> str | None:
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return None
