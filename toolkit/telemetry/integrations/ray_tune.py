"""A callback for Ray Tune: each trial is a run, written by the process that runs the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ray.tune.logger import LoggerCallback

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.logger_setup import in_project, options_of
from toolkit.telemetry.integrations.metric_names import split, with_known_names
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import TelemetryOptions

_ABOUT_THE_TRIAL: Final = frozenset(
    "config date done experiment_tag hostname node_ip pid should_checkpoint time_since_restore timestamp "
    "training_iteration trial_id iterations_since_restore checkpoint_dir_name".split()
)
"""What Ray adds to each result; its times are kept."""


class TelemetryCallback(LoggerCallback):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Records trials as runs: `RunConfig(callbacks=[TelemetryCallback(log_dir="logs")])`.

    Nothing it does raises into Ray, except invalid options when it is created.
    """

    def __init__(self, options: TelemetryOptions | Mapping[str, Any] | None = None, **others: Any) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        self._options = options_of(options, **others)
        self._logs: dict[str, TelemetryLogger] = {}
        self.guard = Guard()

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray keeps a copy with the experiment; it writes nothing yet.
        return type(self), (self._options,)

    def log_trial_start(self, trial: Any) -> None:
        """Open the run, unless the trial was only paused."""
        with self.guard.catch("opening a run for a trial"):
            if trial.trial_id not in self._logs:
                options = in_project(self._options, str(trial.experiment_dir_name), "ray")
                config = trial.config
                log = self._logs[trial.trial_id] = TelemetryLogger(str(trial), options, config=config)
                log.log_start(config=config, training={"framework": "ray", "trial": trial.trial_id})

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """Write what the trial reported, as a step and an evaluation, by the names."""
        with self.guard.catch("writing the result of a trial"):
            log, step = self._logs[trial.trial_id], result.get("training_iteration", iteration)
            of_step, of_evaluation = split({k: v for k, v in result.items() if k not in _ABOUT_THE_TRIAL})
            seconds = result.get("time_this_iter_s")
            log.log({**with_known_names(of_step), "sec_per_step": seconds}, step=step)
            if of_evaluation:
                log.log_eval(step, of_evaluation)

    def log_trial_save(self, trial: Any) -> None:
        """Write that a checkpoint was saved."""
        with self.guard.catch("writing the checkpoint of a trial"):
            step = (trial.last_result or {}).get("training_iteration")
            self._logs[trial.trial_id].log_checkpoint(step, getattr(trial.checkpoint, "path", None))

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """Close the run, with the error of which Ray has written the text."""
        with self.guard.catch("closing the run of a trial"):
            log = self._logs.pop(trial.trial_id)
            log.close("failed" if failed else None, error=_error_of(trial) if failed else None)


def _error_of(trial: Any) -> Exception | None:
    """Return the exception that ended a trial in another process; its traceback stays in Ray's file."""
    if not trial.error_file or not Path(trial.error_file).is_file():
        return None
    last = Path(trial.error_file).read_text("utf-8", errors="replace").strip().rpartition("\n")[2]
    kind, _, message = last.partition(": ")
    error: Exception = type(kind.rpartition(".")[2] or "TrialError", (Exception,), {})(message)
    return error
