"""One trainer of ai-toolkit, told of in a run folder from the start of its `run` to its end."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.guard import Guard, guarded
from toolkit.telemetry.integrations.ai_toolkit.between_steps import StoppedOnRequest, answer, declare, tidy_up
from toolkit.telemetry.integrations.ai_toolkit.description import (
    describe,
    is_costly_rate,
    learning_rate,
    process_began,
    samples_a_step,
)
from toolkit.telemetry.integrations.ai_toolkit.written_files import (
    bring_inside,
    has_weights,
    new_samples,
    sample_names,
    saved_weights,
)
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.integrations.opening import open_log, remember_run
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import TelemetryOptions
from toolkit.telemetry.ranks import find_rank
from toolkit.timing.names import (
    APPLICATION,
    BACKWARD,
    CHECKPOINT_LOAD,
    DATA_LOADING,
    DATALOADER_INIT,
    FORWARD,
    MODEL_INIT,
    OPTIMIZER_INIT,
    OPTIMIZER_UPDATE,
    SAMPLING,
    TRAINING_ITERATION,
    TRAINING_LOOP,
    VALIDATION_LOOP,
)

_ITERATION_TIMER: Final = "train_loop"
_PART_OF_TIMER: Final = {
    _ITERATION_TIMER: TRAINING_ITERATION,
    "get_batch": DATA_LOADING,
    "get_batch:reg": DATA_LOADING,
    "reset_batch": DATA_LOADING,
    "reset_batch:reg": DATA_LOADING,
    "predict_unet": FORWARD,
    "backward": BACKWARD,
    "optimizer_step": OPTIMIZER_UPDATE,
}
"""ai-toolkit's own timers, and what they time in our words."""

_VALIDATION_LOSS: Final = "val/loss"

_is_first_of_process = True


