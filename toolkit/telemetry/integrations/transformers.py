"""Hugging Face's `Trainer`, and the trainers of TRL that are made of it, as a run of ours: one callback."""

# Every hook of a callback has the arguments of all of them.
# ruff: noqa: ARG002

from __future__ import annotations

import functools
import inspect
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, Final

from transformers import Trainer, TrainerCallback
from transformers import __version__ as transformers_version
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from toolkit.runfolder.records import STEP
from toolkit.telemetry.device_scalars import DeviceScalars, PendingScalar
from toolkit.telemetry.guard import Guard, guarded
from toolkit.telemetry.integrations.opening import GivenLog, open_log, options_of, remember_run
from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods
from toolkit.telemetry.integrations.safe_block import SafeBlock
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.ranks import find_rank
from toolkit.telemetry.training.part import Part

_WHOLE_LOOP: Final = ("_run_epoch", "_evaluate", "_finalize_training")
"""What the Trainer does after `on_train_begin`, in parts: an exception that ends the training leaves one of them."""
_INTERVALS: Final = ("logging_steps", "eval_steps", "save_steps")
_OF_EVERY_LOG: Final = frozenset({"epoch", "num_input_tokens_seen", "step"})
_MAX_UNDER_WAY: Final = 64
"""Losses on their way from a device that are looked at for the filter's sake."""


