"""One trainer of ai-toolkit, told of in a run folder from the start of its `run` to its end."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from toolkit.core.guard import Guard
from toolkit.core.ranks import find_rank
from toolkit.telemetry.integrations.ai_toolkit.between_steps import (
    Asked,
    StoppedOnRequest,
    answer,
    sample,
    tidy_up,
)
from toolkit.telemetry.integrations.ai_toolkit.description import weight_names
from toolkit.telemetry.integrations.ai_toolkit.outputs import Outputs
from toolkit.telemetry.integrations.ai_toolkit.startup import Startup
from toolkit.telemetry.integrations.ai_toolkit.steps import Steps
from toolkit.telemetry.integrations.ai_toolkit.surrounded_methods import SurroundedMethods
from toolkit.telemetry.integrations.ai_toolkit.written_files import has_weights, note_folder
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.integrations.opening import open_log
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import TelemetryOptions
from toolkit.timing.names import APPLICATION


class WatchedProcess:
    """Has a trainer's `run` told of, and changes nothing of it.

    What goes wrong here is counted and said once; the trainer never hears of it. Only somebody's request to stop
    reaches it, as an exception that ends its loop and that is caught again outside of it.
    """

    def __init__(self, process: Any, options: TelemetryOptions, *, began: float | None = None) -> None:
        """Wait for `install`; `began` is the wall time at which the job began, where that was before its `run`."""
        self._process = process
        # A call that makes no sense would be ours, not the job's: it must not end it.
        self._options = options.changed(strict=False)
        self._began = began
        self._guard = Guard()
        self._run: _WatchedRun | None = None

    def install(self) -> None:
        """Wait for the trainer's `run`."""
        original = self._process.run

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                result = original(*args, **kwargs)
            except StoppedOnRequest:
                tidy_up(self._process, self._guard)
                self._end(reason="stopped")
                return None
            except BaseException as error:
                self._end(error)
                raise
            self._end()
            return result

        self._process.run = run

    def _begin(self) -> None:
        with self._guard.catch("opening the run"):
            process, began = self._process, self._began
            self._began = None
            save_root = Path(process.save_root)
            goes_on = has_weights(save_root, weight_names(process))
            log = open_log(
                self._options,
                str(process.job.name),
                config=process.job.raw_config,
                from_checkpoint=note_folder(save_root) if goes_on else None,
            )
            self._run = _WatchedRun(process, log)
            self._guard = log.guard
            # The other ranks write nothing, but they are asked to stop and to save together with the first.
            if log.is_live or find_rank().rank > 0:
                self._run.begin(began)

    def _end(self, error: BaseException | None = None, reason: str = "finished") -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end(error, reason)


class _WatchedRun:
    """One call of a trainer's `run`."""

    def __init__(self, process: Any, log: TelemetryLogger) -> None:
        self._process = process
        self._log = log
        self._parts = OpenParts()
        self._methods = SurroundedMethods()
        self._startup = Startup(process, log, self._parts)
        self._steps = Steps(process, log, self._parts)
        self._outputs = Outputs(process, log, self._parts)

    def begin(self, began: float | None) -> None:
        """Put the hooks."""
        since = None if began is None else began * 1000.0
        self._parts.begin(APPLICATION, self._log.training.application(start_time_msec=since))
        for watcher in (self._startup, self._steps, self._outputs):
            watcher.watch(self._methods)
        self._methods.around(self._process, "end_step_hook", after=self._between_steps)

    def end(self, error: BaseException | None, reason: str) -> None:
        """Take the hooks away, and close the run folder."""
        self._methods.put_back()
        guard = self._log.guard
        self._steps.tell()
        with guard.catch("ending what is open"):
            self._parts.end_all(error)
        for watcher in (self._startup, self._steps, self._outputs):
            # Somebody who has kept one of the methods may call it still.
            watcher.is_live = False
        with guard.catch("closing the run"):
            if error is None:
                self._log.close(reason)
            elif getattr(self._process, "is_stopping", False):
                # The stop button of ai-toolkit's own pages ends the job with an exception.
                self._log.close("stopped")
            else:
                self._log.__exit__(type(error), error, error.__traceback__)

    def _between_steps(self, *_: Any, **__: Any) -> None:
        """Do what was asked for since the last step.

        Raises:
            StoppedOnRequest: that was to stop, and steps are left; else ai-toolkit ends by itself, in its own way.
        """
        if not self._steps.is_live:
            return
        # Where ai-toolkit's timers are not what they were, nobody has told of the step yet.
        self._steps.tell()
        process, asked = self._process, Asked()
        with self._log.guard.catch("doing what was asked"):
            asked = answer(process, self._log)
        if asked.to_sample:
            sample(process)
        if asked.to_stop and process.step_num < process.train_config.steps:
            raise StoppedOnRequest
