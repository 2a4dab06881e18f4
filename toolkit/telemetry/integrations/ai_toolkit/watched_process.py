"""Records one ai-toolkit trainer in a run folder, from the start of its `run` to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.telemetry.integrations.ai_toolkit.control_requests import (
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
from toolkit.telemetry.integrations.ai_toolkit.written_files import lineage_folder, weights_in
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.logger_setup import run_id_in
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.training.phases import Phase
from toolkit.telemetry.timing.names import APPLICATION


class WatchedProcess:
    """Records a trainer's `run`, and changes nothing about it.

    Failures here are counted and reported once; the trainer never sees them. Only a stop request reaches it, as an
    exception that ends its loop and is caught outside of it.
    """

    def __init__(self, process: Any, options: TelemetryOptions, *, began: float | None = None) -> None:
        """Wait for `run`; `began` is the wall-clock time at which the job began, if before that."""
        self._process, self._began = process, began
        # Misuse would be ours, not the job's: it must not end it.
        self._run = FrameworkRun(options.changed(strict=False))
        self._patches: MethodPatches | None = None
        self._steps: Steps | None = None

    def run(self, train: Callable[[], Any]) -> Any:
        """Train, recorded, and return what `train` returns; None if it was stopped on request."""
        with self._run.guard.catch("opening the run"):
            self._begin()
        try:
            result = train()
        except StoppedOnRequest:
            tidy_up(self._process, self._run.guard)
            self._end(None, "stopped")
            return None
        except BaseException as error:
            # The stop button of ai-toolkit's own pages ends the job with an exception.
            self._end(error, "stopped" if getattr(self._process, "is_stopping", False) else None)
            raise
        self._end(None, "finished")
        return result

    def _begin(self) -> None:
        process, began, save_root = self._process, self._began, Path(self._process.save_root)
        resumes = bool(weights_in(save_root, weight_names(process)))
        run_id = run_id_in(lineage_folder(save_root)) if resumes else None
        log = self._run.open_run(str(process.job.name), process.job.raw_config, run_id)
        if not self._run.is_live:
            return
        self._run.begin_application(None if began is None else began * 1000.0)
        self._patches = patches = MethodPatches(log.guard)
        self._watch_startup(patches)
        self._steps = Steps(process, self._run, patches)
        Outputs(process, log, patches)
        patches.wrap(process, "end_step_hook", self._between_steps)

    def _end(self, error: BaseException | None, status: str | None) -> None:
        """Remove the patches, and close the run folder."""
        if self._patches is not None:
            self._patches.undo()
        steps, self._steps = self._steps, None
        if steps is not None:
            with self._run.guard.catch("recording the last step"):
                steps.write()
        self._run.end_run(error, status)

    def _between_steps(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ai-toolkit's hook after each step, followed by the requests since the last one.

        It raises `StoppedOnRequest` if a stop was requested and steps are left; otherwise ai-toolkit ends by itself.
        """

        def end_step_hook(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            process, to_sample, to_stop = self._process, False, False
            with self._run.guard.catch("carrying out requests"):
                if self._steps is not None:
                    # Usually written by now, unless ai-toolkit's timers have changed.
                    self._steps.write()
                to_sample, to_stop = carry_out(process, self._run.opened)
            if to_sample:
                sample(process)
            if to_stop and process.step_num < process.train_config.steps:
                raise StoppedOnRequest
            return result

        return end_step_hook

    # The startup.

    def _watch_startup(self, patches: MethodPatches) -> None:
        """Time what comes before the loop: each hook of ai-toolkit's ends what the one before began."""
        job, process = self._run.opened.training, self._process

        def beginning(make: Callable[[], Phase]) -> Callable[..., None]:
            def begin(*_: Any, **__: Any) -> None:
                self._run.end_phases_inside(APPLICATION)
                self._run.begin_phase("startup", make())

            return begin

        def begin_optimizer(*_: Any, **__: Any) -> Following:
            self._run.end_phases_inside(APPLICATION)
            yield
            self._run.begin_phase("startup", job.optimizer_init())

        def begin_training(*_: Any, **__: Any) -> Following:
            self._run.end_phases_inside(APPLICATION)
            self._run.begin_phase("startup", job.model_init(part="before the training"))
            yield
            self._run.end_phases_inside(APPLICATION)
            self._begin_training()

        patches.follow(process, "hook_before_model_load", beginning(job.model_init))
        patches.time(process, "load_weights", job.checkpoint_load)
        patches.follow(process, "hook_add_extra_train_params", begin_optimizer)
        patches.follow(process, "before_dataset_load", beginning(job.dataloader_init))
        patches.follow(process, "hook_before_train_loop", begin_training)

    def _begin_training(self) -> None:
        process, log = self._process, self._run.opened
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
        self._run.begin_loop(process.step_num, process.train_config.steps)
