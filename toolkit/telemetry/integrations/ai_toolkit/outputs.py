"""What a trainer of ai-toolkit brings forth beside its steps: validation losses, samples and weights."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.core.guard import guarded
from toolkit.telemetry.integrations.ai_toolkit.description import weight_names
from toolkit.telemetry.integrations.ai_toolkit.surrounded_methods import SurroundedMethods
from toolkit.telemetry.integrations.ai_toolkit.written_files import (
    bring_inside,
    make_note_folder,
    new_samples,
    sample_names,
    saved_weights,
)
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.integrations.opening import remember_run
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.timing.names import SAMPLING, VALIDATION_LOOP

VALIDATION_LOSS: Final = "val/loss"
"""What ai-toolkit calls it in its own log."""


@dataclass(slots=True, kw_only=True)
class _Save:
    """A save that goes on."""

    step: Any
    """As it was asked for: None for the last one."""
    since: float
    is_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    """A sampling that goes on."""

    step: Any
    is_first: bool
    known: set[str]
    """The samples that were there before it."""


class Outputs:
    """Times each validation, sampling and save, and tells of what is there after it."""

    def __init__(self, process: Any, log: TelemetryLogger, parts: OpenParts) -> None:
        self.guard = log.guard
        self.is_live = True
        """Whether the hooks have an effect."""
        self._process = process
        self._log = log
        self._parts = parts
        self._save: _Save | None = None
        self._sampling: _Sampling | None = None

    def watch(self, methods: SurroundedMethods) -> None:
        """Put the hooks, on the process that does all this: on the others these methods return at once."""
        process = self._process
        if not process.accelerator.is_main_process:
            return
        methods.around(
            process,
            "validate",
            before=self._validation_begins,
            after=self._validation_ends,
            failed=self._validation_fails,
        )
        methods.around(
            process,
            "sample",
            before=self._sampling_begins,
            after=self._sampling_ends,
            failed=self._sampling_fails,
        )
        methods.around(
            process, "save", before=self._save_begins, after=self._save_ends, failed=self._save_fails
        )
        methods.around(process, "post_save_hook", before=self._weights_are_written)

    # Validation.

    @guarded
    def _validation_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(VALIDATION_LOOP, self._log.training.validation_loop())

    @guarded
    def _validation_ends(self, *_: Any, **__: Any) -> None:
        self._parts.end_with_inner(VALIDATION_LOOP)
        loss = self._process.additional_logs.get(VALIDATION_LOSS)
        if loss is not None:
            self._log.log_eval(self._process.step_num, val_loss=loss)

    @guarded
    def _validation_fails(self, error: BaseException) -> None:
        self._parts.end_with_inner(VALIDATION_LOOP, error)

    # Samples. ai-toolkit's own pages can end a job between two pictures, and after a save: what is there is told of.

    @guarded
    def _sampling_begins(self, step: Any = None, is_first: Any = False, *_: Any, **__: Any) -> None:
        self._parts.begin(SAMPLING, self._log.training.sampling())
        known = sample_names(Path(self._process.save_root))
        self._sampling = _Sampling(step=step, is_first=bool(is_first), known=known)

    @guarded
    def _sampling_ends(self, *_: Any, **__: Any) -> None:
        self._end_sampling(None)

    @guarded
    def _sampling_fails(self, error: BaseException) -> None:
        self._end_sampling(error)

    def _end_sampling(self, error: BaseException | None) -> None:
        self._parts.end_with_inner(SAMPLING, error)
        sampling, self._sampling = self._sampling, None
        run_folder = self._log.run_folder
        if sampling is None or run_folder is None:
            return
        process = self._process
        config = process.first_sample_config if sampling.is_first else process.sample_config
        prompts = _prompts(config, getattr(process, "trigger_word", None))
        for index, path in new_samples(Path(process.save_root), sampling.known):
            inside = path
            with self.guard.catch("bringing a sample into the run folder"):
                inside = bring_inside(path, run_folder)
            self._log.log_sample(
                self._number(sampling.step),
                inside,
                prompt=prompts[index] if index < len(prompts) else None,
                prompt_index=index,
                source_path=os.path.abspath(path),
            )

    # Weights.

    @guarded
    def _save_begins(self, step: Any = None, *_: Any, **__: Any) -> None:
        self._save = _Save(step=step, since=time.monotonic())
        self._log.training.on_save_checkpoint_start(self._number(step))

    @guarded
    def _weights_are_written(self, *_: Any, **__: Any) -> None:
        if self._save is not None:
            self._save.is_written = True

    @guarded
    def _save_ends(self, *_: Any, **__: Any) -> None:
        self._end_save(None)

    @guarded
    def _save_fails(self, error: BaseException) -> None:
        self._end_save(error)

    def _end_save(self, error: BaseException | None) -> None:
        save, self._save = self._save, None
        if save is None:
            return
        seconds, at, training = time.monotonic() - save.since, self._number(save.step), self._log.training
        weights: list[Path] = []
        with self.guard.catch("finding the weights"):
            if error is None or save.is_written:
                weights = saved_weights(Path(self._process.save_root), weight_names(self._process), save.step)
        if weights:
            training.on_save_checkpoint_success(at, path=weights[0])
        elif error is not None:
            training.on_error(error)
        training.on_save_checkpoint_end()
        if weights:
            self._tell_of_weights(at, weights, seconds)

    def _tell_of_weights(self, at: int, weights: list[Path], seconds: float) -> None:
        # What ai-toolkit hands to its own hook after a save is the path of optimizer.pt.
        path, *others = map(os.path.abspath, weights)
        more: dict[str, Any] = {"other_paths": others} if others else {}
        self._log.log_checkpoint(at, path, seconds=seconds, **more)
        remember_run(make_note_folder(Path(self._process.save_root)), self._log)

    def _number(self, step: Any) -> int:
        return step if isinstance(step, int) else int(self._process.step_num)


def _prompts(config: Any, trigger: Any) -> list[str]:
    prompts = [str(prompt) for prompt in getattr(config, "prompts", None) or ()]
    return (
        [prompt.replace("[trigger]", trigger) for prompt in prompts] if isinstance(trigger, str) else prompts
    )
