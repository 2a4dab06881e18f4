"""The run that the callback and the logger of one trainer share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.logger_setup import GivenLog, given_logger, options_of, resuming
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.training import TrainingTelemetry


class SharedRun:
    """A run that was given, or one opened here, used by the callback, the logger or both of one trainer."""

    def __init__(self, given: GivenLog, run_name: str | None, options: Mapping[str, Any]) -> None:
        self.was_given_nothing = given is None and run_name is None and not options
        self.run_name = run_name
        self.run_id: str | None = None
        self.config: dict[str, Any] = {}
        self.has_callback = False
        """Whether a callback writes the run, so that a logger does not."""
        self.has_start = False
        self.has_trained = False
        self.is_live = False
        self.is_ours = not isinstance(given, TelemetryLogger)
        self.knows_its_ranks = True
        """Whether requests are possible, which all ranks carry out at the same step."""
        self._metrics: dict[str, Any] = {}
        self._ranks_at_first = find_rank().world_size
        self.log = given_logger(given, options)
        if isinstance(given, TelemetryLogger):
            self.guard = given.guard
            self.run_name = run_name or given.run_name
            self.run_id = given.run_id
            self._options = options_of({"enabled": given.is_live or find_rank().rank > 0})
            self._states_interval = True
        else:
            self.guard = Guard()
            self._options = options_of(given, **options)
            self._states_interval = "log_every" in {*(given if isinstance(given, Mapping) else ()), *options}

    @property
    def is_off(self) -> bool:
        """Whether nothing is written at all."""
        return not self._options.enabled

    @property
    def opened(self) -> TelemetryLogger:
        """The logger, once there is one."""
        assert self.log is not None, "only a run that was opened gets here"
        return self.log

    @property
    def training(self) -> TrainingTelemetry:
        """The phases of a training."""
        return self.opened.training

    def open(self, default_name: str, *, every_step: bool = False) -> bool:
        """Open the run, as a new session if it had one before; return whether it was opened now."""
        if self.is_live or self.is_off:
            return False
        if self.is_ours:
            options = resuming(self._options, self.run_id)
            if every_step and not self._states_interval:
                options = options.changed(log_every=1)
            self.log = TelemetryLogger(self.run_name or default_name, options)
            self.guard = self.log.guard
            self.run_id = self.log.run_id or self.run_id
        rank = find_rank()
        # The other ranks write nothing, but carry out requests at the same step.
        self.is_live = self.opened.is_live or rank.rank > 0
        self.knows_its_ranks = self.is_ours or self._ranks_at_first == rank.world_size
        if not self.knows_its_ranks:
            # Each rank has a logger that believes it is the only one. If one stopped, the others would wait for it.
            self.is_live = self.opened.is_live and rank.rank == 0
            self.guard.report_misuse(
                "the logger was created before the trainer's processes, so they cannot agree on a step to save or stop "
                "at, and requests are off: give the callback options instead of a logger"
            )
        return self.is_live

    def begin_training(self, trainer: Any) -> None:
        """Note that a training begins; one that resumes no earlier one gets a run of its own."""
        resumes = trainer.global_step > 0 or trainer.ckpt_path is not None
        if self.has_trained and self.is_ours and not self.is_live and not resumes:
            self.run_id = None
        self.has_trained = True

    def resume(self, run_id: str) -> None:
        """Resume an earlier run when it is opened; a logger that was given already has its run."""
        if self.is_ours:
            self.run_id = run_id

    def close(self, error: BaseException | None, *, failed: bool = False) -> None:
        """Close the run if it was opened here, with how it ended."""
        if not self.is_live:
            return
        self.is_live = self.has_start = False
        log = self.opened
        if not self.is_ours:
            if error is not None:
                log.training.on_error(error)
        elif error is None:
            log.close("failed" if failed else None)
        elif type(error).__name__ == "SIGTERMException":
            log.close("signal")
        else:
            log.__exit__(type(error), error, error.__traceback__)

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep metrics that were passed to the logger for the next record."""
        self._metrics.update({str(name): value for name, value in metrics.items()})

    def pop_metrics(self) -> dict[str, Any]:
        """Return the metrics that were kept, once."""
        taken, self._metrics = self._metrics, {}
        return taken

    def __getstate__(self) -> dict[str, Any]:
        # Trainers that start processes send their callbacks there. The guard and an open run stay here.
        state = dict(self.__dict__, guard=None, is_live=False, _metrics={})
        return {**state, "log": None if self.is_ours else self.log}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.guard = Guard() if self.log is None else self.log.guard
