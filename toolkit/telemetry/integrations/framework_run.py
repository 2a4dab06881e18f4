"""The run of a training whose framework calls hooks: how it is opened, timed and closed, for every framework."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.logger_setup import GivenLog, options_of
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.timing.names import APPLICATION, TRAINING_LOOP


class FrameworkRun:
    """A logger that was given, which its owner closes, or one run for each training, with its phases."""

    reports_failures = True
    """Whether the framework says when a training fails; else its run has failed if nothing reported its end."""
    offers_phases = True
    """Whether `phases` records more than public hooks tell."""

    def __init__(
        self, log: GivenLog = None, *, run_name: str | None = None, phases: bool | None = None, **options: Any
    ) -> None:
        """Wait for a training; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        if isinstance(log, Mapping) and "phases" in log:
            phases = log["phases"] if phases is None else phases
            log = {name: value for name, value in log.items() if name != "phases"}
        if phases is not None and not isinstance(phases, bool):
            raise OptionsError(f"phases is {phases!r:.200}; it must be true or false")
        if phases and not self.offers_phases:
            raise OptionsError("phases is true; this integration has none")
        self.wants_phases = bool(phases)
        self.given = given = log if isinstance(log, TelemetryLogger) else None
        if isinstance(log, TelemetryLogger):
            if options:
                raise OptionsError(
                    f"a logger was given together with options {sorted(options)}: give one of the two"
                )
            log = {"enabled": log.is_live or find_rank().rank > 0}
        self.options = options_of(log, **options)
        self.run_name = run_name
        self.run_id = None if given is None else given.run_id
        """Of the last run."""
        self.log: TelemetryLogger | None = given
        """The logger of the run; None before the first training."""
        self.guard = Guard() if given is None else given.guard
        self.is_live = False
        """Whether a training is being recorded."""
        self.iteration: AnySpan | None = None
        """The open iteration of the training loop."""
        self._phases: dict[str, AbstractContextManager[Any]] = {}
        """The open phases, each inside the one before."""
        self.start_part: Callable[[str], AnySpan] = lambda _: NO_SPAN
        """Begins a span of a part of a step, in fewer calls than a phase. Looked up once, as it is called in each."""
        self.count_iteration: Callable[[AnySpan], None] = lambda _: None
        """Ends the span of an iteration with its optimizer step, and counts it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Trainers and sweeps copy callbacks; a copy records its own trainings.
        given = self.given or self.options
        return partial(type(self), given, run_name=self.run_name, phases=self.wants_phases), ()

    @property
    def opened(self) -> TelemetryLogger:
        """The logger, once there is one."""
        assert self.log is not None, "only a run that was opened gets here"
        return self.log

    def open_run(self, name: str, config: Any = None, run_id: str | None = None) -> TelemetryLogger:
        """Open the run of a training that begins, or resume the one with this id, unless the options name another.

        An earlier one whose end was not reported has failed.
        """
        self.end_run(InterruptedError("the previous training ended without a report"))
        if self.given is None:
            options = self.options
            if run_id is not None and options.run_id is None:
                options = options.changed(run_id=run_id)
            self.log = TelemetryLogger(self.run_name or name, options, config=config)
        log = self.opened
        # The other ranks write nothing, but carry out rank 0's requests at the same step.
        self.guard, self.is_live = log.guard, log.is_live or find_rank().rank > 0
        if self.is_live and not self.reports_failures:
            unreported.add(self)
            # The last to be registered is called first: before the logger is closed.
            atexit.unregister(_end_unreported)
            atexit.register(_end_unreported)
        self.run_id = log.run_id or run_id
        return log

    def end_run(self, error: BaseException | None, status: str | None = None) -> None:
        """End what is open, and close the run if it was opened here: as the error or `status` says; once."""
        if not self.is_live:
            return
        self.is_live, log = False, self.opened
        unreported.discard(self)
        with self.guard.catch("ending the phases of a training"):
            self.drop_iteration(error)
            self.end_phases_inside(None, error)
        with self.guard.catch("closing the run of a training"):
            if self.given is not None:
                if error is not None:
                    log.training.on_error(error)
            elif status is not None:
                log.close(status)
            else:
                log.__exit__(None, error, None)

    # Phases that hooks begin and end, where a `with` block does not fit.

    def begin_application(self, began_msec: float | None = None) -> None:
        """Begin the job; a logger that was given may already be inside one."""
        if self.given is None:
            self.begin_phase(APPLICATION, self.opened.training.application(start_time_msec=began_msec))

    def begin_loop(self, first_step: int = 0, last_step: int | None = None) -> None:
        """Begin the training loop."""
        training = self.opened.training
        self.start_part, self.count_iteration = internals(self.opened).begin_part, training.end_iteration
        self.begin_phase(TRAINING_LOOP, training.training_loop(first_step, train_iterations_target=last_step))

    def has_phase(self, name: str) -> bool:
        """Return whether such a phase is open."""
        return name in self._phases

    def begin_phase(self, name: str, phase: AbstractContextManager[Any] | None = None) -> None:
        """Begin a phase, by default the one that is called so; an open one of the same name ends."""
        self.end_phases(name)
        self._phases[name] = phase = phase or getattr(self.opened.training, name)()
        phase.__enter__()

    def begin_part(self, name: str) -> None:
        """Begin a part of a step."""
        self._phases[name] = self.start_part(name)

    def end_phases(self, *names: str) -> None:
        """End those of the named phases that are open."""
        for name in names:
            phase = self._phases.pop(name, None)
            if phase is not None:
                phase.__exit__(None, None, None)

    def end_phases_inside(self, outer: str | None, error: BaseException | None = None) -> None:
        """End all phases, or those inside `outer`, normally or because `error` was raised."""
        for name in reversed([*self._phases]):
            if name == outer:
                return
            self._phases.pop(name).__exit__(None, error, None)

    def drop_iteration(self, error: BaseException | None = None) -> None:
        """End an iteration that got to no optimizer step, without counting it."""
        iteration, self.iteration = self.iteration, None
        if iteration is not None and error is not None:
            self.opened.training.end_failed(iteration, error)
        elif iteration is not None:
            iteration.stop()


unreported: Final[set[FrameworkRun]] = set()
"""Runs whose trainings have not reported their end, of frameworks that report no failure."""


def _end_unreported() -> None:
    """Close the runs of trainings whose exception the script has caught; the logger closes those that it ended."""
    if getattr(sys, "last_exc", getattr(sys, "last_value", None)) is None:
        for run in list(unreported):
            with run.guard.catch("closing the run of a training that did not report its end"):
                run.end_run(InterruptedError("the training ended without a report"))
