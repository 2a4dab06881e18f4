"""A training job as it goes on: what begins, what ends, what is counted in between, and what is said of it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any, Final

from toolkit.core.clock import Clock
from toolkit.core.ranks import find_rank
from toolkit.privacy.masking import mask_secrets
from toolkit.telemetry.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.training.attributes import (
    CONFIG_UPDATE,
    INITIALIZATION,
    TESTING_METRICS,
    TRAINING_METRICS,
    VALIDATION_METRICS,
    OneLoggerInitializationAttributes,
    TestingMetricsUpdateAttributes,
    TrainingTelemetryAttributes,
    ValidationMetricsUpdateAttributes,
)
from toolkit.telemetry.training.config import ConfigSource, TrainingConfig
from toolkit.telemetry.training.event_writer import EventWriter
from toolkit.telemetry.training.job_log import JobLog
from toolkit.telemetry.training.part import Kind
from toolkit.telemetry.training.phases import Phases
from toolkit.telemetry.training.progress import Progress
from toolkit.telemetry.training.saving import Saving
from toolkit.telemetry.training.state import State
from toolkit.timing.names import (
    APPLICATION,
    BESIDE_TRAINING,
    SAMPLING,
    TESTING_ITERATION,
    TESTING_LOOP,
    TRAINING_ITERATION,
    TRAINING_LOOP,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
)

_PACKAGE: Final = "ai-toolkit-telemetry"
"""Of OneLogger's summary data, whose fields these events have."""


