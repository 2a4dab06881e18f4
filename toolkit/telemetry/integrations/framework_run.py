"""The run of a training whose framework calls hooks: how it is opened, timed and closed, for every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.logger_setup import GivenLog, options_of, resuming
from toolkit.telemetry.integrations.open_phases import OpenPhases, exit_arguments
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.timing.names import APPLICATION, TRAINING_ITERATION, TRAINING_LOOP


class FrameworkRun:
    """A logger that was given, which its owner closes, or one run for each training, with its phases."""

    def __init__(
        self, log: GivenLog = None, *, run_name: str | None = None, phases: bool | None = None, **options: Any
    ) -> None:
        """Wait for a training; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        if isinstance(log, Mapping) and "phases" in log:
            phases = log["phases"] if phases is None else phases
            log = {name: value for name, value in log.items() if name != "phases"}
        if phases is not None and not isinstance(phases, bool):
            raise OptionsError(f"phases is {phases!r:.200}; it must be true or false")
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
        self.log: TelemetryLogger | None = given
        """The logger of the run; None before the first training."""
        self.guard = Guard() if given is None else given.guard
        self.is_live = False
        """Whether a training is being recorded."""
        self.phases = OpenPhases()
        self.iteration: AnySpan | None = None
        """The open iteration of the training loop."""
        self._begin_part: Callable[[str], AnySpan] = lambda _: NO_SPAN
        self._end_iteration: Callable[[AnySpan], None] = lambda _: None

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
        """Open the run of a training that begins; an earlier one whose end was not reported has failed."""
        self.end_run(InterruptedError("the previous training ended without a report"))
        if self.given is None:
            self.log = TelemetryLogger(self.run_name or name, resuming(self.options, run_id), config=config)
        log = self.opened
        # The other ranks write nothing, but carry out rank 0's requests at the same step.
        self.guard, self.is_live = log.guard, log.is_live or find_rank().rank > 0
        return log

    def begin_application(self, began_msec: float | None = None) -> None:
        """Begin the job; a logger that was given may already be inside one."""
        if self.given is None:
            self.phases.begin(APPLICATION, self.opened.training.application(start_time_msec=began_msec))

    def begin_loop(self, first_step: int = 0, last_step: int | None = None) -> None:
        """Begin the training loop."""
        training = self.opened.training
        # Looked up once: both are called in each step.
        self._begin_part, self._end_iteration = internals(self.opened).begin_part, training.end_iteration
        loop = training.training_loop(first_step, train_iterations_target=last_step)
        self.phases.begin(TRAINING_LOOP, loop)

    def begin_iteration(self) -> None:
        """Begin an iteration of the loop."""
        self.iteration = self._begin_part(TRAINING_ITERATION)

    def end_iteration(self) -> None:
        """End the iteration with its optimizer step, and count it."""
        iteration, self.iteration = self.iteration, None
        if iteration is not None:
            self._end_iteration(iteration)

    def drop_iteration(self, error: BaseException | None = None) -> None:
        """End an iteration that got to no optimizer step, without counting it."""
        iteration, self.iteration = self.iteration, None
        if iteration is not None and error is not None:
            self.opened.training.end_failed(iteration, error)
        elif iteration is not None:
            iteration.stop()

    def end_run(self, error: BaseException | None, status: str | None = None) -> None:
        """End what is open, and close the run if it was opened here: as the error or `status` says; once."""
        if not self.is_live:
            return
        self.is_live, log = False, self.opened
        with self.guard.catch("ending the phases of a training"):
            self.drop_iteration(error)
            self.phases.end_all(error)
        with self.guard.catch("closing the run of a training"):
            if self.given is not None:
                if error is not None:
                    log.training.on_error(error)
            elif status is not None:
                log.close(status)
            else:
                log.__exit__(*exit_arguments(error))
