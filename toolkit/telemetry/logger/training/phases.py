"""The phases of a job: each is a span, and some are counted or write an event."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from toolkit.telemetry.core.decorators import wrap_calls
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.logger.training.job import Job
from toolkit.telemetry.logger.training.sums import known
from toolkit.telemetry.timing.names import (
    TESTING_ITERATION,
    TRAINING_ITERATION,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
)

_F = TypeVar("_F", bound=Callable[..., Any])


class Phase:
    """A `with` block, a decorator or a pair of callbacks; a block yields its span.

    There are several in each iteration, so it does as little as possible.
    """

    def __init__(
        self, job: Job, name: str, attributes: dict[str, Any] | None = None, since: float | None = None
    ) -> None:
        self._job = job
        self.name = name
        self._attributes = attributes or {}
        self._since = since
        self.span: AnySpan = NO_SPAN

    def __enter__(self) -> AnySpan:
        return self.begin(self._since)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def __call__(self, function: _F) -> _F:
        """Return `function` with such a phase around each call; coroutines and generators are supported."""
        guard = self._job.guard
        return guard.call("timing a phase", wrap_calls, function, lambda: copy.copy(self)) or function

    def begin(self, start_time: float | None = None) -> AnySpan:
        """Begin it, now or at a wall time."""
        log = self._job.log
        self.span = log.start_span(self.name, attributes=self._attributes, start_time=start_time)
        return self.span

    def end(self, error: BaseException | str | None = None, stop_time: float | None = None) -> None:
        """End it, now or at a wall time, and record the exception raised inside it or what else went wrong."""
        if isinstance(error, BaseException):
            self._job.write_error(self.span, error)
            self.span.__exit__(type(error), error, error.__traceback__)
        else:
            self.span.stop(stop_time, error)


class Iteration(Phase):
    """Counted unless something went wrong."""

    def end(self, error: BaseException | str | None = None, stop_time: float | None = None) -> None:
        """End it, and count it."""
        # A span that is only added up forgets its attributes when it ends.
        attributes = self.span.attributes
        super().end(error, stop_time)
        if error is None and self.name == TRAINING_ITERATION:
            self._job.count_iteration(self.span, attributes, stop_time)
        elif error is None and self.span.duration is not None:
            self._job.evaluations[self.name].add(self.span.duration)


class Evaluation(Phase):
    """A validation or testing loop, whose event has the times of the job's iterations of that kind."""

    def end(self, error: BaseException | str | None = None, stop_time: float | None = None) -> None:
        """Write how long the iterations took, and end it."""
        job = self._job
        if self.name == VALIDATION_LOOP:
            event, is_wanted = "validation_metrics_update", job.config.is_validation_iterations_enabled
            iterations = VALIDATION_ITERATION
        else:
            event, is_wanted = "testing_metrics_update", job.config.is_test_iterations_enabled
            iterations = TESTING_ITERATION
        attributes = known(
            current_iteration=max(0, job.completed - 1),
            interval=job.iterations_since_last(self.name),
            **job.evaluations[iterations].times(),
        )
        if is_wanted:
            job.write(self.span, event, attributes, stop_time)
        super().end(error, stop_time)


class Application(Phase):
    """The whole job. There is one at a time."""

    def begin(self, start_time: float | None = None) -> AnySpan:
        """Begin the job, and record which process of which job this is."""
        job = self._job
        if job.application is not None:
            job.guard.report_misuse("a second application begins inside the first; it is left out")
            return NO_SPAN
        self._attributes = known(application_name=job.refresh_config().application_name) | self._attributes
        span = super().begin(start_time)
        if span is not NO_SPAN:
            job.application = span
            with job.guard.catch("recording the application"):
                job.write_initialization(span)
        return span

    def end(self, error: BaseException | str | None = None, stop_time: float | None = None) -> None:
        """End the job, and write the remaining iterations of a loop that is still open."""
        if self.span is not NO_SPAN:
            self._job.write_remaining(stop_time)
            super().end(error, stop_time)
            self._job.application = None


class TrainingLoop(Phase):
    """The training loop: its start and its targets."""

    def __init__(self, job: Job, name: str, *given: Any) -> None:
        super().__init__(job, name)
        self._given = given

    def begin(self, start_time: float | None = None) -> AnySpan:
        """Begin the training loop at an iteration; the targets default to the configuration's."""
        job = self._job
        if job.loop is not None:
            job.guard.report_misuse(
                "a training loop starts before the previous one ended; the previous one is ended here"
            )
            self.span = job.loop
            self.end()
        self._attributes = job.begin_loop(*self._given)
        span = super().begin(start_time)
        if span is not NO_SPAN:
            job.loop = span
            job.loop_started = span.start
        return span

    def end(self, error: BaseException | str | None = None, stop_time: float | None = None) -> None:
        """Write the iterations since the last full window, and end the loop."""
        job = self._job
        if self.span is not job.loop:
            # Already ended because another one began inside it, or telemetry is off.
            return
        job.write_remaining(stop_time)
        job.loop = None
        super().end(error, stop_time)
