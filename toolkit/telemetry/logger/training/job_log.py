"""What a training job needs from its logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.spans.span import AnySpan


class JobLog(Protocol):
    """A logger as used by a job's spans, callbacks and metrics."""

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
        self,
        name: str,
        /,
        *,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        parent: AnySpan | str | None = None,
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
