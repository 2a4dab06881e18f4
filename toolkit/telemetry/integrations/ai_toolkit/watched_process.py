"""Records one ai-toolkit trainer in a run folder, from the start of its `run` to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.ai_toolkit.control_requests import (
    PendingRequests,
    StoppedOnRequest,
    carry_out,
    declare,
    sample,
    tidy_up,
)
from toolkit.telemetry.integrations.ai_toolkit.outputs import Outputs, put_state
from toolkit.telemetry.integrations.ai_toolkit.start_fields import (
    samples_per_step,
    start_fields,
    weight_names,
)
from toolkit.telemetry.integrations.ai_toolkit.steps import Steps
from toolkit.telemetry.integrations.ai_toolkit.written_files import has_weights, lineage_folder
from toolkit.telemetry.integrations.logger_setup import open_log
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.open_phases import OpenPhases
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.timing import names
from toolkit.telemetry.timing.names import APPLICATION


class WatchedProcess:
    """Records a trainer's `run`, and changes nothing about it.

    Failures here are counted and reported once; the trainer never sees them. Only a stop request reaches it, as an
    exception that ends its loop and is caught outside of it.
    """

    def __init__(self, process: Any, options: TelemetryOptions, *, began: float | None = None) -> None:
        """Wait for `install`; `began` is the wall-clock time at which the job began, if before its `run`."""
        self._process = process
        # Misuse would be ours, not the job's: it must not end it.
        self._options = options.changed(strict=False)
        self._began = began
        self._guard = Guard()
        self._run: _WatchedRun | None = None

    def install(self) -> None:
        """Wrap the trainer's `run`, for good."""
        MethodPatches(self._guard).wrap(self._process, "run", self._recording)

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
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

        return run

    def _begin(self) -> None:
        with self._guard.catch("opening the run"):
            process, began = self._process, self._began
            self._began = None
            save_root = Path(process.save_root)
            resumes = has_weights(save_root, weight_names(process))
            log = open_log(
                self._options,
                str(process.job.name),
                config=process.job.raw_config,
                from_checkpoint=lineage_folder(save_root) if resumes else None,
            )
            self._run = _WatchedRun(process, log)
            self._guard = log.guard
            # The other ranks write nothing, but stop and save together with rank 0.
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
        self._phases = OpenPhases()
        self._patches = MethodPatches(log.guard)
        self._steps = Steps(process, log, self._phases)
        self._is_over = False

    def begin(self, began: float | None) -> None:
        """Patch the trainer's methods."""
        since = None if began is None else began * 1000.0
        self._phases.begin(APPLICATION, self._log.training.application(start_time_msec=since))
        process, log, phases = self._process, self._log, self._phases
        for watcher in (Startup(process, log, phases), self._steps, Outputs(process, log, phases)):
            watcher.watch(self._patches)
        self._patches.wrap(self._process, "end_step_hook", self._between_steps)

    def end(self, error: BaseException | None, reason: str) -> None:
        """Remove the patches, and close the run folder."""
        self._is_over = True
        self._patches.undo()
        guard = self._log.guard
        with guard.catch("recording the last step"):
            self._steps.write()
        with guard.catch("ending the open phases"):
            self._phases.end_all(error)
        with guard.catch("closing the run"):
            if error is None:
                self._log.close(reason)
            elif getattr(self._process, "is_stopping", False):
                # The stop button of ai-toolkit's own pages ends the job with an exception.
                self._log.close("stopped")
            else:
                self._log.__exit__(type(error), error, error.__traceback__)

    def _between_steps(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ai-toolkit's hook after each step, followed by the requests since the last one.

        It raises `StoppedOnRequest` if a stop was requested and steps are left; otherwise ai-toolkit ends by itself.
        """

        def end_step_hook(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._is_over:
                return result
            process, requests = self._process, PendingRequests()
            with self._log.guard.catch("carrying out requests"):
                # Usually written by now, unless ai-toolkit's timers have changed.
                self._steps.write()
                requests = carry_out(process, self._log)
            if requests.sample:
                sample(process)
            if requests.stop and process.step_num < process.train_config.steps:
                raise StoppedOnRequest
            return result

        return end_step_hook


class Startup:
    """Times the startup, then writes the start record and declares the actions and knobs."""

    def __init__(self, process: Any, log: TelemetryLogger, phases: OpenPhases) -> None:
        self._process = process
        self._log = log
        self._phases = phases

    def watch(self, patches: MethodPatches) -> None:
        """Patch the methods, in the order in which ai-toolkit calls them."""
        process = self._process
        patches.around(process, "hook_before_model_load", before=self._begin_model_load)
        patches.around(process, "load_weights", before=self._begin_weights_load, after=self._end_weights_load)
        patches.around(
            process, "hook_add_extra_train_params", before=self._end_model_load, after=self._begin_optimizer
        )
        patches.around(process, "before_dataset_load", before=self._begin_data_load)
        patches.around(
            process, "hook_before_train_loop", before=self._begin_preparation, after=self._begin_training
        )

    def _begin_model_load(self, *_: Any, **__: Any) -> None:
        self._phases.begin(names.MODEL_INIT, self._log.training.model_init())

    def _begin_weights_load(self, *_: Any, **__: Any) -> None:
        self._phases.begin(names.CHECKPOINT_LOAD, self._log.training.checkpoint_load())

    def _end_weights_load(self, *_: Any, **__: Any) -> None:
        self._phases.end_with_inner(names.CHECKPOINT_LOAD)

    def _end_model_load(self, *_: Any, **__: Any) -> None:
        self._phases.end_all(None, within=names.APPLICATION)

    def _begin_optimizer(self, *_: Any, **__: Any) -> None:
        self._phases.begin(names.OPTIMIZER_INIT, self._log.training.optimizer_init())

    def _begin_data_load(self, *_: Any, **__: Any) -> None:
        self._phases.end_all(None, within=names.APPLICATION)
        self._phases.begin(names.DATALOADER_INIT, self._log.training.dataloader_init())

    def _begin_preparation(self, *_: Any, **__: Any) -> None:
        self._phases.end_all(None, within=names.APPLICATION)
        self._phases.begin(names.MODEL_INIT, self._log.training.model_init(part="before the training"))

    def _begin_training(self, *_: Any, **__: Any) -> None:
        self._phases.end_all(None, within=names.APPLICATION)
        process, log = self._process, self._log
        with log.guard.catch("writing the start record"):
            log.log_start(**start_fields(process, log.guard))
        with log.guard.catch("configuring the training's phases"):
            log.training.configure(
                global_batch_size=samples_per_step(process),
                micro_batch_size=int(process.train_config.batch_size),
                train_iterations_target=int(process.train_config.steps),
                save_checkpoint_strategy="sync",
                is_log_throughput_enabled=False,
            )
        with log.guard.catch("declaring actions and knobs"):
            declare(process, log)
        put_state(process, log, "load" if process.start_step else "start", process.step_num)
        self._phases.begin(
            names.TRAINING_LOOP,
            log.training.training_loop(
                train_iterations_start=process.step_num, train_iterations_target=process.train_config.steps
            ),
        )
