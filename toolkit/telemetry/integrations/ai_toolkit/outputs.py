"""Outputs of an ai-toolkit trainer besides its steps: validation losses, samples and weights."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.integrations.ai_toolkit.start_fields import weight_names
from toolkit.telemetry.integrations.ai_toolkit.written_files import (
    copy_sample,
    make_lineage_folder,
    new_samples,
    sample_names,
    saved_weights,
)
from toolkit.telemetry.integrations.logger_setup import remember_run
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.open_phases import OpenPhases
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.records import StateMoment
from toolkit.telemetry.timing.names import SAMPLING, VALIDATION_LOOP

VALIDATION_LOSS: Final = "val/loss"
"""Its name in ai-toolkit's own log."""


@dataclass(slots=True, kw_only=True)
class _Save:
    """A save in progress."""

    step: Any
    """As requested: None for the last one."""
    since: float
    is_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    """A sampling in progress."""

    step: Any
    is_first: bool
    known: set[str]
    """The samples that existed before it."""


class Outputs:
    """Times each validation, sampling and save, and records what it left on disk."""

    def __init__(self, process: Any, log: TelemetryLogger, phases: OpenPhases) -> None:
        self._process = process
        self._log = log
        self._guard = log.guard
        self._phases = phases
        self._save: _Save | None = None
        self._sampling: _Sampling | None = None

    def watch(self, patches: MethodPatches) -> None:
        """Patch the methods on the main process; on the others they return at once."""
        process = self._process
        if not process.accelerator.is_main_process:
            return
        patches.around(
            process,
            "validate",
            before=self._begin_validation,
            after=self._end_validation,
            failed=self._fail_validation,
        )
        patches.around(
            process,
            "sample",
            before=self._begin_sampling,
            after=lambda *_, **__: self._end_sampling(None),
            failed=self._end_sampling,
        )
        patches.around(
            process,
            "save",
            before=self._begin_save,
            after=lambda *_, **__: self._end_save(None),
            failed=self._end_save,
        )
        patches.around(process, "post_save_hook", before=self._note_weights)

    # Validation.

    def _begin_validation(self, *_: Any, **__: Any) -> None:
        self._phases.begin(VALIDATION_LOOP, self._log.training.validation_loop())

    def _end_validation(self, *_: Any, **__: Any) -> None:
        self._phases.end_with_inner(VALIDATION_LOOP)
        loss = self._process.additional_logs.get(VALIDATION_LOSS)
        if loss is not None:
            self._log.log_eval(self._process.step_num, val_loss=loss)

    def _fail_validation(self, error: BaseException) -> None:
        self._phases.end_with_inner(VALIDATION_LOOP, error)

    # Samples. ai-toolkit's own pages can end a job between two samples, or after a save: what exists is recorded.

    def _begin_sampling(self, step: Any = None, is_first: Any = False, *_: Any, **__: Any) -> None:
        self._phases.begin(SAMPLING, self._log.training.sampling())
        known = sample_names(Path(self._process.save_root))
        self._sampling = _Sampling(step=step, is_first=bool(is_first), known=known)

    def _end_sampling(self, error: BaseException | None) -> None:
        self._phases.end_with_inner(SAMPLING, error)
        sampling, self._sampling = self._sampling, None
        run_folder = self._log.run_folder
        if sampling is None or run_folder is None:
            return
        process = self._process
        config = process.first_sample_config if sampling.is_first else process.sample_config
        prompts = _prompts(config, getattr(process, "trigger_word", None))
        for index, path in new_samples(Path(process.save_root), sampling.known):
            inside = path
            with self._guard.catch("linking a sample into the run folder"):
                inside = copy_sample(path, run_folder)
            self._log.log_sample(
                self._number(sampling.step),
                inside,
                prompt=prompts[index] if index < len(prompts) else None,
                prompt_index=index,
                source_path=os.path.abspath(path),
            )

    # Weights.

    def _begin_save(self, step: Any = None, *_: Any, **__: Any) -> None:
        self._save = _Save(step=step, since=time.monotonic())
        self._log.training.on_save_checkpoint_start(self._number(step))

    def _note_weights(self, *_: Any, **__: Any) -> None:
        if self._save is not None:
            self._save.is_written = True

    def _end_save(self, error: BaseException | None) -> None:
        save, self._save = self._save, None
        if save is None:
            return
        seconds, step, training = time.monotonic() - save.since, self._number(save.step), self._log.training
        weights: list[Path] = []
        with self._guard.catch("finding the weights"):
            if error is None or save.is_written:
                weights = saved_weights(Path(self._process.save_root), weight_names(self._process), save.step)
        if weights:
            training.on_save_checkpoint_success(step, path=weights[0])
        elif error is not None:
            training.on_error(error)
        training.on_save_checkpoint_end()
        if weights:
            self._record_weights(step, weights, seconds)

    def _record_weights(self, step: int, weights: list[Path], seconds: float) -> None:
        # The path that ai-toolkit passes to its own hook after a save is that of optimizer.pt.
        path, *others = map(os.path.abspath, weights)
        more: dict[str, Any] = {"other_paths": others} if others else {}
        self._log.log_checkpoint(step, path, seconds=seconds, **more)
        put_state(self._process, self._log, "save", step, path)
        remember_run(make_lineage_folder(Path(self._process.save_root)), self._log)

    def _number(self, step: Any) -> int:
        return step if isinstance(step, int) else int(self._process.step_num)


def put_state(
    process: Any, log: TelemetryLogger, at: StateMoment, step: int, checkpoint: str | None = None
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
