"""Watches one Trainer while it trains, beyond what its callbacks get: finds it, and patches some of its methods."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.open_phases import GuardedPhase
from toolkit.telemetry.integrations.trl_completions import TrainerCompletions
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.records.batch_values import content_row
from toolkit.telemetry.logger.records.loader_batches import LoaderBatches
from toolkit.telemetry.runfolder.evidence.batches import BatchRow
from toolkit.telemetry.timing.names import BACKWARD, DATA_LOADING, FORWARD

_LOOP: Final = ("_run_epoch", "_evaluate", "_finalize_training")
"""What the Trainer calls after `on_train_begin`: an exception that ends the training leaves one of them."""
_INNER: Final = ("get_batch_samples", "training_step", "_maybe_log_save_evaluate")
"""In versions whose loop is one method, already running by then, an exception leaves one of these or a callback."""

_Loaded = Callable[[Any, Any, Mapping[str, Any]], None]

_PROFILED: Final = (
    *("training_step", "compute_loss", "prediction_step", "_prepare_inputs", "_save_checkpoint"),
    "_generate_and_score_completions",
)
"""Methods of a trainer whose calls are timed one by one."""


class TrainerWatch:
    """Patches methods of a trainer and of its accelerator, until `stop`."""

    def __init__(self, guard: Guard) -> None:
        self.is_live = False
        """Whether a trainer is being watched."""
        self.trainer: Any = None
        self.losses: list[Any] = []
        """Of the current step's micro-batches, divided for the accumulation, before `logging_nan_inf_filter`."""
        self.norms: list[Any] = []
        """The gradient norms of the current step."""
        self.batches = BatchSizes()
        """Of the current step."""
        self.saved: tuple[str, float] | None = None
        """The folder of the last checkpoint, and the seconds it took."""
        self._patches = MethodPatches(guard)
        self._completions = TrainerCompletions(guard)
        self._loaders: LoaderBatches | None = None
        self._seen = 0
        self._depth = 0
        """How many of the loop's methods are running, one inside the other."""
        self._fail: Callable[[BaseException], None] = lambda _: None

    def start(
        self,
        trainer: Any,
        log: TelemetryLogger,
        callback: TrainerCallback,
        fail: Callable[[BaseException], None],
        *,
        loaded: _Loaded | None = None,
    ) -> None:
        """Watch `trainer` on behalf of `callback`; `fail` is called with an exception that ends the training.

        `loaded` is called with its arguments, state and parts once a checkpoint is loaded as a whole.
        """
        self.stop()
        self._patches.guard = log.guard
        self.trainer, self._fail = trainer, fail
        self.is_live = True
        self._watch_failures(trainer, callback)
        if log.is_live:
            self._watch_phases(trainer, log)
            if loaded is not None:
                # The last that a checkpoint restores. By the next hook the generators may have been used.
                restored = functools.partial(_with_parts, trainer, loaded)
                self._patches.around(trainer, "_load_rng_state", after=restored)
            # Last, and stopped first: it patches methods that are already patched here.
            self._completions.start(trainer, log)

    def begin_step(self) -> None:
        """Forget the values of the previous step."""
        self.losses.clear()
        self.norms.clear()

    def stop(self) -> None:
        """Restore the trainer's methods."""
        self.is_live = False
        self.trainer = None
        self.begin_step()
        if self._loaders is not None:
            self._loaders.stop()
            self._loaders = None
        self._completions.stop()
        self._patches.undo()

    def _watch_failures(self, trainer: Any, callback: TrainerCallback) -> None:
        handler = trainer.callback_handler
        is_one_method = not hasattr(trainer, "_run_epoch")
        wrap = self._patches.wrap
        for name in (*_LOOP, *(_INNER if is_one_method else ())):
            wrap(trainer, name, self._reporting_failures)
        wrap(handler, "call_event" if is_one_method else "on_epoch_begin", self._reporting_failures)
        for later in handler.callbacks[handler.callbacks.index(callback) + 1 :]:
            # Their `on_train_begin` is called only now, and may fail.
            wrap(later, "on_train_begin", self._reporting_failures)

    def _reporting_failures(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                # The caller of an evaluation within an epoch may catch its exception and continue.
                if self._depth == 1:
                    with self._patches.guard.catch("recording the training's failure"):
                        self._fail(error)
                raise
            finally:
                self._depth -= 1

        return call

    def _watch_phases(self, trainer: Any, log: TelemetryLogger) -> None:
        job, patches = log.training, self._patches
        # First, so that they do not time the patches below.
        for name in _PROFILED:
            called = f"{type(trainer).__name__}.{name}"
            patches.wrap(trainer, name, functools.partial(log.profile, name=called))
        patches.collect(trainer, "training_step", self.losses)
        if hasattr(trainer, "_get_grad_norm"):
            patches.collect(trainer, "_get_grad_norm", self.norms)
        else:
            patches.collect(trainer.accelerator, "clip_grad_norm_", self.norms)
        self.batches = BatchSizes()
        self._keep_batch = internals(log).keep_batch
        self._loaders = internals(log).loader_batches(self._take_batch)
        patches.span(trainer, "get_batch_samples", log, DATA_LOADING, after=self._count_samples)
        patches.wrap(trainer, "get_batch_samples", self._following_loaders)
        patches.span(trainer, "compute_loss", log, FORWARD)
        patches.span(trainer.accelerator, "backward", log, BACKWARD)
        patches.time(trainer, "prediction_step", job.validation_iteration)
        patches.time(trainer, "evaluation_loop", job.validation_loop)
        patches.wrap(trainer, "_save_checkpoint", functools.partial(self._timing_saves, trainer, log))

    def _take_batch(self, row: BatchRow | None) -> None:
        self._keep_batch(row, self.trainer.state.global_step + 1)

    def _following_loaders(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Follow the loader of each iteration before it begins; that of a resumed epoch is made only just before."""
        loaders = self._loaders
        if loaders is None:
            return original

        def call(batches: Any, *args: Any, **kwargs: Any) -> Any:
            self._seen = loaders.taken
            # True in the midst of an iteration, of Python 3.11 or later.
            if not getattr(batches, "gi_suspended", False):
                self._patches.guard.call("finding the data loader", self._follow, loaders, batches)
            return original(batches, *args, **kwargs)

        return call

    def _follow(self, loaders: LoaderBatches, batches: Any) -> None:
        if inspect.isgenerator(batches) and inspect.getgeneratorstate(batches) == inspect.GEN_CREATED:
            loaders.follow(_self_in(batches.gi_frame) if batches.gi_frame else None)

    def _count_samples(self, found: Any) -> None:
        self.batches.count(found[0])
        if self._loaders is not None and self._loaders.taken == self._seen:
            # A loader of another kind.
            for batch in found[0]:
                self._take_batch(content_row(batch))

    def _timing_saves(
        self, trainer: Any, log: TelemetryLogger, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        guard = log.guard

        def call(*args: Any, **kwargs: Any) -> Any:
            path, step, began = None, trainer.state.global_step, time.monotonic()
            with guard.catch("finding a checkpoint's folder"):
                trial = kwargs["trial"] if "trial" in kwargs else args[1]
                # There is no public name for the checkpoint folder of a hyperparameter search's trial.
                folder = trainer._get_output_dir(trial)  # noqa: SLF001
                path = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{step}")
            with GuardedPhase(guard, lambda: log.training.checkpoint_save(step, path=path)):
                saved = original(*args, **kwargs)
            if path is not None:
                self.saved = path, time.monotonic() - began
            return saved

        return call


def _with_parts(trainer: Any, loaded: _Loaded, *_: Any, **__: Any) -> None:
    loaded(trainer.args, trainer.state, vars(trainer.callback_handler))


def calling_trainer(callback: TrainerCallback) -> tuple[Any, str | os.PathLike[str] | None]:
    """Return the trainer that is calling a hook of `callback`, and the checkpoint it resumes from; None if unknown.

    The Trainer passes everything but itself to its callbacks, so both are looked up in the frames above.
    """
    checkpoint = None
    for frame in _frames_above():
        if checkpoint is None and "resume_from_checkpoint" in frame.f_code.co_varnames:
            checkpoint = frame.f_locals.get("resume_from_checkpoint")
        found = _self_in(frame)
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found, checkpoint if isinstance(checkpoint, (str, os.PathLike)) else None
    return None, None


def is_being_called(trainer: Any) -> bool:
    """Return whether a method of `trainer` is running further up the stack."""
    return trainer is not None and any(_self_in(frame) is trainer for frame in _frames_above())


def _frames_above() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _self_in(frame: FrameType) -> Any:
    # `f_locals` copies the variables and keeps them alive: read it only if needed.
    return frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