class WatchedProcess:
    """Puts itself around the methods of one trainer, calls each exactly as it was called, and changes nothing.

    What goes wrong here is counted and said once; the trainer never hears of it. Only somebody's request to stop
    reaches it, as an exception that ends its loop and that is caught again outside of it.
    """

    def __init__(self, process: Any, options: TelemetryOptions) -> None:
        self.guard = Guard()
        self.is_live = False
        """Whether the hooks have an effect: from the beginning of `run` to its end."""
        self._process = process
        # A call that makes no sense would be ours, not the job's: it must not end it.
        self._options = options.changed(strict=False)
        self._log: TelemetryLogger
        self._is_open = False
        self._parts = OpenParts()
        self._undo: list[Callable[[], None]] = []
        self._step = 0
        self._losses: Any = None
        self._norms: list[Any] = []
        self._rate: Any = None
        self._rate_is_from: int | None = None
        self._epoch = 0
        self._epoch_losses: list[float] = []
        self._known_samples: set[str] = set()
        self._saving_since: float | None = None

    def install(self) -> None:
        """Wait for the trainer's `run`."""
        original = self._process.run

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                result = original(*args, **kwargs)
            except StoppedOnRequest:
                tidy_up(self._process, self.guard)
                self._end(None)
                return None
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
            return result

        self._process.run = run

    # The job.

    def _begin(self) -> None:
        with self.guard.watch("opening the run"):
            self._open()

    def _open(self) -> None:
        global _is_first_of_process
        process = self._process
        goes_on = has_weights(Path(process.save_root), self._weight_names())
        log = open_log(
            self._options,
            str(process.job.name),
            config=process.job.raw_config,
            from_checkpoint=process.save_root if goes_on else None,
        )
        self._log, self.guard, self._is_open = log, log.guard, True
        # The other ranks write nothing, but they are asked to stop and to save together with the first.
        if not log.is_live and find_rank().rank == 0:
            return
        began = process_began() if _is_first_of_process else None
        _is_first_of_process = False
        since = None if began is None else began * 1000.0
        self._parts.begin(APPLICATION, log.training.application(start_time_msec=since))
        self._put_hooks()
        self.is_live = True

    def _end(self, error: BaseException | None) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        if self._is_open:
            self._is_open = False
            with self.guard.watch("ending what is open"):
                self._tell_step()
                self._parts.end_all(error)
            with self.guard.watch("closing the run"):
                self._close(error)
        self.is_live = False

    def _close(self, error: BaseException | None) -> None:
        if error is None:
            self._log.close()
        elif getattr(self._process, "is_stopping", False):
            # The stop button of ai-toolkit's own pages ends the job with an exception.
            self._log.close("stopped")
        else:
            self._log.__exit__(type(error), error, error.__traceback__)

    # The hooks.

    def _put_hooks(self) -> None:
        process = self._process
        self._around(process, "hook_before_model_load", before=self._model_load_begins)
        self._around(process, "load_weights", before=self._load_begins, after=self._load_ends)
        self._around(
            process,
            "hook_add_extra_train_params",
            before=self._model_load_ends,
            after=self._optimizer_begins,
        )
        self._around(process, "before_dataset_load", before=self._data_load_begins)
        self._around(
            process, "hook_before_train_loop", before=self._preparation_begins, after=self._training_begins
        )
        self._around(
            process,
            "hook_train_loop",
            before=self._step_begins,
            after=self._step_ends,
            failed=self._step_fails,
        )
        self._around(
            process,
            "validate",
            before=self._validation_begins,
            after=self._validation_ends,
            failed=self._validation_fails,
        )
        self._around(
            process, "save", before=self._save_begins, after=self._save_ends, failed=self._save_fails
        )
        self._around(
            process,
            "sample",
            before=self._sampling_begins,
            after=self._sampling_ends,
            failed=self._sampling_fails,
        )
        self._put_end_of_step()
        timer = getattr(process, "timer", None)
        self._around(timer, "start", before=self._timer_starts)
        for name in ("stop", "cancel"):
            self._around(timer, name, after=self._timer_stops)

    def _around(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., object] | None = None,
        after: Callable[..., object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Put `before` and `after` around the calls of a method; one that this ai-toolkit does not have is left out."""
        original = getattr(owner, name, None)
        if not callable(original):
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if failed is not None:
                    failed(error)
                raise
            if after is not None:
                after(result, *args, **kwargs)
            return result

        self._replace(owner, name, call)

    def _replace(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        own = vars(owner)
        before = own.get(name)

        def undo() -> None:
            if own.get(name) is not call:
                # Somebody else has put something around it since, which would be lost.
                return
            if before is None:
                own.pop(name, None)
            else:
                own[name] = before

        setattr(owner, name, call)
        self._undo.append(undo)

    def _put_end_of_step(self) -> None:
        original = getattr(self._process, "end_step_hook", None)
        if not callable(original):
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._between_steps():
                raise StoppedOnRequest
            return result

        self._replace(self._process, "end_step_hook", call)

    # Before the training.

    @guarded
    def _model_load_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(MODEL_INIT, self._log.training.model_init())

    @guarded
    def _load_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(CHECKPOINT_LOAD, self._log.training.checkpoint_load())

    @guarded
    def _load_ends(self, *_: Any, **__: Any) -> None:
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
        self._epoch = process.epoch_num
        with self.guard.watch("saying what is trained"):
            log.log_start(**describe(process, self.guard))
        with self.guard.watch("saying what a step is"):
            log.training.configure(
                global_batch_size=samples_a_step(process),
                micro_batch_size=int(process.train_config.batch_size),
                train_iterations_target=int(process.train_config.steps),
                save_checkpoint_strategy="sync",
                is_log_throughput_enabled=False,
            )
        with self.guard.watch("saying what may be asked"):
            declare(process, log)
        self._around(getattr(process, "accelerator", None), "clip_grad_norm_", after=self._clipped)
        self._parts.begin(
            TRAINING_LOOP,
            log.training.training_loop(
                train_iterations_start=process.step_num, train_iterations_target=process.train_config.steps
            ),
        )

    # Steps.

    @guarded
    def _timer_starts(self, name: Any = None, *_: Any, **__: Any) -> None:
        part = _PART_OF_TIMER.get(name)
        if part is None:
            return
        training = self._log.training
        if part == TRAINING_ITERATION:
            self._parts.begin(part, training.training_iteration())
        elif part == DATA_LOADING:
            self._parts.begin(part, training.data_loading())
        elif part == FORWARD:
            self._parts.begin(part, training.forward())
        elif part == BACKWARD:
            self._parts.begin(part, training.backward())
        else:
            self._parts.begin(part, training.optimizer_update())

    @guarded
    def _timer_stops(self, _: Any, name: Any = None, *__: Any, **___: Any) -> None:
        part = _PART_OF_TIMER.get(name)
        if part is not None:
            self._parts.end_with_inner(part)
            if part == TRAINING_ITERATION:
                self._tell_step()

    @guarded
    def _step_begins(self, *_: Any, **__: Any) -> None:
        self._norms.clear()
        self._step = self._process.step_num

    @guarded
    def _clipped(self, norm: Any, *_: Any, **__: Any) -> None:
        if norm is not None:
            self._norms.append(norm)

    @guarded
    def _step_ends(self, losses: Any, *_: Any, **__: Any) -> None:
        self._losses = losses

    @guarded
    def _step_fails(self, error: BaseException) -> None:
        if _is_out_of_memory(error):
            self._log.log_event(
                "oom",
                global_step=self._step,
                message=str(error)[:500],
                consecutive=getattr(self._process, "num_consecutive_oom", 0) + 1,
            )

    @guarded
    def _tell_step(self) -> None:
        losses, self._losses = self._losses, None
        if losses is None:
            return
        process, step = self._process, self._step
        train_loss, scalars = _losses_by_name(losses)
        for name, value in (getattr(process, "additional_logs", None) or {}).items():
            if name != _VALIDATION_LOSS:
                scalars.setdefault(str(name), value)
        if process.epoch_num > self._epoch:
            self._tell_epoch(process.epoch_num, step - 1)
        if isinstance(train_loss, float):
            self._epoch_losses.append(train_loss)
        self._log.log_step(
            step,
            train_loss,
            self._learning_rate(step),
            _length_of(self._norms),
            process.epoch_num,
            **scalars,
        )

    def _tell_epoch(self, epoch: int, last_step: int) -> None:
        losses, self._epoch_losses = self._epoch_losses, []
        metrics: dict[str, Any] = {"train_loss": math.fsum(losses) / len(losses)} if losses else {}
        self._epoch = epoch
        self._log.log_epoch(epoch, global_step=last_step, **metrics)

    def _learning_rate(self, step: int) -> Any:
        if self._rate_is_from is None or step - self._rate_is_from >= self._log.log_every:
            with self.guard.watch("reading the learning rate"):
                self._rate = learning_rate(self._process)
                self._rate_is_from = step if is_costly_rate(self._process) else None
        return self._rate

    def _between_steps(self) -> bool:
        """Do what was asked for since the last step; say whether that was to stop."""
        if not self.is_live:
            return False
        # Where ai-toolkit's timers are not what they were, nobody has told of the step yet.
        self._tell_step()
        with self.guard.watch("doing what was asked"):
            return answer(self._process, self._log)
        return False

    # Beside the training.

    @guarded
    def _validation_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(VALIDATION_LOOP, self._log.training.validation_loop())

    @guarded
    def _validation_ends(self, *_: Any, **__: Any) -> None:
        self._parts.end_with_inner(VALIDATION_LOOP)
        loss = self._process.additional_logs.get(_VALIDATION_LOSS)
        if loss is not None:
            self._log.log_eval(self._process.step_num, val_loss=loss)

    @guarded
    def _validation_fails(self, error: BaseException) -> None:
        self._parts.end_with_inner(VALIDATION_LOOP, error)

    @guarded
    def _sampling_begins(self, *_: Any, **__: Any) -> None:
        self._parts.begin(SAMPLING, self._log.training.sampling())
        self._known_samples = sample_names(Path(self._process.save_root))

    @guarded
    def _sampling_ends(self, _: Any, step: Any = None, is_first: Any = False) -> None:
        self._parts.end_with_inner(SAMPLING)
        run_folder = self._log.run_folder
        if run_folder is None:
            return
        process = self._process
        prompts = _prompts(process, process.first_sample_config if is_first else process.sample_config)
        at = step if isinstance(step, int) else process.step_num
        for index, path in new_samples(Path(process.save_root), self._known_samples):
            inside = path
            with self.guard.watch("bringing a sample into the run folder"):
                inside = bring_inside(path, run_folder)
            self._log.log_sample(
                at,
                inside,
                prompt=prompts[index] if index < len(prompts) else None,
                prompt_index=index,
                source_path=os.path.abspath(path),
            )

    @guarded
    def _sampling_fails(self, error: BaseException) -> None:
        self._parts.end_with_inner(SAMPLING, error)

    @guarded
    def _save_begins(self, step: Any = None, *_: Any, **__: Any) -> None:
        self._saving_since = time.monotonic()
        self._log.training.on_save_checkpoint_start(self._step_of_save(step))

    @guarded
    def _save_ends(self, _: Any, step: Any = None, *__: Any, **___: Any) -> None:
        since, self._saving_since = self._saving_since, None
        if since is None or not self._log.is_live:
            return
        seconds = time.monotonic() - since
        at = self._step_of_save(step)
        root = Path(self._process.save_root)
        # What ai-toolkit hands to its own hook after a save is the path of optimizer.pt.
        weights = saved_weights(root, self._weight_names(), step)
        training = self._log.training
        if weights:
            training.on_save_checkpoint_success(at, path=weights[0])
        training.on_save_checkpoint_end()
        if weights:
            others = [os.path.abspath(path) for path in weights[1:]]
            more: dict[str, Any] = {"other_paths": others} if others else {}
            self._log.log_checkpoint(at, os.path.abspath(weights[0]), seconds=seconds, **more)
            remember_run(root, self._log)

    @guarded
    def _save_fails(self, error: BaseException) -> None:
        self._saving_since = None
        self._log.training.on_error(error)
        self._log.training.on_save_checkpoint_end()

    def _step_of_save(self, step: Any) -> int:
        return step if isinstance(step, int) else int(self._process.step_num)

    def _weight_names(self) -> list[str]:
        process = self._process
        trigger = getattr(getattr(process, "embed_config", None), "trigger", None)
        return [str(process.job.name), *([trigger] if isinstance(trigger, str) and trigger else [])]


def _losses_by_name(losses: Any) -> tuple[Any, dict[str, Any]]:
    """Return the loss and the others that a step has, named as in ai-toolkit's own log."""
    if not isinstance(losses, Mapping):
        return losses, {}
    others = {f"loss/{name}": value for name, value in losses.items() if name != "loss"}
    if "loss" in losses:
        return losses["loss"], others
    return next(iter(losses.values()), None), others


def _length_of(norms: Sequence[Any]) -> Any:
    """Return the length of the whole gradient, whose parts were clipped one by one, without asking a device for it."""
    if len(norms) < 2:
        return norms[0] if norms else None
    return sum(norm * norm for norm in norms) ** 0.5


def _prompts(process: Any, config: Any) -> list[str]:
    prompts = [str(prompt) for prompt in getattr(config, "prompts", None) or ()]
    word = getattr(process, "trigger_word", None)
    return [prompt.replace("[trigger]", word) for prompt in prompts] if isinstance(word, str) else prompts


def _is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error)
