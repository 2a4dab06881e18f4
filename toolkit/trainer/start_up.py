"""What a job does before it trains, timed before there is a logger to tell it to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.core.wall_times import wall_time_of
from toolkit.telemetry import TelemetryLogger


class StartUp:
    """The parts of a start-up and when they were.

    The logger can only be opened once it is known which run to go on with, and that takes a checkpoint that fits the
    model: so the first parts are over by then, and are told of in hindsight.
    """

    def __init__(self, began: float | None = None) -> None:
        # By the clock that nobody sets, however long a model takes to load.
        self._began = time.monotonic() - (0.0 if began is None else time.time() - began)
        self._parts: list[tuple[str, float, float]] = []

    @property
    def began(self) -> float:
        """Wall time at which the job began: its process, where that was started for it."""
        return wall_time_of(self._began)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block."""
        began = time.monotonic()
        yield
        self._parts.append((name, began, time.monotonic()))

    def tell(self, log: TelemetryLogger) -> None:
        """Write the parts down, in the span that is open now."""
        for name, began, ended in self._parts:
            log.start_span(name, start_time=wall_time_of(began)).stop(stop_time=wall_time_of(ended))
        self._parts.clear()
