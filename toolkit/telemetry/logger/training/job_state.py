"""The state of a job: its configuration, its open spans, and the work done so far."""

from __future__ import annotations

from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.logger.training.attributes import (
    TESTING_METRICS,
    VALIDATION_METRICS,
    Attributes,
    known,
)
from toolkit.telemetry.logger.training.checkpoints import WorkDone
from toolkit.telemetry.logger.training.config import TrainingConfig
from toolkit.telemetry.logger.training.iteration_window import Durations
from toolkit.telemetry.logger.training.progress import IterationProgress
from toolkit.telemetry.timing.names import TESTING_LOOP, VALIDATION_LOOP


class Evaluations:
    """The validation loops of this job, or its testing loops: their names and durations."""

    def __init__(self, loop_name: str, event: str) -> None:
        self.loop_name = loop_name
        self.event = event
        self.job = Durations()
        """All iterations of this job; `loop` has those of the open loop."""
        self.loop = Durations()
        self.since = 0
        """Training iterations completed at the last such loop."""

    def begin_loop(self) -> None:
        """Start counting the iterations of a new loop."""
        self.loop = Durations()

    def count(self, span: AnySpan) -> None:
        """Count a completed iteration."""
        if span.duration is not None:
            self.job.add(span.duration)
            self.loop.add(span.duration)

    def end_loop(self, completed: int) -> Attributes:
        """Return the attributes of a loop that ends after `completed` training iterations."""
        loop, job = self.loop, self.job
        interval, self.since = completed - self.since, completed
        return known(
            current_iteration=max(0, completed - 1),
            interval=interval,
            avg_iteration_time_sec=job.average,
            min_iteration_time_sec=job.shortest if job.count else None,
            max_iteration_time_sec=job.longest if job.count else None,
            total_iteration_time_sec=job.seconds if job.count else None,
            window_num_iterations=loop.count,
            window_avg_iteration_time_sec=loop.average,
            window_min_iteration_time_sec=loop.shortest if loop.count else None,
            window_max_iteration_time_sec=loop.longest if loop.count else None,
            window_total_iteration_time_sec=loop.seconds if loop.count else None,
        )


class JobState:
    """What the job, its callbacks and its checkpoints share."""

    def __init__(self, progress: IterationProgress) -> None:
        self.config = TrainingConfig()
        self.progress = progress
        self.validation = Evaluations(VALIDATION_LOOP, VALIDATION_METRICS)
        self.testing = Evaluations(TESTING_LOOP, TESTING_METRICS)
        self.application: AnySpan | None = None
        self.loop: AnySpan | None = None

    def work_done(self) -> WorkDone:
        """Return the work done so far."""
        job, loop = self.progress.so_far(), self.progress.in_this_loop()
        before, here = self.progress.samples_start(self.config), loop.known_samples
        return WorkDone(
            iterations=self.progress.completed,
            samples=before + here if before is not None and here is not None else None,
            training_s=job.seconds,
            validation_s=self.validation.job.seconds,
            flops=self.progress.flops_overall(loop, self.config.sizes),
        )
