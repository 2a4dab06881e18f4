"""The run of a training whose framework calls hooks: one of them opens it, another one closes it."""

from __future__ import annotations

from functools import partial
from typing import Any

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.logger_setup import GivenLog, given_logger, options_of, resuming
from toolkit.telemetry.integrations.open_phases import exit_arguments
from toolkit.telemetry.logger.logger import TelemetryLogger


class HookedRun:
    """A base class of callbacks: a logger that was given, which its owner closes, or one run for each training."""

    def __init__(self, log: GivenLog = None, *, run_name: str | None = None, **options: Any) -> None:
        """Make callbacks; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        self._given = given = given_logger(log, options)
        self._options = options_of(None if isinstance(log, TelemetryLogger) else log, **options)
        self._run_name = run_name
        self.log: TelemetryLogger | None = given
        """The logger of the run; None before the first training."""
        self.guard = Guard() if given is None else given.guard
        self.is_live = False
        """Whether a training is being recorded."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Keras Tuner and Ray copy callbacks; a copy records its own trainings.
        return partial(type(self), self._given or self._options, run_name=self._run_name), ()

    def _open(self, name: str, config: Any, run_id: str | None = None) -> TelemetryLogger:
        """Open the run of a training that begins; one whose end was not reported has failed."""
        self._close(InterruptedError("the previous training ended without a report"))
        if self._given is None:
            options = resuming(self._options, run_id)
            self.log = TelemetryLogger(self._run_name or name, options, config=config)
        log = self._opened()
        self.guard, self.is_live = log.guard, log.is_live
        return log

    def _opened(self) -> TelemetryLogger:
        assert self.log is not None, "only callbacks with a logger are live"
        return self.log

    def _close(self, error: BaseException | None) -> None:
        if self.is_live:
            self.is_live = False
            if self._given is None:
                self._opened().__exit__(*exit_arguments(error))
