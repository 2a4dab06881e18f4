"""What other packages of this project need of a logger beyond its public calls.

It reads private attributes of the logger on purpose: this is the one place that does.
"""
# ruff: noqa: SLF001

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.logger.logger_timing import TimingCalls
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan

if TYPE_CHECKING:
    from toolkit.telemetry.logger.records.completions.completion_recorder import CompletionRecorder
    from toolkit.telemetry.logger.records.loader_batches import LoaderBatches
    from toolkit.telemetry.logger.session.live_run import LiveRun
    from toolkit.telemetry.runfolder.evidence.batches import BatchRow


class Internals:
    """A logger for our own packages; none of its calls raises, and those that write do nothing once it is not live."""

    def __init__(self, log: TimingCalls) -> None:
        # Only assignments, in which nothing can fail: nothing guards this.
        self.guard = log.guard
        self.after_fork_in_child = log._after_fork_in_child
        """Turns the logger into one that does nothing, in a forked child."""
        self.span, self.start_span = log.span, log.start_span
        self._log = log

    @property
    def begin_part(self) -> Callable[[str], AnySpan]:
        """What begins a span of a part of each step, where one call more counts; it never raises."""
        run = self._log._run
        return (lambda _: NO_SPAN) if run is None else run.spans.begin_part

    @property
    def is_live(self) -> bool:
        """Whether calls of the logger have an effect."""
        return self._log.is_live

    @property
    def run_id(self) -> str | None:
        """The id of the run; None where nothing is written."""
        run = self._log._run
        return None if run is None else run.session_folder.manifest.run_id

    @property
    def resumed_after(self) -> int | None:
        """The last step of the run that this session resumes, -1 if it had none; None for a new run."""
        run = self._log._run
        if run is None or len(run.session_folder.manifest.sessions) < 2:
            return None
        return -1 if run.step_before is None else run.step_before

    @property
    @guarded
    def completions(self) -> CompletionRecorder | None:
        """Where completions collected from a trainer are written; None where they are not kept."""
        recorder = self._run.completions
        return recorder if recorder.options.enabled else None

    @property
    def given_tags(self) -> tuple[str | tuple[str, ...] | None, str | None]:
        """The performance tag and the session tag, which is the run's id where none was given."""
        run, options = self._log._run, self._log._options
        perf_tag, session_tag = (options.perf_tag, options.session_tag) if run is None else run.tags
        return perf_tag, session_tag or self.run_id

    @guarded
    def set_tags(self, *, perf_tag: str | None = None, session_tag: str | None = None) -> None:
        """Change the tags of this session, which may be known only after the start."""
        self._run.set_tags(perf_tag, session_tag)

    @guarded
    def current_span(self) -> AnySpan | None:
        """Return the span that is open here, on this thread or in this task."""
        return self._run.spans.innermost()

    @guarded
    def count_samples(self, share: float) -> None:
        """Set which share of its usual samples the current step has: for a short last batch.

        `samples_per_sec` is worked out with as many samples a step as the start record says, where this is not called.
        """
        self._run.steps.speed.count_samples(share)

    @guarded
    def loader_batches(self, take: Callable[[BatchRow], None] | None = None) -> LoaderBatches | None:
        """Return what follows data loaders and keeps their batches, or has `take` do it; None if none are kept."""
        if self._run.batches is None:
            return None
        # Imported where loaders are followed.
        from toolkit.telemetry.logger.records.loader_batches import LoaderBatches

        return LoaderBatches(take or self.keep_batch, self.guard)

    def keep_batch(self, row: BatchRow | None, step: int | None = None) -> None:
        """Keep a batch of a step, or of the next one that is logged."""
        run = self._log._run
        if row is not None and self._log.is_live and run is not None and run.batches is not None:
            run.batches.take(row, step)

    @guarded
    def event_outside_spans(
        self, name: str, attributes: Mapping[str, Any], time: float | None = None
    ) -> None:
        """Write an event that belongs to the run as a whole."""
        self._run.spans.put_event(None, "", name, attributes, time)

    @guarded
    def put(self, event: str, fields: Mapping[str, Any], *, wall: float | None = None) -> None:
        """Write a record of any kind, also of those that a script has other calls for; `wall` is another time."""
        self._run.put(event, fields, wall=wall)

    def latest_loss(self) -> float | None:
        """Return the newest training loss that is known without asking a device."""
        newest: Any = None
        with self.guard.catch("looking up the loss"):
            run = self._log._run
            newest = None if run is None else run.latest_loss()
        return float(newest) if isinstance(newest, (int, float)) else None

    @property
    def _run(self) -> LiveRun:
        return self._log._live()


def internals(log: TimingCalls) -> Internals:
    """Return what this project's own packages need of a logger; nothing for scripts: it may change at any time."""
    if log._internals is None:
        log._internals = Internals(log)
    return log._internals  # type: ignore[no-any-return]  # made above
