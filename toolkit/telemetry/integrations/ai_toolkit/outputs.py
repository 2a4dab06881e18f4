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
    weights_in,
)
from toolkit.telemetry.integrations.logger_setup import remember_run
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.records import StateTrigger

VALIDATION_LOSS: Final = "val/loss"
"""Its name in ai-toolkit's own log."""


class Outputs:
    """Times each validation, sampling and save, and records what it left on disk."""

    def __init__(self, process: Any, log: TelemetryLogger, patches: MethodPatches) -> None:
        self._process, self._log = process, log
        self._save_root = Path(process.save_root)
        self._is_written = False
        """Whether the weights of the save in progress are on disk."""
        # On the other processes these methods return at once.
        if process.accelerator.is_main_process:
            patches.time(process, "validate", log.training.validation_loop)
            patches.follow(process, "validate", self._follow_validation)
            patches.time(process, "sample", log.training.sampling)
            patches.follow(process, "sample", self._follow_sampling)
            patches.follow(process, "save", self._follow_save)
            patches.follow(process, "post_save_hook", self._note_weights)

    def _follow_validation(self, *_: Any, **__: Any) -> Following:
        yield
        loss = self._process.additional_logs.get(VALIDATION_LOSS)
        if loss is not None:
            self._log.log_eval(self._process.step_num, val_loss=loss)

    def _follow_sampling(self, step: Any = None, is_first: Any = False, *_: Any, **__: Any) -> Following:
        process, known = self._process, sample_names(self._save_root)
        try:
            yield
        finally:
            # ai-toolkit's own pages can end a job between two samples: what exists is recorded.
            config = process.first_sample_config if is_first else process.sample_config
            prompts = _prompts(config, getattr(process, "trigger_word", None))
            for index, path in new_samples(self._save_root, known):
                self._record_sample(self._number(step), path, index, prompts)

    def _record_sample(self, step: int, path: Path, index: int, prompts: list[str]) -> None:
        inside, run_folder = path, self._log.run_folder
        with self._log.guard.catch("copying a sample into the run folder"):
            inside = path if run_folder is None else copy_sample(path, run_folder)
        self._log.log_sample(
            step,
            inside,
            prompt=prompts[index] if index < len(prompts) else None,
            prompt_index=index,
            source_path=os.path.abspath(path),
        )

    def _follow_save(self, given: Any = None, *_: Any, **__: Any) -> Following:
        """Time a save; its step is None for the last one."""
        step, began, training = self._number(given), time.monotonic(), self._log.training
        names, before = weight_names(self._process), dict[Path, int]()
        with self._log.guard.catch("finding the weights"):
            before = weights_in(self._save_root, names)
        self._is_written = False
        training.on_save_checkpoint_start(step)
        try:
            yield
            self._is_written = True
        except BaseException as error:
            if not self._is_written:
                training.on_error(error)
            raise
        finally:
            weights: list[Path] = []
            with self._log.guard.catch("finding the weights"):
                # ai-toolkit's own pages can end a job after a save.
                if self._is_written:
                    after = weights_in(self._save_root, names)
                    weights = [path for path in after if after[path] != before.get(path)]
            if weights:
                training.on_save_checkpoint_success(step, path=weights[0])
            training.on_save_checkpoint_end()
            if weights:
                self._record_weights(step, time.monotonic() - began, weights)

    def _note_weights(self, *_: Any, **__: Any) -> None:
        self._is_written = True

    def _record_weights(self, step: int, seconds: float, weights: list[Path]) -> None:
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
