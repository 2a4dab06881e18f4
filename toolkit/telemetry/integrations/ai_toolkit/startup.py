"""What a trainer of ai-toolkit does before its first step: load the model, make the optimizer, load the data."""

from __future__ import annotations

from typing import Any

from toolkit.core.guard import guarded
from toolkit.telemetry.integrations.ai_toolkit.between_steps import declare
from toolkit.telemetry.integrations.ai_toolkit.description import describe, samples_a_step
from toolkit.telemetry.integrations.ai_toolkit.surrounded_methods import SurroundedMethods
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.timing.names import (
    APPLICATION,
    CHECKPOINT_LOAD,
    DATALOADER_INIT,
    MODEL_INIT,
    OPTIMIZER_INIT,
    TRAINING_LOOP,
)


class Startup:
    """Times the parts of a start, and says at its end what is trained and what may be asked."""

    def __init__(self, process: Any, log: TelemetryLogger, parts: OpenParts) -> None:
        self.guard = log.guard
        self.is_live = True
        """Whether the hooks have an effect."""
        self._process = process
        self._log = log
        self._parts = parts

    def watch(self, methods: SurroundedMethods) -> None:
        """Put the hooks, in the order in which ai-toolkit comes to them."""
        process = self._process
        methods.around(process, "hook_before_model_load", before=self._model_load_begins)
        methods.around(
            process, "load_weights", before=self._weights_load_begins, after=self._weights_load_ends
        )
        methods.around(
            process,
            "hook_add_extra_train_params",
            before=self._model_load_ends,
            after=self._optimizer_begins,
        )
        methods.around(process, "before_dataset_load", before=self._data_load_begins)
        methods.around(
            process, "hook_before_train_loop", before=self._preparation_begins, after=self._training_begins
        )

    @guarded
    def _model_load_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(MODEL_INIT, self._log.training.model_init())

    @guarded
    def _weights_load_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(CHECKPOINT_LOAD, self._log.training.checkpoint_load())

    @guarded
    def _weights_load_ends(self, *_: Any, **__: Any) -> None:
        self._parts.end_with_inner(CHECKPOINT_LOAD)

    @guarded
    def _model_load_ends(self, *_: Any, **__: Any) -> None:
        self._parts.end_all(None, within=APPLICATION)

    @guarded
    def _optimizer_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(OPTIMIZER_INIT, self._log.training.optimizer_init())

    @guarded
    def _data_load_begins(self, *_: Any, **__: Any) -> None:
        self._parts.end_all(None, within=APPLICATION)
        self._parts.begin(DATALOADER_INIT, self._log.training.dataloader_init())

    @guarded
    def _preparation_begins(self, *_: Any, **__: Any) -> None:
        self._parts.end_all(None, within=APPLICATION)
        self._parts.begin(MODEL_INIT, self._log.training.model_init(part="before the training"))

    @guarded
    def _training_begins(self, *_: Any, **__: Any) -> None:
        self._parts.end_all(None, within=APPLICATION)
        process, log = self._process, self._log
        with self.guard.catch("saying what is trained"):
            log.log_start(**describe(process, self.guard))
        with self.guard.catch("saying what a step is"):
            log.training.configure(
                global_batch_size=samples_a_step(process),
                micro_batch_size=int(process.train_config.batch_size),
                train_iterations_target=int(process.train_config.steps),
                save_checkpoint_strategy="sync",
                is_log_throughput_enabled=False,
            )
        with self.guard.catch("saying what may be asked"):
            declare(process, log)
        self._parts.begin(
            TRAINING_LOOP,
            log.training.training_loop(
                train_iterations_start=process.step_num, train_iterations_target=process.train_config.steps
            ),
        )
