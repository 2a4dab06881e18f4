"""A callback for Hydra: each job, also of a multirun, is a run with its configuration, and all are of one project."""

# Every hook of a callback has the arguments that Hydra gives it.
# ruff: noqa: ARG002

from __future__ import annotations

import os
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import OmegaConf

from toolkit.telemetry.core.config_mapping import resolved
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.logger_setup import in_project, options_of
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import TelemetryOptions

_jobs: list[TelemetryLogger] = []
"""The logger of the job that runs in this process."""


def job_log() -> TelemetryLogger:
    """Return the logger of the job that is running; one that writes nothing if there is none."""
    return _jobs[-1] if _jobs else TelemetryLogger("job", TelemetryOptions(enabled=False))


class TelemetryCallback(Callback):
    """Opens a run before each job and closes it afterwards; name it under `hydra.callbacks`, with options of ours.

    A relative `log_dir` is relative to the folder that Hydra was started in, whatever the job's folder is. Nothing it
    does raises into the job, except invalid options at the start.
    """

    def __init__(self, run_name: str | None = None, **options: Any) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        self._run_name = run_name
        self._options = options_of({name: resolved(value) for name, value in options.items()})

    def on_job_start(self, config: Any, **_: Any) -> None:
        """Open the run, and write the job's configuration and overrides."""
        with Guard().catch("opening a run for a job of Hydra"):
            about = config.hydra
            folder = os.path.join(about.runtime.cwd, self._options.log_dir)
            options = in_project(self._options.changed(log_dir=folder), about.job.name, "hydra")
            log = TelemetryLogger(self._run_name or about.job.name, options)
            _jobs.append(log)
            # Without that of Hydra, some references of which have no value outside of a multirun.
            own = OmegaConf.masked_copy(config, [name for name in config if name != "hydra"])
            log.log_start(
                config=resolved(own),
                training={
                    "framework": "hydra",
                    "overrides": list(about.overrides.task),
                    "output_dir": about.runtime.output_dir,
                },
            )

    def on_job_end(self, config: Any, job_return: Any, **_: Any) -> None:
        """Close the run: failed if the job raised an exception."""
        with Guard().catch("closing the run of a job of Hydra"):
            error = getattr(job_return, "_return_value", None)
            _jobs.pop().__exit__(None, error if isinstance(error, BaseException) else None, None)
