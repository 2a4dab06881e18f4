"""The callback: what a `Trainer` tells at its hooks goes into a run, and what is asked of the run goes back to it."""

# Every hook of a callback has the arguments of all of them.
# ruff: noqa: ARG002

from __future__ import annotations

import copy
import functools
import math
import os
import time
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from toolkit.core.guard import Guard, guarded
from toolkit.core.ranks import find_rank
from toolkit.core.wall_times import wall_time_of
from toolkit.runfolder.records import STEP
from toolkit.telemetry.integrations.opening import GivenLog, open_log, options_of, remember_run
from toolkit.telemetry.integrations.transformers.calling_trainer import calling_trainer, is_being_called
from toolkit.telemetry.integrations.transformers.nan_inf_filter import FilterWatch
from toolkit.telemetry.integrations.transformers.start_facts import (
    about_lora,
    about_model,
    about_training,
    samples_a_step,
)
from toolkit.telemetry.integrations.transformers.trainer_logs import (
    is_of_an_evaluation,
    is_of_the_whole_training,
    numbers_in,
    says_something,
)
from toolkit.telemetry.integrations.transformers.trainer_watch import TrainerWatch
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import OptionsError
from toolkit.telemetry.training import TrainingTelemetry
from toolkit.telemetry.training.part import Part
from toolkit.timing.names import APPLICATION

