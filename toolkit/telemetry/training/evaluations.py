"""Validation and testing loops: how long their iterations take, and what their events say."""

from __future__ import annotations

from typing import TypeVar

from toolkit.telemetry.training.attributes import EvaluationMetricsUpdateAttributes
from toolkit.telemetry.training.windows import Times

_A = TypeVar("_A", bound=EvaluationMetricsUpdateAttributes)


class Evaluations:
    """The validation loops of this job, or its testing loops."""

    def __init__(self) -> None:
        self.job = Times()
        """All iterations of this job; `loop` has those of the loop that is open."""
        self.loop = Times()
        self.since = 0
        """Training iterations that were completed at the last such loop."""

    def begin_loop(self) -> None:
        """Count the iterations of one loop from here on."""
        self.loop = Times()

    def add(self, seconds: float) -> None:
        """Count one iteration."""
        self.job.add(seconds)
        self.loop.add(seconds)

    def end_loop(self, kind: type[_A], completed: int) -> _A:
        """Return what there is to say once `completed` training iterations are behind us."""
        loop, job = self.loop, self.job
        interval, self.since = completed - self.since, completed
        return kind(
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
