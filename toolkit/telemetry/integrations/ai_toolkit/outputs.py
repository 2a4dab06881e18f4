"""Outputs of an ai-toolkit trainer besides its steps: validation losses, samples and weights."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.integrations.ai_toolkit.start_fields import weight_names
from toolkit.telemetry.integrations.ai_toolkit.written_files import (
    copy_sample,
    lineage_folder,
    new_samples,
    sample_names,
    saved_weights,
)
from toolkit.telemetry.integrations.logger_setup import remember_run
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.records import StateTrigger

VALIDATION_LOSS: Final = "val/loss"
"""Its name in ai-toolkit's own log."""


class Outputs:
    """Times each validation, sampling and save, and records what it left on disk."""

    def __init__(self, process: Any, log: TelemetryLogger) -> None:
        self._process, self._log = process, log
        self._save_root = Path(process.save_root)
        self._saving: tuple[Any, float] | None = None
        """The step of the save in progress, as requested, which is None for the last one, and when it began."""
        self._is_written = False
        """Whether the weights of this save are on disk."""
        self._sampling: tuple[Any, bool, set[str]] | None = None
        """The step of the sampling in progress, whether it is the first, and the samples that existed before it."""

    def watch(self, patches: MethodPatches) -> None:
        """Patch the methods on the main process; on the others they return at once."""
        process, training = self._process, self._log.training
        if not process.accelerator.is_main_process:
            return
        patches.time(process, "validate", training.validation_loop)
        patches.around(process, "validate", after=self._record_validation)
        # ai-toolkit's own pages can end a job between two samples, or after a save: what exists is recorded.
        patches.time(process, "sample", training.sampling)
        patches.around(process, "sample", before=self._begin_sampling, ended=self._record_samples)
        patches.around(process, "save", before=self._begin_save, ended=self._record_save)
        patches.around(process, "post_save_hook", before=self._note_weights)

    def _record_validation(self, *_: Any, **__: Any) -> None:
        loss = self._process.additional_logs.get(VALIDATION_LOSS)
        if loss is not None:
            self._log.log_eval(self._process.step_num, val_loss=loss)

    # Samples.

    def _begin_sampling(self, step: Any = None, is_first: Any = False, *_: Any, **__: Any) -> None:
        self._sampling = step, bool(is_first), sample_names(self._save_root)

    def _record_samples(self, _: BaseException | None) -> None:
        sampling, self._sampling = self._sampling, None
        run_folder = self._log.run_folder
        if sampling is None or run_folder is None:
            return
        step, is_first, known = sampling
        process = self._process
        config = process.first_sample_config if is_first else process.sample_config
        prompts = _prompts(config, getattr(process, "trigger_word", None))
        for index, path in new_samples(self._save_root, known):
            inside = path
            with self._log.guard.catch("linking a sample into the run folder"):
                inside = copy_sample(path, run_folder)
            self._log.log_sample(
                self._number(step),
                inside,
                prompt=prompts[index] if index < len(prompts) else None,
                prompt_index=index,
                source_path=os.path.abspath(path),
            )

    # Weights.

    def _begin_save(self, step: Any = None, *_: Any, **__: Any) -> None:
        self._saving, self._is_written = (step, time.monotonic()), False
        self._log.training.on_save_checkpoint_start(self._number(step))

    def _note_weights(self, *_: Any, **__: Any) -> None:
        self._is_written = True

    def _record_save(self, error: BaseException | None) -> None:
        saving, self._saving = self._saving, None
        if saving is None:
            return
        seconds, step, training = time.monotonic() - saving[1], self._number(saving[0]), self._log.training
        weights: list[Path] = []
        with self._log.guard.catch("finding the weights"):
            if error is None or self._is_written:
                weights = saved_weights(self._save_root, weight_names(self._process), saving[0])
        if weights:
            training.on_save_checkpoint_success(step, path=weights[0])
        elif error is not None:
            training.on_error(error)
        training.on_save_checkpoint_end()
        if weights:
            # The path that ai-toolkit passes to its own hook after a save is that of optimizer.pt.
            path, *others = map(os.path.abspath, weights)
            more: dict[str, Any] = {"other_paths": others} if others else {}
            self._log.log_checkpoint(step, path, seconds=seconds, **more)
            put_state(self._process, self._log, "save", step, path)
            lineage = lineage_folder(self._save_root)
            lineage.mkdir(exist_ok=True, mode=0o755)
            remember_run(lineage, self._log)

    def _number(self, step: Any) -> int:
        return step if isinstance(step, int) else int(self._process.step_num)


def put_state(
    process: Any, log: TelemetryLogger, at: StateTrigger, step: int, checkpoint: str | None = None
) -> None:
    """Record the state of the training; the weights are those that the optimizer trains."""
    with log.guard.catch("recording the state of the training"):
        train = process.train_config
        log.state(
            at,
            step,
            checkpoint=checkpoint,
            optimizer=getattr(process, "optimizer", None),
            scheduler=getattr(process, "lr_scheduler", None),
            epoch=process.epoch_num,
            batch_size=int(train.batch_size),
            accumulation=int(train.gradient_accumulation),
        )


def _prompts(config: Any, trigger: Any) -> list[str]:
    prompts = [str(prompt) for prompt in getattr(config, "prompts", None) or ()]
    return (
        [prompt.replace("[trigger]", trigger) for prompt in prompts] if isinstance(trigger, str) else prompts
    )