class TelemetryCallback(TrainerCallback):
    """Writes a training by `Trainer` into a run folder, and lets it be steered.

    Give it the logger of the run, which then stays yours to close; or options (`log_dir=…`, `log_every=…`, or a
    `telemetry:` block as a mapping), and it opens a run with each training and closes it with it. Such a run is called
    what `run_name` of the callback or of the `TrainingArguments` says, else what the output folder is called.

    Nothing it does raises into the Trainer, apart from wrong options when it is made.
    """

    def __init__(self, log: GivenLog = None, *, run_name: str | None = None, **options: Any) -> None:
        """Make a callback; no folder is made yet.

        Raises:
            OptionsError: an option is unknown or wrong.
        """
        given = log if isinstance(log, TelemetryLogger) else None
        self._given = given
        self._options = options_of(log if not isinstance(log, TelemetryLogger) else None, **options)
        self._run_name = run_name
        self._log: TelemetryLogger | None = given
        self.guard = given.guard if given is not None else Guard()
        self.is_live = given is not None and given.is_live
        """Whether the hooks do anything: not before the training, nor after it unless the logger is the caller's."""
        self._is_training = False
        self._watch = _Watch(self.guard)
        self._blocks = ExitStack()
        """The job and its training loop, as long as they go on."""
        self._iteration: Part | None = None
        self._iteration_span: Any = None
        self._update: Part | None = None
        self._waiting: tuple[int, dict[str, Any]] | None = None
        """A step that is told of together with the Trainer's own log of it, which is about to come."""
        self._latest: dict[str, Any] = {}
        self._learning_rate: Any = None
        self._tokens = 0
        self._epoch_began = 0.0
        self._ended_at = 0.0
        """When the Trainer's last hook before a checkpoint came."""
        self._wants_save = self._wants_evaluation = False
        self._filter = _FilterWatch()
        self._evaluated_at: int | None = None

    @property
    def log(self) -> TelemetryLogger | None:
        """The logger that is written with; None before a training begins."""
        return self._log

    # The training as a whole.

    def on_train_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run and say what is trained."""
        with self.guard.watch("beginning to watch a Trainer"):
            if self._is_training:
                self._leave(InterruptedError("the training before this one ended without a word"))
            trainer, checkpoint = _caller_of(self)
            if not self._is_the_first_of(trainer) or not self._open(args, state, checkpoint):
                return
            log = self._log
            assert log is not None
            self._is_training = True
            if trainer is not None:
                with self.guard.watch("watching the Trainer's methods"):
                    self._watch.look_at(trainer, log, self._leave)
            with self.guard.watch("telling of the start"):
                model = kwargs.get("model")
                log.log_start(
                    config=args.to_dict(),
                    model=_about_model(model),
                    training=_about_training(trainer, args, state, model),
                    lora=_about_lora(model),
                    resumed_from_step=state.global_step or None,
                )
            with self.guard.watch("declaring what can be asked for"):
                self._declare(log, trainer, args, state)
            self._tokens = state.num_input_tokens_seen
            self._ended_at = time.time()
            self._filter = _FilterWatch(is_on=bool(args.logging_nan_inf_filter))
            self._begin_blocks(log, trainer, args, state)

    @guarded
    def on_train_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the run, if it was opened here: finished, or stopped where somebody asked for that."""
        self._leave(None)

    @guarded
    def on_epoch_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember when the epoch began."""
        self._epoch_began = time.monotonic()

    @guarded
    def on_epoch_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell of an epoch, unless the training stops in the midst of it."""
        self._tell_waiting()
        if self._log is not None and state.epoch and float(state.epoch).is_integer():
            seconds = time.monotonic() - self._epoch_began
            self._log.log_epoch(int(state.epoch), global_step=state.global_step, seconds=seconds)

    # Steps.

    @guarded
    def on_step_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin an iteration; the batches of all its micro-batches are there."""
        self._tell_waiting()
        if self._log is None:
            return
        if self._iteration_span is not None:
            # An epoch that was cut short among the micro-batches of a step.
            self._iteration_span.stop(error="its end was never told")
        self._watch.loss = self._watch.grad_norm = None
        self._iteration = self._log.training.training_iteration()
        self._iteration_span = self._iteration.__enter__()

    @guarded
    def on_pre_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the optimizer's step."""
        if self._log is not None:
            self._learning_rate = _learning_rate(kwargs.get("optimizer"))
            self._update = self._log.training.optimizer_update()
            self._update.__enter__()

    @guarded
    def on_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End it."""
        update, self._update = self._update, None
        if update is not None:
            update.__exit__(None, None, None)

    @guarded
    def on_step_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Tell of a step, and do what somebody asks for between this one and the next."""
        log, step = self._log, state.global_step
        if log is None:
            return control
        self._end_iteration(args, state)
        self._ended_at = time.time()
        fields = {
            "train_loss": self._filter.look(log, step, self._watch.loss),
            "lr": self._learning_rate,
            "grad_norm": self._watch.grad_norm,
            "epoch": state.epoch,
        }
        if args.include_num_input_tokens_seen != "no":
            fields["num_input_tokens_seen"] = state.num_input_tokens_seen
        self._latest = {name: value for name, value in fields.items() if value is not None}
        if control.should_log:
            self._waiting = step, self._latest
        else:
            log.log_step(step, **self._latest)
        return self._steer(control)

    @guarded
    def on_log(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Take what the Trainer logs: a step's metrics, an evaluation's, or the summary at the very end."""
        log, logs = self._log, kwargs.get("logs") or {}
        if log is None:
            return control
        numbers = _numbers(logs)
        if "loss" not in logs and "train_runtime" in logs and "train_loss" in logs:
            self._tell_waiting()
            log.log_event(
                "train_summary",
                global_step=state.global_step,
                summary=numbers,
                losses_hidden_by_nan_inf_filter=self._filter.hidden or None,
            )
        elif _is_of_evaluation(logs):
            self._tell_waiting()
            log.log_eval(state.global_step, **numbers)
            self._evaluated_at = state.global_step
        else:
            self._tell_log(log, state.global_step, numbers)
        return self._steer(control)

    # Beside the steps.

    @guarded
    def on_evaluate(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell of an evaluation whose log did not come, and of its time where the Trainer itself is not seen."""
        log, metrics = self._log, kwargs.get("metrics") or {}
        self._tell_waiting()
        if log is None:
            return
        if self._evaluated_at != state.global_step:
            log.log_eval(state.global_step, **_numbers(metrics))
        self._evaluated_at = None
        took = next((value for name, value in metrics.items() if name.endswith("_runtime")), None)
        if not self._watch.is_on and isinstance(took, Real):
            log.training.on_validation_start(start_time_msec=1000.0 * (time.time() - float(took)))
            log.training.on_validation_end()
        self._ended_at = time.time()

    @guarded
    def on_save(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell of a checkpoint, and leave a note of this run in it."""
        log, step = self._log, state.global_step
        self._tell_waiting()
        saved, self._watch.saved = self._watch.saved, None
        if log is None or not log.is_live:
            return
        if saved is not None:
            path, seconds, since = saved[0], saved[1], None
        else:
            path = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
            seconds, since = time.time() - self._ended_at, "the last hook before it"
            log.training.on_save_checkpoint_start(step, 1000.0 * self._ended_at, path=path)
            log.training.on_save_checkpoint_success(step, path=path)
            log.training.on_save_checkpoint_end()
        log.log_checkpoint(
            step, path, is_best=path == state.best_model_checkpoint, seconds=seconds, timed_since=since
        )
        if state.is_world_process_zero:
            remember_run(path, log)

    # Within.

    def _is_the_first_of(self, trainer: Any) -> bool:
        """Return whether no other such callback of this trainer writes the same training."""
        if trainer is None:
            return True
        ours = [one for one in trainer.callback_handler.callbacks if isinstance(one, TelemetryCallback)]
        if ours[0] is not self:
            self.guard.report(
                "watching a Trainer twice", OSError("another TelemetryCallback is there already")
            )
            self.is_live = False
        return ours[0] is self

    def _open(self, args: Any, state: Any, checkpoint: Any) -> bool:
        """Have a logger for the training that begins, and return whether there is anything to do."""
        if self._given is None:
            if not self._options.enabled:
                return False
            if checkpoint is None and state.global_step:
                checkpoint = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            name = self._run_name or args.run_name or Path(args.output_dir or "").name or "trainer"
            self._log = open_log(self._options, name, config=args.to_dict(), from_checkpoint=checkpoint)
            self.guard = self._watch.guard = self._log.guard
        assert self._log is not None
        # The other ranks write nothing, and do what rank 0 is asked for at the same step.
        self.is_live = self._log.is_live or find_rank().rank > 0
        return self.is_live

    def _declare(self, log: TelemetryLogger, trainer: Any, args: Any, state: Any) -> None:
        log.declare_action("save", lambda: setattr(self, "_wants_save", True))
        log.declare_action("stop")
        if trainer is not None and trainer.eval_dataset is not None:
            log.declare_action("evaluate", lambda: setattr(self, "_wants_evaluation", True))
        for name in _INTERVALS:
            strategy = getattr(args, name.replace("_steps", "_strategy"))
            value = getattr(state, name)
            if strategy == "steps" and isinstance(value, int) and value > 0:
                log.declare_knob(
                    name,
                    int,
                    low=1,
                    high=1_000_000,
                    value=value,
                    callback=functools.partial(setattr, state, name),
                )

    def _begin_blocks(self, log: TelemetryLogger, trainer: Any, args: Any, state: Any) -> None:
        job = log.training
        with self.guard.watch("configuring the training's vocabulary"):
            job.configure(
                global_batch_size=_batch_size(trainer, args, state),
                micro_batch_size=args.per_device_train_batch_size,
                world_size=args.world_size,
            )
        self._blocks = ExitStack()
        self._blocks.enter_context(job.application())
        self._blocks.enter_context(
            job.training_loop(state.global_step, train_iterations_target=state.max_steps or None)
        )

    def _end_iteration(self, args: Any, state: Any) -> None:
        iteration, self._iteration = self._iteration, None
        span, self._iteration_span = self._iteration_span, None
        if iteration is None:
            return
        if args.include_num_input_tokens_seen != "no":
            span.set(tokens=int(state.num_input_tokens_seen - self._tokens))
            self._tokens = state.num_input_tokens_seen
        iteration.__exit__(None, None, None)

    def _tell_waiting(self) -> None:
        """Tell of a step whose log did not come."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._log is not None:
            self._log.log_step(waiting[0], **waiting[1])

    def _tell_log(self, log: TelemetryLogger, step: int, logged: dict[str, Any]) -> None:
        """Tell of a step with what the Trainer logs of it, all in one record where a step record is due anyway."""
        waiting, self._waiting = self._waiting, None
        if "learning_rate" in logged:
            logged["lr"] = logged.pop("learning_rate")
        own: dict[str, Any] = {}
        if "loss" in logged:
            # Where the Trainer's own steps are not seen, its mean since its last log is all there is.
            own = {"train_loss": logged["loss"], **self._latest}
        own |= {name: logged.pop(name) for name in list(logged) if name in own and name != "train_loss"}
        others = {name: value for name, value in logged.items() if name not in own and name != "global_step"}
        if waiting is not None and step % log.log_every == 0:
            log.log_step(step, **own, **others)
            return
        if waiting is not None:
            log.log_step(step, **own)
        # The Trainer decides when it logs: that is kept, though `log_every` folds the steps around it.
        log.log_event(STEP, global_step=step, **own, **others)

    def _steer(self, control: Any) -> Any:
        """Hand what was asked for on to the Trainer."""
        if self._wants_save:
            self._wants_save, control.should_save = False, True
        if self._wants_evaluation:
            self._wants_evaluation, control.should_evaluate = False, True
        if self._log is not None and self._log.should_stop:
            control.should_training_stop = True
        return control

    def _leave(self, error: BaseException | None) -> None:
        """End what is open, let go of the Trainer, and close the run if it is ours; a second time does nothing."""
        log = self._log
        if not self._is_training or log is None:
            return
        self._is_training = False
        told = (type(error), error, error.__traceback__) if error is not None else (None, None, None)
        with self.guard.watch("letting go of the Trainer"):
            self._watch.let_go()
        with self.guard.watch("telling of the last step"):
            self._tell_waiting()
            self._filter.look(log, 0, None)
        for block in (self._update, self._iteration):
            if block is not None:
                with self.guard.watch("ending an iteration"):
                    block.__exit__(*told)
        self._update = self._iteration = self._iteration_span = None
        with self.guard.watch("ending the training loop"):
            self._blocks.__exit__(*told)
        self._blocks = ExitStack()
        if self._given is None:
            self.is_live = False
            with self.guard.watch("closing the run"):
                log.__exit__(*told)


class _Watch:
    """Sees what the Trainer's hooks do not tell, by standing around methods of this one trainer while it trains.

    The methods do what they did: what goes wrong in here stays in here, and their exceptions go on as they are.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.is_on = False
        self.loss: Any = None
        """Of the step that goes on: the sum over its micro-batches, as a tensor that nobody has waited for."""
        self.grad_norm: Any = None
        self.saved: tuple[str, float] | None = None
        """The folder of the last checkpoint, and the seconds that it took."""
        self._replaced = ReplacedMethods()
        self._fail: Callable[[BaseException], None] = lambda _: None

    def look_at(self, trainer: Any, log: TelemetryLogger, fail: Callable[[BaseException], None]) -> None:
        """Begin; `fail` is called with an exception that ends the training."""
        self.let_go()
        self._fail = fail
        self.is_on = True
        job = log.training
        for name in _WHOLE_LOOP:
            self._wrap(trainer, name, self._around_the_loop)
        self._wrap(trainer, "training_step", self._around_training_step)
        self._wrap(trainer, "_get_grad_norm", self._around_grad_norm)
        self._wrap(trainer, "get_batch_samples", self._timed(job.data_loading))
        self._wrap(trainer, "compute_loss", self._timed(job.forward))
        self._wrap(trainer.accelerator, "backward", self._timed(job.backward))
        self._wrap(trainer, "prediction_step", self._timed(job.validation_iteration))
        self._wrap(trainer, "evaluation_loop", self._timed(job.validation_loop))
        self._wrap(trainer, "_save_checkpoint", functools.partial(self._around_saving, trainer, log))

    def let_go(self) -> None:
        """Leave the trainer as it was."""
        self.is_on = False
        self.loss = self.grad_norm = None
        self._replaced.put_back()

    def _wrap(
        self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = getattr(owner, name, None)
        if original is None:
            # Another version of transformers has no such method.
            return
        self._replaced.put(owner, name, functools.wraps(original)(around(original)))

    def _around_the_loop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                with self.guard.watch("telling of the training's failure"):
                    self._fail(error)
                raise

        return call

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            loss = original(*args, **kwargs)
            with self.guard.watch("taking a loss"):
                # Before the filter of `logging_nan_inf_filter` sees it; already divided for the accumulation.
                self.loss = loss if self.loss is None else self.loss + loss
            return loss

        return call

    def _around_grad_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            # One that is spread over ranks would need all of them; the Trainer has it as a number when it logs.
            self.grad_norm = None if hasattr(norm, "placements") else norm
            return norm

        return call

    def _timed(self, part: Callable[..., Part]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return what puts a part of the vocabulary around each call of a method."""

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                with SafeBlock(self.guard, part):
                    return original(*args, **kwargs)

            return call

        return around

    def _around_saving(
        self, trainer: Any, log: TelemetryLogger, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path, step, began = "", trainer.state.global_step, time.monotonic()
            with self.guard.watch("finding a checkpoint's folder"):
                trial = kwargs["trial"] if "trial" in kwargs else args[1]
                # Nothing public says where the checkpoints of a search's trial are.
                folder = trainer._get_output_dir(trial)  # noqa: SLF001
                path = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{step}")
            with SafeBlock(self.guard, lambda: log.training.checkpoint_save(step, path=path)):
                saved = original(*args, **kwargs)
            self.saved = path, time.monotonic() - began
            return saved

        return call


class _FilterWatch:
    """Notices losses that `logging_nan_inf_filter` replaces in the Trainer's own logs, without waiting for a device."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.hidden = 0
        self._is_on = is_on
        self._device = DeviceScalars()
        self._under_way: deque[tuple[int, PendingScalar]] = deque()

    def look(self, log: TelemetryLogger, step: int, loss: Any) -> Any:
        """Look at the loss of a step, now or, if a device has yet to compute it, at one of the next steps.

        Returns the loss: as a number where it is known, which saves the logger asking for it again.
        """
        if not self._is_on:
            return loss
        if loss is not None and len(self._under_way) < _MAX_UNDER_WAY:
            taken = self._device.take(loss)
            if isinstance(taken, PendingScalar):
                self._under_way.append((step, taken))
            elif isinstance(taken, float):
                loss = taken
                self._see(log, step, taken)
        while self._under_way:
            found = self._under_way[0][1].poll()
            if found is None:
                break
            self._see(log, self._under_way.popleft()[0], found)
        return loss

    def _see(self, log: TelemetryLogger, step: int, loss: float) -> None:
        if math.isfinite(loss):
            return
        self.hidden += 1
        if self.hidden == 1:
            log.log_event(
                "nan_inf_filter",
                global_step=step,
                nan_inf_filter_hides_this=True,
                message=(
                    f"The loss of step {step} is {loss}. The Trainer's own log shows a mean of earlier losses instead,"
                    " because of logging_nan_inf_filter; train_loss here is the real one."
                ),
            )


def _caller_of(callback: TelemetryCallback) -> tuple[Any, Any]:
    """Return the trainer that is calling a hook of `callback`, and the checkpoint that it goes on from.

    The Trainer hands everything but itself and that path to its callbacks. Both stand in the frames above.
    """
    checkpoint = None
    frame = inspect.currentframe()
    while frame is not None:
        names = frame.f_code.co_varnames
        if checkpoint is None and "resume_from_checkpoint" in names:
            checkpoint = frame.f_locals.get("resume_from_checkpoint")
        found = frame.f_locals.get("self") if "self" in names else None
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found, checkpoint if isinstance(checkpoint, (str, os.PathLike)) else None
        frame = frame.f_back
    return None, None


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is a number, or a tensor of one; texts, tables and the like are somebody else's."""
    return {str(name): value for name, value in logs.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) or (hasattr(value, "numel") and bool(value.numel() == 1))


def _is_of_evaluation(logs: Mapping[str, Any]) -> bool:
    """Return whether a log is an evaluation's, whatever prefix it was given."""
    if "loss" in logs:
        return False
    own = [name for name in logs if name not in _OF_EVERY_LOG]
    return any(name.endswith("_runtime") and name != "train_runtime" for name in own) or (
        bool(own) and all(name.startswith("eval_") for name in own)
    )


def _learning_rate(optimizer: Any) -> Any:
    groups = getattr(optimizer, "param_groups", None)
    return groups[0].get("lr") if groups else None


def _batch_size(trainer: Any, args: Any, state: Any) -> int:
    """Return the samples of one optimizer step, over all processes."""
    if hasattr(trainer, "get_total_train_batch_size"):
        return int(trainer.get_total_train_batch_size(args))
    return int(
        (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps * args.world_size
    )


def _about_model(model: Any) -> dict[str, Any]:
    if model is None:
        return {}
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "name": getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__,
        "architecture": type(model).__name__,
        "total_params": sum(size for size, _ in sizes),
        "trainable_params": sum(size for size, is_trained in sizes if is_trained),
    }


def _about_training(trainer: Any, args: Any, state: Any, model: Any) -> dict[str, Any]:
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else getattr(model, "dtype", None)
    return {
        "batch_size": state.train_batch_size or args.train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "effective_batch_size": _batch_size(trainer, args, state),
        "optimizer": args.optim,
        "scheduler": args.lr_scheduler_type,
        "learning_rate": args.learning_rate,
        "max_steps": state.max_steps,
        "epochs": state.num_train_epochs,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "seed": args.seed,
        "gradient_checkpointing": args.gradient_checkpointing,
        "max_grad_norm": args.max_grad_norm,
        "logging_nan_inf_filter": args.logging_nan_inf_filter,
        "world_size": args.world_size,
        "trainer": type(trainer).__name__ if trainer is not None else None,
        "transformers_version": transformers_version,
    }


def _about_lora(model: Any) -> dict[str, Any] | None:
    """Return the configuration of the first adapter of a PEFT model."""
    adapters = getattr(model, "peft_config", None)
    if not isinstance(adapters, Mapping) or not adapters:
        return None
    adapter = next(iter(adapters.values()))
    wanted = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
    found = {name: getattr(adapter, name, None) for name in wanted}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}
