"""A training job: its configuration, the work done so far, and its events.

Fields of events that begin with `window_` are ours: they cover the iterations since the last such event, while
OneLogger's own fields are totals for the job.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any, Final, Protocol

from toolkit.telemetry.core.checks import whole_number
from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.logger.errors.failure import describe_failure
from toolkit.telemetry.logger.spans.span import NO_FAILURES, AnySpan
from toolkit.telemetry.logger.training.config import ConfigSource, TrainingConfig
from toolkit.telemetry.logger.training.sums import (
    Attributes,
    IterationSizes,
    PartSeconds,
    Sums,
    Tally,
    known,
    over,
)
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.timing.names import (
    TESTING_ITERATION,
    TESTING_LOOP,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
)

_PACKAGE: Final = "ai-toolkit-telemetry"
"""The distribution whose version the events carry."""
_RECORDED: Final = "_telemetry_has_recorded"
_MAX_OF_A_TYPE: Final = 200
"""Exceptions of one type that are recorded with their traceback: a loop may catch one in every step."""


class JobLog(Protocol):
    """A logger as used by a job."""

    guard: Guard

    @property
    def is_live(self) -> bool:
        """Whether calls have an effect."""

    @property
    def run_id(self) -> str | None:
        """The id of the run; None if nothing is written."""

    @property
    def given_tags(self) -> tuple[str | tuple[str, ...] | None, str | None]:
        """The performance tag and the session tag of the options or of `set_tags`."""

    def set_tags(self, *, perf_tag: str | None = None, session_tag: str | None = None) -> None:
        """Change the tags of this session."""

    def span(self, name: str, /, **attributes: Any) -> AnySpan:
        """Return a span that has not begun."""

    def start_span(
        self, name: str, /, *, attributes: Mapping[str, Any] | None = None, start_time: float | None = None
    ) -> AnySpan:
        """Return a span that has begun, now or at a wall time."""

    def current_span(self) -> AnySpan | None:
        """Return the innermost open span of this thread or task."""

    def span_totals(self, name: str) -> tuple[int, float]:
        """Return how many spans of `name` the training thread has ended in this session, and their seconds."""

    def event_outside_spans(
        self, name: str, attributes: Mapping[str, Any], time: float | None = None
    ) -> None:
        """Write an event that belongs to the run as a whole."""

    def latest_loss(self) -> float | None:
        """Return the latest training loss that is known without waiting for a device."""


class Evaluations(Tally):
    """The validation loops of a job, or its testing loops."""

    def __init__(self, event: str, switch: str) -> None:
        super().__init__()
        self.event = event
        self.since = 0
        """Training iterations completed at the last such loop."""
        self._switch = switch

    def is_enabled(self, config: TrainingConfig) -> bool:
        """Whether their events are wanted."""
        return bool(getattr(config, self._switch))


class Job:
    """What the phases of a job share. Times are wall-clock seconds; None means now."""

    def __init__(self, log: JobLog, clock: Clock) -> None:
        self.log = log
        self.guard = log.guard
        self.clock = clock
        self.config = TrainingConfig()
        self.source = ConfigSource(log.guard)
        self.parts = PartSeconds(log.span_totals)
        self.iterations = Tally()
        validations = Evaluations("validation_metrics_update", "is_validation_iterations_enabled")
        tests = Evaluations("testing_metrics_update", "is_test_iterations_enabled")
        self.evaluations: Final = {
            **dict.fromkeys((VALIDATION_LOOP, VALIDATION_ITERATION), validations),
            **dict.fromkeys((TESTING_LOOP, TESTING_ITERATION), tests),
        }
        self.application: AnySpan | None = None
        self.loop: AnySpan | None = None
        self.loop_started: float | None = None
        self.completed = 0
        """Completed training iterations, including those before this job."""
        self.loss: float | None = None
        """The latest loss the caller gave."""
        self._iterations_start = 0
        self._samples_start: int | None = None
        self._ends_at = 0
        """The window ends once this many iterations are completed."""
        self._sizes = IterationSizes()
        self._first: AnySpan | None = None
        """The first iteration; `_latest` is the last one so far."""
        self._latest: AnySpan | None = None
        self._first_finished: float | None = None
        self._errors: dict[str, int] = {}
        self._follow()

    # The configuration.

    def configure(self, given: Mapping[str, Any]) -> None:
        """Add to the configuration, and write it. Raises ConfigError if a key or a value is wrong."""
        self.source.take(given)
        config = self.refresh_config()
        with self.guard.catch("configuring the training telemetry"):
            self._follow()
            if config.perf_tag is not None or config.session_tag is not None:
                tags = config.perf_tag
                self.log.set_tags(
                    perf_tag=",".join(tags) if isinstance(tags, tuple) else tags,
                    session_tag=config.session_tag,
                )
            self.write_config()

    def refresh_config(self) -> TrainingConfig:
        """Call the configuration's functions again and return the result."""
        self.config = self.source.now()
        return self.config

    def _follow(self) -> None:
        """Apply the configuration; earlier iterations of unknown size are counted by it."""
        self._sizes = self.config.sizes
        self.iterations.settle(self._sizes)
        self._begin_window()

    def write_config(self) -> None:
        """Write the configuration as an event."""
        config = self.config
        tags = config.perf_tag or self.log.given_tags[0]
        fields = (
            *("global_batch_size", "log_every_n_train_iterations", "micro_batch_size", "seq_length"),
            *("flops_per_sample", "train_iterations_target", "train_samples_target"),
            *(
                "is_train_iterations_enabled",
                "is_validation_iterations_enabled",
                "is_test_iterations_enabled",
            ),
            "is_save_checkpoint_enabled",
        )
        attributes = known(
            perf_tag=list(tags) if isinstance(tags, tuple) else tags,
            **{name: getattr(config, name) for name in fields},
            checkpoint_strategy=config.save_checkpoint_strategy,
            is_log_throughput_enabled=config.logs_throughput,
            custom_metadata=_as_lines(config.custom_metadata),
        )
        self.write(self.application, "update_training_telemetry_config", attributes)

    def write_initialization(self, span: AnySpan) -> None:
        """Record which process of which job this is."""
        config = self.config
        attributes = known(
            world_size=self._world_size(),
            one_logger_training_telemetry_version=_own_version(),
            enable_for_current_rank=True,
            session_tag=config.session_tag or self.log.given_tags[1] or self.log.run_id,
            is_baseline_run=config.is_baseline_run,
            summary_data_schema_version=config.summary_data_schema_version,
            node_name=socket.gethostname(),
            rank=find_rank().rank,
            custom_metadata=_as_lines(config.custom_metadata),
        )
        self.write(span, "one_logger_initialization", attributes, span.start)
        if not self.source.is_empty:
            self.write_config()

    # Training iterations.

    def begin_loop(
        self, iterations_start: Any, samples_start: Any, iterations_target: Any, samples_target: Any
    ) -> Attributes:
        """Start counting at `iterations_start`, and return the attributes of the loop."""
        start = self.whole_or_none("train_iterations_start", iterations_start) or 0
        config = self.refresh_config()
        with self.guard.catch("beginning the training loop"):
            samples_target = self.source.ask("train_samples_target", samples_target)
            samples_target = samples_target if samples_target is not None else config.train_samples_target
            iterations_target = self.source.ask("train_iterations_target", iterations_target)
            self.iterations.begin_loop()
            self.completed = self._iterations_start = start
            for loops in self.evaluations.values():
                loops.since = start
            self._samples_start = self.whole_or_none("train_samples_start", samples_start)
            self._follow()
            tokens_target = None
            if config.seq_length is not None and samples_target is not None:
                tokens_target = config.seq_length * samples_target
            return known(
                train_iterations_start=start,
                train_samples_start=self._samples_before(),
                train_tokens_target=tokens_target,
                completed_floating_point_operations_overall=self._flops_before(),
                train_iterations_target=(
                    iterations_target if iterations_target is not None else config.train_iterations_target
                ),
                train_samples_target=samples_target,
            )
        return {}

    def count_iteration(self, span: AnySpan, stop_time: float | None = None) -> None:
        """Count a completed iteration; its `batch_size` and `tokens` override the configured batch."""
        seconds = span.duration
        if seconds is None:
            return
        has_sizes = span.attributes or self.source.sizes_change
        self.iterations.count(seconds, self._sizes_of(span) if has_sizes else self._sizes)
        self.completed += 1
        self._latest = span
        if self._first is None and self._first_finished is None:
            self._first = span
        if self.completed >= self._ends_at:
            self._end_window(stop_time)
        if self.loop is None:
            self.guard.report_misuse("a training iteration is outside of a training loop")

    def note_loss(self, loss: Any) -> None:
        """Remember the loss of an iteration if it is already a number: a device is never waited for."""
        # A tensor's value appears in the step records as soon as the device has delivered it.
        self.loss = None
        if isinstance(loss, Real):
            with self.guard.catch("reading a loss"):
                self.loss = float(loss)

    def write_remaining(self, time: float | None = None) -> None:
        """Write the iterations since the last full window, if there are any."""
        if self.iterations.has_rest:
            self._end_window(time)

    def work_done(self) -> Attributes:
        """Return the work done so far, as a checkpoint has it."""
        job, loop = self.iterations.so_far()
        validation, _ = self.evaluations[VALIDATION_LOOP].so_far()
        before, here, flops = self._samples_before(), loop.known_samples, self._flops_overall(loop)
        return known(
            productive_train_iterations=self.completed,
            productive_train_samples=before + here if before is not None and here is not None else None,
            productive_train_iterations_sec=job.seconds,
            productive_validation_iterations_sec=validation.seconds,
            productive_train_tflops=flops / 1e12 if flops is not None else None,
        )

    def _sizes_of(self, span: AnySpan) -> IterationSizes:
        """Return the size of an iteration that is given by its attributes or by a function."""
        if self.source.sizes_change:
            self._sizes = self.source.sizes_now()
        batch = self.whole_or_none("batch_size", span.attributes.get("batch_size"))
        tokens = self.whole_or_none("tokens", span.attributes.get("tokens"))
        return replace(self._sizes, batch=self._sizes.batch if batch is None else batch, tokens=tokens)

    def _begin_window(self) -> None:
        """End the window at the next multiple of the interval: a job resumed at 90 reports at 100."""
        every = self.config.log_every_n_train_iterations
        self._ends_at = self.completed - self.completed % every + every

    def _end_window(self, time: float | None) -> None:
        with self.guard.catch("summing up training iterations"):
            self.iterations.settle(self._sizes)
            window, job = self.iterations.end_window(), self.iterations.job
            self._begin_window()
            if self._first_finished is None:
                self._first_finished, self._first = _end_of(self._first), None
            parts, world_size = self.parts.total(), self._world_size()
            attributes = known(
                train_iterations_start=self._iterations_start,
                current_iteration=self.completed - 1,
                num_iterations=job.count,
                train_samples_start=self._samples_before(),
                num_train_samples=job.known_samples,
                interval=window.count,
                **job.times(),
                **job.speeds(parts, world_size),
                avg_tflops=over(job.known_flops, job.seconds * 1e12),
                train_tokens=job.known_tokens,
                latest_loss=self.loss if self.loss is not None else self.log.latest_loss(),
                completed_floating_point_operations_overall=self._flops_overall(self.iterations.loop),
                total_flops=job.known_flops,
                first_logged_train_iterations_finish_timestamp_sec=self._first_finished,
                last_logged_train_iterations_finish_timestamp_sec=_end_of(self._latest),
                window_num_iterations=window.count,
                **window.times("window_"),
                **window.speeds(self.parts.end_window(parts), world_size, "window_"),
            )
            if self.config.is_train_iterations_enabled:
                where = self.loop if self.loop is not None else self.application
                self.write(where, "training_metrics_update", attributes, time)

    def _samples_before(self) -> int | None:
        """Return how many samples were trained on before this loop."""
        if self._samples_start is not None or self.config.global_batch_size is None:
            return self._samples_start
        return self._iterations_start * self.config.global_batch_size

    def _flops_before(self) -> float | None:
        sizes = self.config.sizes
        if sizes.batch is None or sizes.flops_per_sample is None:
            return None
        return self._iterations_start * sizes.batch * sizes.flops_per_sample

    def _flops_overall(self, loop: Sums) -> float | None:
        """Return the operations of `loop`, the current one, and of all before it."""
        before, here = self._flops_before(), loop.known_flops
        return None if before is None or (here is None and loop.count) else before + (here or 0.0)

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
            kind = type(error).__name__
            self._errors[kind] = self._errors.get(kind, 0) + 1
            if self._errors[kind] > _MAX_OF_A_TYPE:
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
