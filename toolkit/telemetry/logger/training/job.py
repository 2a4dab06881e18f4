"""A training job: its configuration, the work done so far, and its events, whose figures are totals of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol

from toolkit.telemetry.core.checks import whole_number
from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.logger.errors.failure import describe_failure
from toolkit.telemetry.logger.spans.span import NO_FAILURES, AnySpan
from toolkit.telemetry.logger.training.config import ConfigSource, TrainingConfig
from toolkit.telemetry.logger.training.sums import (
    UNKNOWN_SIZES,
    Attributes,
    Sizes,
    Sums,
    amount,
    known,
)
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder.process import host_name
from toolkit.telemetry.timing.names import TESTING_ITERATION, VALIDATION_ITERATION

_PACKAGE: Final = "ai-toolkit-telemetry"
"""The distribution whose version the events carry."""
_RECORDED: Final = "_telemetry_has_recorded"
_MAX_OF_A_TYPE: Final = 200
"""Exceptions of one type that are recorded with their traceback: a loop may catch one in every step."""
_OF_THE_JOB: Final = {
    *("application_name", "session_tag", "is_baseline_run", "world_size", "summary_data_schema_version"),
}
"""Keys of the configuration that are no part of its event: the initialization has them."""


class JobLog(Protocol):
    """A logger as used by a job: its `Internals`."""

    guard: Guard

    @property
    def is_live(self) -> bool:
        """Whether calls have an effect."""

    @property
    def given_tags(self) -> tuple[str | tuple[str, ...] | None, str | None]:
        """The performance tag and the session tag."""

    def set_tags(self, *, perf_tag: str | None = None, session_tag: str | None = None) -> None:
        """Change the tags of this session."""

    def start_span(
        self, name: str, /, *, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Return a span that has begun, now or at a wall time."""

    def current_span(self) -> AnySpan | None:
        """Return the innermost open span of this thread or task."""

    def event_outside_spans(
        self, name: str, attributes: Mapping[str, Any], time: float | None = None
    ) -> None:
        """Write an event that belongs to the run as a whole."""

    def latest_loss(self) -> float | None:
        """Return the latest training loss that is known without waiting for a device."""


