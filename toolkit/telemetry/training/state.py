"""What is known of a job, what is open in it, and what it has done so far."""

from __future__ import annotations

from toolkit.telemetry.spans.span import AnySpan
from toolkit.telemetry.training.checkpoints import Work
from toolkit.telemetry.training.config import TrainingConfig
from toolkit.telemetry.training.evaluations import Evaluations
from toolkit.telemetry.training.progress import Progress


class State:
    """What the parts of a job need to know of each other."""

    def __init__(self, progress: Progress) -> None:
        self.config = TrainingConfig()
        self.progress = progress
        self.validation = Evaluations()
        self.testing = Evaluations()
        self.application: AnySpan | None = None
        self.loop: AnySpan | None = None

    def work(self) -> Work:
        """Return how much has been done up to here."""
        job, loop = self.progress.so_far(), self.progress.in_this_loop()
        before, here = self.progress.samples_start(self.config), loop.known_samples
        return Work(
            iterations=self.progress.completed,
            samples=before + here if before is not None and here is not None else None,
            training_s=job.seconds,
            validation_s=self.validation.job.seconds,
            flops=self.progress.flops_overall(loop, self.config.sizes),
        )
