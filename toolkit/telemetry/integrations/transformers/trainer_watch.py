"""What the Trainer's hooks do not tell, seen by standing around methods of one trainer while it trains."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, Final

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from toolkit.core.guard import Guard, guarded
from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods
from toolkit.telemetry.integrations.safe_block import SafeBlock
from toolkit.telemetry.integrations.stand_in import stand_in_for
from toolkit.telemetry.integrations.trl_completions import TrainerCompletions
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.training.part import Part

_WHOLE_LOOP: Final = ("_run_epoch", "_evaluate", "_finalize_training")
"""What the Trainer does after `on_train_begin`, in parts: an exception that ends the training leaves one of them."""
_PIECES: Final = ("get_batch_samples", "training_step", "_maybe_log_save_evaluate")
"""Where the loop is one method, which is under way already, an exception leaves one of these, or a callback."""

_PROFILED: Final = (
    *("training_step", "compute_loss", "prediction_step", "_prepare_inputs", "_save_checkpoint"),
    "_generate_and_score_completions",
)
"""Methods of a trainer whose calls are timed one by one."""


class TrainerWatch:
    """Stands around methods of a trainer, and of its accelerator, until it lets go of them.

    The methods do what they did: what goes wrong in here stays in here, and their exceptions go on as they are.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.is_live = False
        """Whether a trainer is being watched."""
        self.trainer: Any = None
        self.loss: Any = None
        """Of the step that goes on: the sum over its micro-batches, as a tensor that nobody has waited for."""
        self.grad_norm: Any = None
        self.batches = BatchSizes()
        """Of the step that goes on."""
        self.saved: tuple[str, float] | None = None
        """The folder of the last checkpoint, and the seconds that it took."""
        self._replaced = ReplacedMethods()
        self._completions = TrainerCompletions(guard)
        self._depth = 0
        """How many parts of the loop are under way, each within the one before."""
        self._fail: Callable[[BaseException], None] = lambda _: None

    def look_at(
        self,
        trainer: Any,
        log: TelemetryLogger,
        callback: TrainerCallback,
        fail: Callable[[BaseException], None],
    ) -> None:
        """Begin, on behalf of `callback`; `fail` is called with an exception that ends the training."""
        self.let_go()
        self.trainer, self._fail = trainer, fail
        self.is_live = True
        self._look_for_failures(trainer, callback)
        if log.is_live:
            self._look_at_the_parts(trainer, log)
            # Last, and let go of first: what it stands around is methods that stand around others here.
            self._completions.look_at(trainer, log)

    def let_go(self) -> None:
        """Leave the trainer as it was."""
        self.is_live = False
        self.trainer = self.loss = self.grad_norm = None
        self._completions.let_go()
        self._replaced.put_back()

    def _look_for_failures(self, trainer: Any, callback: TrainerCallback) -> None:
        handler = trainer.callback_handler
        is_one_method = not hasattr(trainer, "_run_epoch")
        for name in (*_WHOLE_LOOP, *(_PIECES if is_one_method else ())):
            self._put_around(trainer, name, self._part_of_the_loop)
        self._put_around(handler, "call_event" if is_one_method else "on_epoch_begin", self._part_of_the_loop)
        for later in handler.callbacks[handler.callbacks.index(callback) + 1 :]:
            # They are told that the training begins only now, and may fail at it.
            self._put_around(later, "on_train_begin", self._part_of_the_loop)

    def _look_at_the_parts(self, trainer: Any, log: TelemetryLogger) -> None:
        job = log.training
        # First: what is put around them below is ours, and not the trainer's time.
        for name in _PROFILED:
            called = f"{type(trainer).__name__}.{name}"
            self._put_around(trainer, name, functools.partial(log.profile, name=called))
        self._put_around(trainer, "training_step", self._taking_the_loss)
        if hasattr(trainer, "_get_grad_norm"):
            self._put_around(trainer, "_get_grad_norm", self._taking_the_norm)
        else:
            self._put_around(trainer.accelerator, "clip_grad_norm_", self._taking_the_norm)
        self.batches = BatchSizes()
        self._put_around(trainer, "get_batch_samples", self._counting_samples)
        self._put_around(trainer, "get_batch_samples", self._timed(job.data_loading))
        self._put_around(trainer, "compute_loss", self._timed(job.forward))
        self._put_around(trainer.accelerator, "backward", self._timed(job.backward))
        self._put_around(trainer, "prediction_step", self._timed(job.validation_iteration))
        self._put_around(trainer, "evaluation_loop", self._timed(job.validation_loop))
        self._put_around(trainer, "_save_checkpoint", functools.partial(self._saving, trainer, log))

    def _put_around(
        self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = getattr(owner, name, None)
        if original is None:
            # Another version of transformers has no such method.
            return
        self._replaced.put(owner, name, stand_in_for(original, around(original)))

    def _part_of_the_loop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                # Whoever calls an evaluation in the midst of an epoch may catch what it raises, and go on.
                if self._depth == 1:
                    with self.guard.catch("telling of the training's failure"):
                        self._fail(error)
                raise
            finally:
                self._depth -= 1

        return call

    # For every step. `guarded` costs the training less than a block that is watched.

    def _taking_the_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            loss = original(*args, **kwargs)
            self._take_loss(loss)
            return loss

        return call

    @guarded
    def _take_loss(self, loss: Any) -> None:
        # Before the filter of `logging_nan_inf_filter` sees it; already divided for the accumulation.
        self.loss = loss if self.loss is None else self.loss + loss

    def _taking_the_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            # One that is spread over ranks would need all of them; the Trainer has it as a number when it logs.
            self.grad_norm = None if hasattr(norm, "placements") else norm
            return norm

        return call

    def _counting_samples(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            self._count_samples(found)
            return found

        return call

    @guarded
    def _count_samples(self, found: Any) -> None:
        self.batches.begin()
        for batch in found[0]:
            self.batches.add(batch)

    def _timed(self, make: Callable[[], Part]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return what puts a part of the vocabulary around each call of a method."""

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                part = self._begin(make)
                try:
                    answer = original(*args, **kwargs)
                except BaseException as error:
                    self._end(part, error)
                    raise
                self._end(part, None)
                return answer

            return call

        return around

    @guarded
    def _begin(self, make: Callable[[], Part]) -> Part:
        part = make()
        part.__enter__()
        return part

    @guarded
    def _end(self, part: Part | None, error: BaseException | None) -> None:
        if part is None:
            return
        if error is None:
            part.__exit__(None, None, None)
        else:
            part.__exit__(type(error), error, error.__traceback__)

    # For every checkpoint.

    def _saving(self, trainer: Any, log: TelemetryLogger, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path, step, began = None, trainer.state.global_step, time.monotonic()
            with self.guard.catch("finding a checkpoint's folder"):
                trial = kwargs["trial"] if "trial" in kwargs else args[1]
                # Nothing public says where the checkpoints of a search's trial are.
                folder = trainer._get_output_dir(trial)  # noqa: SLF001
                path = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{step}")
            with SafeBlock(self.guard, lambda: log.training.checkpoint_save(step, path=path)):
                saved = original(*args, **kwargs)
            if path is not None:
                self.saved = path, time.monotonic() - began
            return saved

        return call