_INTERVALS: Final = ("logging_steps", "eval_steps", "save_steps")


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
            OptionsError: an option is unknown or wrong, or stands beside a logger, which has its own.
        """
        given = log if isinstance(log, TelemetryLogger) else None
        if given is not None and (options or run_name is not None):
            beside = sorted([*options, *(["run_name"] if run_name is not None else [])])
            raise OptionsError(f"a logger was given together with options {beside}: give one of the two")
        self._given = given
        self._options = options_of(log if not isinstance(log, TelemetryLogger) else None, **options)
        self._run_name = run_name
        self._log: TelemetryLogger | None = given
        self.guard = given.guard if given is not None else Guard()
        self.is_live = given is not None and given.is_live
        """Whether the hooks do anything: not before the training, nor after it unless the logger is the caller's."""
        self._is_training = False
        self._watch = TrainerWatch(self.guard)
        self._blocks = ExitStack()
        """The job and its training loop, as long as they go on."""
        self._job: TrainingTelemetry | None = None
        self._iteration: Part | None = None
        self._iteration_span: Any = None
        self._update: Part | None = None
        self._waiting: tuple[int, dict[str, Any]] | None = None
        """A step that is told of together with the Trainer's own log of it, which is about to come."""
        self._latest: dict[str, Any] = {}
        self._learning_rate: Any = None
        self._counts_tokens = False
        self._tokens = 0
        self._epoch_began = 0.0
        self._ended_at = 0.0
        """When the Trainer's last hook before a checkpoint came, by the monotonic clock."""
        self._wants_save = self._wants_evaluation = False
        self._filter = FilterWatch()
        self._evaluated_at: int | None = None

    @property
    def log(self) -> TelemetryLogger | None:
        """The logger that is written with; None before a training begins."""
        return self._log

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, as a copied trainer has one, watches nothing yet. What this one watches and writes is not its own.
        return _make_again, (type(self), self._given or self._options, self._run_name)

    # The training as a whole.

    def on_train_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run and say what is trained."""
        if self._given is None and not self._options.enabled:
            return
        with self.guard.catch("beginning to watch a Trainer"):
            trainer, checkpoint = calling_trainer(self)
            if self._is_training and is_being_called(self._watch.trainer):
                self._leave_to_another(trainer, args, state, control, kwargs)
                return
            if self._is_training:
                self._leave(InterruptedError("the training before this one ended without a word"))
            if self._is_the_first_of(trainer) and self._open(args, state, checkpoint):
                self._begin(trainer, args, state, kwargs.get("model"))

    @guarded
    def on_train_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the run, if it was opened here: finished, or stopped where somebody asked for that."""
        self._leave(None)

    @guarded
    def on_epoch_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember when the epoch began."""
        self._epoch_began = time.monotonic()

    @guarded
    def on_epoch_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Tell of an epoch, unless the training stops in the midst of it."""
        log = self._live()
        self._tell_waiting()
        is_cut_short = control.should_epoch_stop or control.should_training_stop
        # Data of unknown length end anywhere in what the Trainer takes for an epoch.
        if state.epoch and (not is_cut_short or float(state.epoch).is_integer()):
            seconds = time.monotonic() - self._epoch_began
            log.log_epoch(math.ceil(state.epoch), global_step=state.global_step, seconds=seconds)
        return self._steer(log, control)

    # Steps.

    @guarded
    def on_step_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin an iteration; the batches of all its micro-batches are there."""
        if self._waiting is not None:
            self._tell_waiting()
        if self._iteration_span is not None:
            self._drop_iteration()
        self._watch.loss = self._watch.grad_norm = None
        if self._job is not None:
            self._iteration = iteration = self._job.training_iteration()
            self._iteration_span = iteration.__enter__()

    @guarded
    def on_pre_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the optimizer's step."""
        self._learning_rate = _learning_rate(kwargs.get("optimizer"))
        if self._job is not None:
            self._update = update = self._job.optimizer_update()
            update.__enter__()

    @guarded
    def on_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End it."""
        update, self._update = self._update, None
        if update is not None:
            update.__exit__(None, None, None)

    @guarded
    def on_step_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Tell of a step, and do what somebody asks for between this one and the next."""
        log, step, watch = self._live(), state.global_step, self._watch
        self._end_iteration(state)
        self._ended_at = time.monotonic()
        loss = _number_if_here(watch.loss)
        if type(loss) is not float or not math.isfinite(loss):
            self._filter.look(log, step, loss)
        self._latest = latest = {
            "train_loss": loss,
            "lr": self._learning_rate,
            "grad_norm": _number_if_here(watch.grad_norm),
            "epoch": state.epoch,
        }
        if self._counts_tokens:
            latest["num_input_tokens_seen"] = state.num_input_tokens_seen
        share = watch.batches.share()
        if share < 1.0:
            log.count_samples(share)
        if control.should_log:
            self._waiting = step, latest
        else:
            log.log_step(step, **latest)
        return self._steer(log, control)

    @guarded
    def on_log(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Take what the Trainer logs: a step's metrics, an evaluation's, or the summary at the very end."""
        log, step, logs = self._live(), state.global_step, kwargs.get("logs") or {}
        numbers = numbers_in(logs)
        if is_of_the_whole_training(logs, state.log_history):
            self._tell_waiting()
            self._filter.look_at_arrived(log)
            hidden = self._filter.hidden or None
            log.log_event(
                "train_summary", global_step=step, summary=numbers, losses_hidden_by_nan_inf_filter=hidden
            )
        elif is_of_an_evaluation(logs):
            self._tell_waiting()
            log.log_eval(step, **numbers)
            self._evaluated_at = step
        else:
            self._tell_log(log, step, numbers)
        return self._steer(log, control)

    # Beside the steps.

    @guarded
    def on_evaluate(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell of an evaluation whose log did not come, and of its time where the Trainer itself is not seen."""
        log, metrics = self._live(), kwargs.get("metrics") or {}
        self._tell_waiting()
        if self._evaluated_at != state.global_step:
            log.log_eval(state.global_step, **numbers_in(metrics))
        self._evaluated_at = None
        took = next((value for name, value in metrics.items() if name.endswith("_runtime")), None)
        if not self._watch.is_live and isinstance(took, Real):
            log.training.on_validation_start(start_time_msec=1000.0 * (time.time() - float(took)))
            log.training.on_validation_end()
        self._ended_at = time.monotonic()

    @guarded
    def on_save(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell of a checkpoint, and leave a note of this run in it."""
        log, step = self._live(), state.global_step
        self._tell_waiting()
        saved, self._watch.saved = self._watch.saved, None
        if not log.is_live:
            return
        if saved is not None:
            path, seconds, since = saved[0], saved[1], None
        else:
            path = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
            seconds, since = time.monotonic() - self._ended_at, "the last hook before it"
            log.training.on_save_checkpoint_start(step, 1000.0 * wall_time_of(self._ended_at), path=path)
            log.training.on_save_checkpoint_success(step, path=path)
            log.training.on_save_checkpoint_end()
        log.log_checkpoint(
            step, path, is_best=path == state.best_model_checkpoint, seconds=seconds, timed_since=since
        )
        if state.is_world_process_zero:
            remember_run(path, log)

    # Within: how a training begins.

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

    def _leave_to_another(
        self, trainer: Any, args: Any, state: Any, control: Any, kwargs: dict[str, Any]
    ) -> None:
        """Have a training within the one that is written here written by a callback, and into a run, of its own."""
        if trainer is None:
            return
        others = [] if self._given is not None else [copy.copy(self)]
        if not others:
            self.guard.report(
                "beginning a training within a training",
                OSError("the logger was given for the outer one, so that the inner one is not written"),
            )
        handler = trainer.callback_handler
        # Another list: the one that is there is being gone through.
        handler.callbacks = [
            other for one in handler.callbacks for other in (others if one is self else [one])
        ]
        for other in others:
            other.on_train_begin(args, state, control, **kwargs)

    def _open(self, args: Any, state: Any, checkpoint: Any) -> bool:
        """Have a logger for the training that begins, and return whether there is anything to do."""
        if self._given is None:
            if checkpoint is None and state.global_step:
                checkpoint = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            name = self._run_name or args.run_name or Path(args.output_dir or "").name or "trainer"
            self._log = open_log(self._options, name, config=args.to_dict(), from_checkpoint=checkpoint)
            self.guard = self._watch.guard = self._log.guard
        # The other ranks write nothing, and do what rank 0 is asked for at the same step.
        self.is_live = self._live().is_live or find_rank().rank > 0
        return self.is_live

    def _begin(self, trainer: Any, args: Any, state: Any, model: Any) -> None:
        """Watch the training, each part of it on its own: one that fails leaves the others."""
        log = self._live()
        self._is_training = True
        if trainer is not None:
            with self.guard.catch("watching the Trainer's methods"):
                self._watch.look_at(trainer, log, self, self._leave)
        with self.guard.catch("telling of the start"):
            log.log_start(
                config=args.to_dict(),
                model=about_model(model),
                training=about_training(trainer, args, state, model),
                lora=about_lora(model),
                resumed_from_step=state.global_step or None,
            )
        with self.guard.catch("declaring what can be asked for"):
            self._declare(log, trainer, args, state)
        self._counts_tokens = args.include_num_input_tokens_seen not in ("no", False)
        self._tokens = state.num_input_tokens_seen
        self._ended_at = time.monotonic()
        self._latest, self._learning_rate = {}, None
        self._filter = FilterWatch(is_on=bool(args.logging_nan_inf_filter) and log.is_live)
        self._begin_blocks(log.training, trainer, args, state)

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

    def _begin_blocks(self, job: TrainingTelemetry, trainer: Any, args: Any, state: Any) -> None:
        self._job = job
        with self.guard.catch("configuring the training's vocabulary"):
            job.configure(
                global_batch_size=samples_a_step(trainer, args, state),
                micro_batch_size=args.per_device_train_batch_size,
                world_size=args.world_size,
            )
        self._blocks = ExitStack()
        if not _is_within(self._live(), APPLICATION):
            # Whoever brings a logger may have an application around all this.
            self._blocks.enter_context(job.application())
        self._blocks.enter_context(
            job.training_loop(state.global_step, train_iterations_target=state.max_steps or None)
        )

    # Within: steps and logs.

    def _live(self) -> TelemetryLogger:
        assert self._log is not None, "only a callback with a logger is live"
        return self._log

    def _end_iteration(self, state: Any) -> None:
        iteration, self._iteration = self._iteration, None
        span, self._iteration_span = self._iteration_span, None
        if iteration is None:
            return
        if self._counts_tokens:
            span.set(tokens=int(state.num_input_tokens_seen - self._tokens))
            self._tokens = state.num_input_tokens_seen
        iteration.__exit__(None, None, None)

    def _drop_iteration(self) -> None:
        """End an iteration that was cut short among its micro-batches, so that it is not counted."""
        span, self._iteration_span, self._iteration = self._iteration_span, None, None
        if span is not None:
            span.stop()

    def _tell_waiting(self) -> None:
        """Tell of a step whose log did not come."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._live().log_step(waiting[0], **waiting[1])

    def _tell_log(self, log: TelemetryLogger, step: int, logged: dict[str, Any]) -> None:
        """Tell of a step with what the Trainer logs of it, all in one record where a step record is due anyway."""
        logged.pop("global_step", None)
        if "learning_rate" in logged:
            logged["lr"] = logged.pop("learning_rate")
        if "loss" not in logged:
            # Somebody's own numbers; a step that waits for the Trainer's log goes on waiting.
            if says_something(logged):
                log.log_event(STEP, global_step=step, **logged)
            return
        waiting, self._waiting = self._waiting, None
        # Where the Trainer's own steps are not seen, its mean since its last log is all there is.
        seen = {name: value for name, value in self._latest.items() if value is not None}
        fields = {"train_loss": logged["loss"], **seen, **logged}
        fields["train_loss"] = seen.get("train_loss", logged["loss"])
        # The Trainer decides when it logs: that is kept, though `log_every` folds the steps around it.
        if waiting is not None:
            log.write_step(step, **fields)
        else:
            log.log_event(STEP, global_step=step, **fields)

    def _steer(self, log: TelemetryLogger, control: Any) -> Any:
        """Hand what was asked for on to the Trainer."""
        if self._wants_save:
            self._wants_save, control.should_save = False, True
        if self._wants_evaluation:
            self._wants_evaluation, control.should_evaluate = False, True
        if log.should_stop:
            control.should_training_stop = True
        return control

    # Within: how a training ends.

    def _leave(self, error: BaseException | None) -> None:
        """End what is open, let go of the Trainer, and close the run if it is ours; a second time does nothing."""
        log = self._log
        if not self._is_training or log is None:
            return
        self._is_training = False
        told = (type(error), error, error.__traceback__) if error is not None else (None, None, None)
        with self.guard.catch("letting go of the Trainer"):
            self._watch.let_go()
        with self.guard.catch("telling of the last step"):
            self._tell_waiting()
            self._filter.look_at_arrived(log)
        with self.guard.catch("ending an iteration"):
            self._end_open_parts(error)
        with self.guard.catch("ending the training loop"):
            self._blocks.__exit__(*told)
        self._blocks, self._job = ExitStack(), None
        if self._given is None:
            self.is_live = False
            with self.guard.catch("closing the run"):
                log.__exit__(*told)

    def _end_open_parts(self, error: BaseException | None) -> None:
        if error is None:
            self._drop_iteration()
        told = (type(error), error, error.__traceback__) if error is not None else (None, None, None)
        parts = self._update, self._iteration
        self._update = self._iteration = self._iteration_span = None
        for part in parts:
            if part is not None:
                part.__exit__(*told)


def _make_again(kind: type[TelemetryCallback], log: GivenLog, run_name: str | None) -> TelemetryCallback:
    return kind(log, run_name=run_name)


def _is_within(log: TelemetryLogger, name: str) -> bool:
    """Return whether a span of that name is open here."""
    span: Any = log.current_span()
    while span is not None and span.name != name:
        span = span.outer
    return span is not None


def _learning_rate(optimizer: Any) -> Any:
    groups = getattr(optimizer, "param_groups", None)
    return groups[0].get("lr") if groups else None


def _number_if_here(value: Any) -> Any:
    """Return the number of a tensor in the host's memory, where asking for it makes nobody wait; all else as it is."""
    kind = type(value)
    if kind.__name__ == "Tensor" and kind.__module__ == "torch" and value.is_cpu and value.numel() == 1:
        return value.item()
    return value