class Job:
    """What the phases of a job share. Times are wall-clock seconds; None means now."""

    def __init__(self, log: JobLog, clock: Clock) -> None:
        self.log = log
        self.guard = log.guard
        self.clock = clock
        self.config = TrainingConfig()
        self.evaluations: Final = {VALIDATION_ITERATION: Sums(), TESTING_ITERATION: Sums()}
        self.application: AnySpan | None = None
        self.loop: AnySpan | None = None
        self.loop_started: float | None = None
        self.completed = 0
        """Completed training iterations, including those before this job."""
        self._source = ConfigSource(log.guard)
        self._sizes: Sizes = UNKNOWN_SIZES
        """Of an iteration by the configuration."""
        self._sums = Sums()
        """Of all iterations so far."""
        self._before_loop = Sums()
        """The sums as the current loop began."""
        self._interval = 0
        """Iterations since the last event."""
        self._iterations_start = 0
        self._samples_start: int | None = None
        self._evaluated_at: dict[str, int] = {}
        """Completed iterations at the last evaluation of each kind in this loop."""
        self._first_finished: float | None = None
        self._latest: AnySpan | None = None
        """The last iteration so far."""
        self._errors: Counter[str] = Counter()

    # The configuration.

    def configure(self, given: Mapping[str, Any]) -> None:
        """Add to the configuration, and write it. Raises ConfigError if a key or a value is wrong."""
        self._source.take(given)
        config = self.refresh_config()
        with self.guard.catch("configuring the training telemetry"):
            if config.perf_tag is not None or config.session_tag is not None:
                tags = config.perf_tag
                self.log.set_tags(
                    perf_tag=",".join(tags) if isinstance(tags, tuple) else tags,
                    session_tag=config.session_tag,
                )
            self._write_config()

    def refresh_config(self) -> TrainingConfig:
        """Call the configuration's functions again and return the result."""
        self.config = self._source.now()
        self._sizes = _sizes_by(self.config, None, None)
        return self.config

    def _write_config(self) -> None:
        config = self.config
        tags = config.perf_tag or self.log.given_tags[0]
        stated = {each.name: getattr(config, each.name) for each in fields(config)}
        stated |= {
            "perf_tag": list(tags) if isinstance(tags, tuple) else tags,
            "checkpoint_strategy": stated.pop("save_checkpoint_strategy"),
            "is_log_throughput_enabled": config.logs_throughput,
            "custom_metadata": _as_lines(config.custom_metadata),
        }
        attributes = known(**{name: value for name, value in stated.items() if name not in _OF_THE_JOB})
        self.write(self.application, "update_training_telemetry_config", attributes)

    def write_initialization(self, span: AnySpan) -> None:
        """Record which process of which job this is."""
        config = self.config
        attributes = known(
            world_size=self._world_size(),
            one_logger_training_telemetry_version=_own_version(),
            enable_for_current_rank=True,
            session_tag=config.session_tag or self.log.given_tags[1],
            is_baseline_run=config.is_baseline_run,
            summary_data_schema_version=config.summary_data_schema_version,
            node_name=host_name(),
            rank=find_rank().rank,
            custom_metadata=_as_lines(config.custom_metadata),
        )
        self.write(span, "one_logger_initialization", attributes, span.start)
        if not self._source.is_empty:
            self._write_config()

    # Training iterations.

    def begin_loop(self, iterations_start: Any, samples_start: Any, targets: Mapping[str, Any]) -> Attributes:
        """Start counting at `iterations_start`, and return the attributes of the loop."""
        config, planned = self.refresh_config(), self._source.of(targets)
        with self.guard.catch("beginning the training loop"):
            start = self.whole_or_none("train_iterations_start", iterations_start) or 0
            self._before_loop = copy(self._sums)
            self._evaluated_at = {}
            self.completed = self._iterations_start = start
            self._samples_start = self.whole_or_none("train_samples_start", samples_start)
            samples_target = planned.train_samples_target or config.train_samples_target
            return known(
                train_iterations_start=start,
                train_samples_start=self._samples_before(),
                train_tokens_target=amount(config.seq_length) * amount(samples_target),
                completed_floating_point_operations_overall=self._flops_before(),
                train_iterations_target=planned.train_iterations_target or config.train_iterations_target,
                train_samples_target=samples_target,
            )
        return {}

    def end_iteration(self, span: AnySpan) -> None:
        """End the span of a training iteration, and count it."""
        # A span that is only added up forgets its attributes when it ends.
        attributes = span.attributes
        span.__exit__(None, None, None)
        self.count_iteration(span, attributes)

    def count_iteration(self, span: AnySpan, attributes: Attributes, stop_time: float | None = None) -> None:
        """Count a completed iteration; its `batch_size` and `tokens` override the configured batch."""
        seconds, sizes = span.duration, self._sizes
        if seconds is None:
            return
        if attributes or self._source.sizes_change:
            config = self._source.sizes_now() if self._source.sizes_change else self.config
            given = [self.whole_or_none(name, attributes.get(name)) for name in ("batch_size", "tokens")]
            sizes = _sizes_by(config, *given)
        self._sums.add(seconds, sizes)
        self.completed += 1
        self._interval += 1
        self._latest = span
        if self._first_finished is None:
            self._first_finished = _end_of(span)
        # At multiples of the interval: a job resumed at 90 reports at 100.
        if self.completed % self.config.log_every_n_train_iterations == 0:
            self.write_remaining(stop_time)
        if self.loop is None:
            self.guard.report_misuse("a training iteration is outside of a training loop")

    def iterations_since_last(self, evaluation: str) -> int:
        """Return how many iterations were completed since the last evaluation of that kind, or since the loop began."""
        last = self._evaluated_at.get(evaluation, self._iterations_start)
        self._evaluated_at[evaluation] = self.completed
        return self.completed - last

    def write_remaining(self, time: float | None = None) -> None:
        """Write the totals, if there are iterations since they were last written."""
        interval, self._interval = self._interval, 0
        if not interval or not self.config.is_train_iterations_enabled:
            return
        with self.guard.catch("summing up training iterations"):
            sums = self._sums
            attributes = known(
                train_iterations_start=self._iterations_start,
                current_iteration=self.completed - 1,
                num_iterations=sums.count,
                train_samples_start=self._samples_before(),
                num_train_samples=sums.samples,
                interval=interval,
                **sums.times(),
                **sums.speeds(self._world_size()),
                train_tokens=sums.tokens,
                latest_loss=self.log.latest_loss(),
                completed_floating_point_operations_overall=self._flops_overall(),
                total_flops=sums.flops,
                first_logged_train_iterations_finish_timestamp_sec=self._first_finished,
                last_logged_train_iterations_finish_timestamp_sec=_end_of(self._latest),
            )
            where = self.loop if self.loop is not None else self.application
            self.write(where, "training_metrics_update", attributes, time)

    def work_done(self) -> Attributes:
        """Return the work done so far, as a checkpoint has it."""
        sums = self._sums
        return known(
            productive_train_iterations=self.completed,
            productive_train_samples=self._samples_before() + sums.samples - self._before_loop.samples,
            productive_train_iterations_sec=sums.seconds,
            productive_validation_iterations_sec=self.evaluations[VALIDATION_ITERATION].seconds,
            productive_train_tflops=self._flops_overall() / 1e12,
        )

    def _samples_before(self) -> float:
        """Return how many samples were trained on before this loop."""
        if self._samples_start is not None:
            return self._samples_start
        return self._iterations_start * amount(self.config.global_batch_size)

    def _flops_before(self) -> float:
        return self._iterations_start * amount(self.config.global_batch_size) * self.config.flops

    def _flops_overall(self) -> float:
        """Return the operations of the current loop and of all before it."""
        return self._flops_before() + self._sums.flops - self._before_loop.flops

    def _world_size(self) -> int:
        return self.config.world_size or find_rank().world_size

    # Writing.

    def write(
        self, span: AnySpan | None, name: str, attributes: Attributes, time: float | None = None
    ) -> None:
        """Write an event of `span`, or of the run if `span` is None."""
        if span is not None:
            span.event_with(name, attributes, time)
        else:
            self.log.event_outside_spans(name, attributes, time)

    def write_error(self, span: AnySpan | None, error: BaseException) -> None:
        """Record an exception once, as outer phases see it too; interrupts and `StopIteration` are not errors."""
        if not isinstance(error, Exception) or isinstance(error, NO_FAILURES) or not self.log.is_live:
            return
        with self.guard.catch("recording an error"):
            if hasattr(error, _RECORDED):
                return
            # The mark is on the exception itself: a reference kept here would keep all its frames alive, and an id
            # may be reused. An exception that takes no attributes is recorded by each phase.
            with suppress(AttributeError, TypeError):
                setattr(error, _RECORDED, True)
            self._errors[type(error).__name__] += 1
            if self._errors[type(error).__name__] > _MAX_OF_A_TYPE:
                return
            described = describe_failure(error)
            attributes = known(
                error_message=described["message"],
                exception_type=described["type"],
                exception_message=described["message"],
                exception_traceback="\n".join(described["stack"]),
            )
            self.write(span, "error", attributes)

    def whole_or_none(self, name: str, value: Any) -> int | None:
        """Return an argument as a whole number ≥ 0; None if it was not given or is invalid."""
        if value is None:
            return None
        number = whole_number(value)
        if number is None or number < 0:
            self.guard.report_misuse(f"{name} must be a whole number ≥ 0, got a {type(value).__name__}")
            return None
        return number


def _sizes_by(config: TrainingConfig, batch: int | None, tokens: int | None) -> Sizes:
    """Return the samples, tokens and operations of an iteration, of which the first two may be its own."""
    samples = amount(config.global_batch_size if batch is None else batch)
    return samples, samples * amount(config.seq_length) if tokens is None else tokens, samples * config.flops


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
