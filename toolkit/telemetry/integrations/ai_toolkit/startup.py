"""Phases of an ai-toolkit trainer before its first step: loading the model, the optimizer and the data."""

from __future__ import annotations

from typing import Any

from toolkit.telemetry.integrations.ai_toolkit.control_requests import declare
from toolkit.telemetry.integrations.ai_toolkit.start_fields import samples_per_step, start_fields
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.open_phases import OpenPhases
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.timing import names


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
        self._phases.begin(
            names.TRAINING_LOOP,
            log.training.training_loop(
                train_iterations_start=process.step_num, train_iterations_target=process.train_config.steps
            ),
        )