class Job:
    """What the context managers and the callbacks have in common.

    Each part has a `begin_…`, which returns its span, and an `end_…`, which is given that span and the exception that
    went through it. Times are wall seconds; None is now. Nothing here raises, but for misuse where that is asked for.
    """

    def __init__(
        self,
        log: JobLog,
        clock: Clock,
    ) -> None:
        self._log = log
        self._guard = log.guard
        self._source = ConfigSource(log.guard)
        self._phases = Phases(log.span_totals)
        self._progress = Progress(self._phases)
        self._state = State(self._progress)
        self._teller = EventWriter(log)
        self.saving = Saving(log, clock, self._state, self._teller)
        self._first: AnySpan | None = None
        """The first iteration; `_latest` is the last one so far."""
        self._latest: AnySpan | None = None

    @property
    def is_live(self) -> bool:
        """Whether anything is written."""
        return self._log.is_live

    # The configuration.

    def configure(self, given: Mapping[str, Any]) -> None:
        """Add to what is known of the job, and write it.

        Raises:
            ConfigError: a key or a value is wrong.
        """
        self._source.take(given)
        config = self._ask_again()
        with self._guard.catch("configuring the training telemetry"):
            self._progress.follow(config)
            if config.perf_tag is not None or config.session_tag is not None:
                tags = config.perf_tag
                self._log.set_tags(
                    perf_tag=",".join(tags) if isinstance(tags, tuple) else tags,
                    session_tag=config.session_tag,
                )
            self._tell_of_config(config)

    def _ask_again(self) -> TrainingConfig:
        """Return the configuration with its functions asked anew."""
        self._state.config = self._source.now()
        return self._state.config

    def _tell_of_config(self, config: TrainingConfig) -> None:
        tags = config.perf_tag or self._log.given_tags[0]
        told = TrainingTelemetryAttributes(
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
        self._teller.tell(self._state.application, CONFIG_UPDATE, told)

    # Parts of which nothing but their time is known.

    def kind(self, name: str) -> Kind:
        """Return what all parts of a name have in common, where they are a span or are counted by it."""
        count = {
            TRAINING_ITERATION: self.count_iteration,
            VALIDATION_ITERATION: self.count_validation_iteration,
            TESTING_ITERATION: self.count_testing_iteration,
        }
        return Kind(name=name, make=self._log.span, fail=self._teller.tell_of_error, count=count.get(name))

    def begin_plain(self, name: str, start_time: float | None) -> AnySpan:
        """Begin such a part."""
        return self._log.start_span(name, start_time=start_time)

    def end_plain(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End such a part."""
        self._teller.end(span, error, stop_time)

    def abandon(self, name: str, span: AnySpan) -> None:
        """End a part of any kind whose end nobody told of, without counting it as one that was done."""
        span.stop(error="its end was never told")
        if name in BESIDE_TRAINING:
            self._phases.return_to_training()

    # The application.

    def begin_application(
        self, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin the job, and say which process of which job this is. There is one at a time."""
        if self._state.application is not None:
            self._guard.report_misuse("a second application begins inside the first; it is left out")
            return NO_SPAN
        config = self._ask_again()
        given = {"application_name": config.application_name} if config.application_name is not None else {}
        span = self._log.start_span(
            APPLICATION, attributes={**given, **(attributes or {})}, start_time=start_time
        )
        if span is NO_SPAN:
            return span
        self._state.application = span
        with self._guard.catch("telling of the application"):
            rank = find_rank()
            told = OneLoggerInitializationAttributes(
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
            self._teller.tell(span, INITIALIZATION, told, span.start)
            if not self._source.is_empty:
                self._tell_of_config(config)
        return span

    def end_application(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End the job; a loop that is still open has the rest of its iterations told."""
        if span is NO_SPAN:
            return
        self.tell_of_the_rest(stop_time)
        self._teller.end(span, error, stop_time)
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
        """Begin the training loop at an iteration; the targets are the configuration's where they are not given."""
        if self._state.loop is not None:
            self._guard.report_misuse(
                "a training loop begins before the one before it has ended, which is ended here"
            )
            self.end_training_loop(self._state.loop)
        start = self._teller.whole_or_none("train_iterations_start", iterations_start) or 0
        attributes: dict[str, Any] = {}
        config = self._ask_again()
        with self._guard.catch("beginning the training loop"):
            told = self._progress.begin_loop(
                config,
                iterations_start=start,
                samples_start=self._teller.whole_or_none("train_samples_start", samples_start),
                iterations_target=self._source.ask("train_iterations_target", iterations_target),
                samples_target=self._source.ask("train_samples_target", samples_target),
            )
            attributes = told.known()
            self._state.validation.since = self._state.testing.since = start
        span = self._log.start_span(TRAINING_LOOP, attributes=attributes, start_time=start_time)
        if span is not NO_SPAN:
            self._state.loop = span
            self._progress.loop_started = span.start
            self._phases.return_to_training()
        return span

    def end_training_loop(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """Tell of the iterations since the last full window, and end the loop."""
        if span is not self._state.loop:
            # Ended already, because another one began inside it; or telemetry is off.
            return
        self.tell_of_the_rest(stop_time)
        self._phases.leave_training()
        self._state.loop = None
        self._teller.end(span, error, stop_time)

    def begin_iteration(self, start_time: float | None = None) -> AnySpan:
        """Begin a training iteration."""
        if start_time is not None:
            return self._log.start_span(TRAINING_ITERATION, start_time=start_time)
        return self._log.span(TRAINING_ITERATION).__enter__()

    def end_iteration(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End a training iteration, and count it unless an exception went through it."""
        self._teller.end(span, error, stop_time)
        if error is None:
            self.count_iteration(span, stop_time)

    def count_iteration(self, span: AnySpan, stop_time: float | None = None) -> None:
        """Count an iteration that has ended well; `batch_size` and `tokens` among its attributes say what it had.

        This is done for every iteration of the training, so that nothing is done here that can be done later.
        """
        seconds = span.duration
        if seconds is None:
            return
        progress = self._progress
        if span.attributes or self._source.sizes_change:
            self._count_other(span, seconds)
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
        """Remember the loss of an iteration, if it is a number already: a device is never asked for one."""
        # A tensor's number is in the step records, as soon as the device has delivered it.
        self._progress.loss = None
        if isinstance(loss, Real):
            with self._guard.catch("reading a loss"):
                self._progress.loss = float(loss)

    def sizes_said(self, batch_size: Any, tokens: Any) -> dict[str, int]:
        """Return, as attributes of an iteration, what its caller says that it trained on; nonsense is left out."""
        given = {"batch_size": batch_size, "tokens": tokens}
        numbers = {name: self._teller.whole_or_none(name, value) for name, value in given.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def fail_current(self, error: BaseException) -> None:
        """Tell of an exception that somebody has caught, on the span that is open here."""
        self._teller.fail_current(error)

    def tell_of_the_rest(self, time: float | None = None) -> None:
        """Tell of the iterations since the last full window, if there are any."""
        if self._progress.has_rest:
            self._end_window(time)

    def _count_other(self, span: AnySpan, seconds: float) -> None:
        """Count an iteration that says itself, or of which a function says, what it trained on."""
        sizes = self._source.sizes_now() if self._source.sizes_change else self._state.config.sizes
        batch = self._teller.whole_or_none("batch_size", span.attributes.get("batch_size"))
        tokens = self._teller.whole_or_none("tokens", span.attributes.get("tokens"))
        self._progress.add_other(seconds, sizes, batch, tokens)

    def _end_window(self, time: float | None) -> None:
        with self._guard.catch("summing up training iterations"):
            progress, config = self._progress, self._state.config
            progress.last_finished = _end_of(self._latest)
            if progress.first_finished is None:
                progress.first_finished, self._first = _end_of(self._first), None
            loss = progress.loss if progress.loss is not None else self._log.latest_loss()
            told = progress.end_window(config, self._world_size(), loss)
            if config.is_train_iterations_enabled:
                where = self._state.loop if self._state.loop is not None else self._state.application
                self._teller.tell(where, TRAINING_METRICS, told, time)

    # Validation, testing, sampling: what is done beside the training.

    def begin_validation(
        self, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin a validation loop."""
        self._state.validation.begin_loop()
        return self.begin_beside(VALIDATION_LOOP, attributes, start_time)

    def end_validation(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """Tell how long its iterations took, and end it."""
        told = self._state.validation.end_loop(ValidationMetricsUpdateAttributes, self._progress.completed)
        if self._state.config.is_validation_iterations_enabled:
            self._teller.tell(span, VALIDATION_METRICS, told, stop_time)
        self.end_beside(span, error, stop_time)

    def begin_testing(
        self, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin a testing loop."""
        self._state.testing.begin_loop()
        return self.begin_beside(TESTING_LOOP, attributes, start_time)

    def end_testing(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """Tell how long its iterations took, and end it."""
        told = self._state.testing.end_loop(TestingMetricsUpdateAttributes, self._progress.completed)
        if self._state.config.is_test_iterations_enabled:
            self._teller.tell(span, TESTING_METRICS, told, stop_time)
        self.end_beside(span, error, stop_time)

    def begin_sampling(
        self, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Begin to make samples."""
        return self.begin_beside(SAMPLING, attributes, start_time)

    def begin_beside(
        self, name: str, attributes: Mapping[str, Any] | None, start_time: float | None
    ) -> AnySpan:
        """Begin something in which a forward pass is not the training's."""
        self._phases.leave_training()
        return self._log.start_span(name, attributes=attributes, start_time=start_time)

    def end_beside(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End it."""
        self._teller.end(span, error, stop_time)
        self._phases.return_to_training()

    def end_validation_iteration(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End an iteration of a validation loop, and count it unless an exception went through it."""
        self._teller.end(span, error, stop_time)
        if error is None:
            self.count_validation_iteration(span)

    def count_validation_iteration(self, span: AnySpan) -> None:
        """Count one that has ended well."""
        if span.duration is not None:
            self._state.validation.add(span.duration)

    def end_testing_iteration(
        self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None
    ) -> None:
        """End an iteration of a testing loop, and count it unless an exception went through it."""
        self._teller.end(span, error, stop_time)
        if error is None:
            self.count_testing_iteration(span)

    def count_testing_iteration(self, span: AnySpan) -> None:
        """Count one that has ended well."""
        if span.duration is not None:
            self._state.testing.add(span.duration)

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
