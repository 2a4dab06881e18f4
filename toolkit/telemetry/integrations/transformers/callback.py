"""The callback for `Trainer`: its hooks write a run, and pass control requests back to the Trainer."""

# Every hook of a callback has the arguments of all of them.
# ruff: noqa: ARG002

from __future__ import annotations

import copy
import functools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback
from transformers import __version__ as transformers_version
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from toolkit.telemetry.core.clock import wall_time_of
from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.logger_setup import (
    GivenLog,
    given_logger,
    open_log,
    options_of,
    remember_run,
)
from toolkit.telemetry.integrations.metric_names import with_known_names
from toolkit.telemetry.integrations.open_phases import exit_arguments
from toolkit.telemetry.integrations.transformers.trainer_watch import (
    TrainerWatch,
    calling_trainer,
    is_being_called,
)
from toolkit.telemetry.integrations.transformers.training_states import TrainingStates, reached_checkpoint
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import module_fields
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars, PendingScalar
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.logger.training import TrainingTelemetry
from toolkit.telemetry.runfolder.records import STEP
from toolkit.telemetry.timing.names import APPLICATION, OPTIMIZER_UPDATE, TRAINING_ITERATION

_INTERVALS: Final = ("logging_steps", "eval_steps", "save_steps")
_IN_EVERY_LOG: Final = frozenset({"epoch", "num_input_tokens_seen", "step"})
"""What the Trainer adds to each log."""
_EVALUATION_TIMES: Final = ("_runtime", "_samples_per_second")
"""Endings of the times in an evaluation's log, whatever its prefix; a step's log may have `train_runtime`."""


class TelemetryCallback(TrainerCallback):
    """Records a training by `Trainer` as a run, and carries out control requests.

    Give it a logger, which you close yourself, or options (`log_dir=…`, `log_every=…`, or a `telemetry:` block as a
    mapping): then it opens a run with each training and closes it at the end. That run gets the `run_name` of the
    callback or of the `TrainingArguments`, else the name of the output folder.

    Nothing it does raises into the Trainer, except invalid options when it is created.
    """

    def __init__(self, log: GivenLog = None, *, run_name: str | None = None, **options: Any) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError for invalid options or any beside a logger."""
        named = {} if run_name is None else {"run_name": run_name}
        self._given = given = given_logger(log, {**options, **named})
        self._options = options_of(log if not isinstance(log, TelemetryLogger) else None, **options)
        self._run_name = run_name
        self._log: TelemetryLogger | None = given
        self.guard = given.guard if given is not None else Guard()
        self.is_live = given is not None and given.is_live
        """Whether the hooks do anything: during a training, or always if the logger was given."""
        self.is_by_name = False
        """Whether it was made for `report_to`: one that the script made itself then records the training."""
        self._is_training = False
        self._watch = TrainerWatch(self.guard)
        self._blocks = ExitStack()
        """The open phases of the job and its training loop."""
        self._job: TrainingTelemetry | None = None
        self._begin_part: Callable[[str], AnySpan] = lambda _: NO_SPAN
        self._iteration: AnySpan | None = None
        self._update: AnySpan | None = None
        self._waiting: tuple[int, dict[str, Any]] | None = None
        """A step to be written together with the Trainer's own log of it, which comes next."""
        self._latest: dict[str, Any] = {}
        self._learning_rate: Any = None
        self._counts_tokens = False
        self._tokens = 0
        self._epoch_began = 0.0
        self._ended_at = 0.0
        """When the last hook before a checkpoint was called, by the monotonic clock."""
        self._wants_save = self._wants_evaluation = False
        self._filter = FilterWatch()
        self._evaluated_at: int | None = None
        self._states: TrainingStates | None = None

    @property
    def log(self) -> TelemetryLogger | None:
        """The logger of the run; None before a training begins."""
        return self._log

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy in a copied trainer watches and writes nothing yet.
        return _make_copy, (type(self), self._given or self._options, self._run_name)

    # The training as a whole.

    def on_train_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run and write the start record."""
        if self._given is None and not self._options.enabled:
            return
        with self.guard.catch("beginning to watch a Trainer"):
            trainer, checkpoint = calling_trainer(self)
            if self._is_training and is_being_called(self._watch.trainer):
                self._delegate(trainer, args, state, control, kwargs)
                return
            if self._is_training:
                self._leave(InterruptedError("the previous training ended without a report"))
            if self._is_first_callback(trainer) and self._open(args, state, checkpoint):
                resumed_from = checkpoint or reached_checkpoint(args, state)
                self._states = TrainingStates(self._live(), trainer, resumed_from)
                self._begin(trainer, args, state, kwargs.get("model"))

    @guarded
    def on_train_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the run if it was opened here: finished, or stopped on request."""
        self._leave(None)

    @guarded
    def on_epoch_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember when the epoch began."""
        self._epoch_began = time.monotonic()

    @guarded
    def on_epoch_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record an epoch, unless the training stops in the middle of it."""
        log = self._live()
        self._write_waiting()
        is_cut_short = control.should_epoch_stop or control.should_training_stop
        # Data of unknown length may end anywhere in the Trainer's epoch.
        if state.epoch and (not is_cut_short or float(state.epoch).is_integer()):
            seconds = time.monotonic() - self._epoch_began
            log.log_epoch(math.ceil(state.epoch), global_step=state.global_step, seconds=seconds)
        return self._apply_requests(log, control)

    # Steps.

    @guarded
    def on_step_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin an iteration, whose micro-batches are all loaded."""
        if self._waiting is not None:
            self._write_waiting()
        if self._iteration is not None:
            self._drop_iteration()
        self._watch.begin_step()
        if self._states is not None and self._states.awaits_first:
            self._states.put_first(args, state, kwargs)
        if self._job is not None:
            self._iteration = self._begin_part(TRAINING_ITERATION)

    @guarded
    def on_pre_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the optimizer step."""
        groups = getattr(kwargs.get("optimizer"), "param_groups", None)
        self._learning_rate = groups[0].get("lr") if groups else None
        if self._job is not None:
            self._update = self._begin_part(OPTIMIZER_UPDATE)

    @guarded
    def on_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the optimizer step."""
        update, self._update = self._update, None
        if update is not None:
            update.__exit__(None, None, None)

    @guarded
    def on_step_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record a step, and apply requests."""
        log, step, watch, job = self._live(), state.global_step, self._watch, self._job
        iteration, self._iteration = self._iteration, None
        if iteration is not None and job is not None:
            if self._counts_tokens:
                iteration.set(tokens=int(state.num_input_tokens_seen - self._tokens))
                self._tokens = state.num_input_tokens_seen
            job.end_iteration(iteration)
        self._ended_at = time.monotonic()
        losses, norm = watch.losses, watch.norms[-1] if watch.norms else None
        loss = _number_if_here(losses[0] if len(losses) == 1 else sum(losses) if losses else None)
        if type(loss) is not float or not math.isfinite(loss):
            self._filter.check(log, step, loss)
        self._latest = latest = {
            "train_loss": loss,
            "lr": self._learning_rate,
            # A norm spread over ranks would need all of them; the Trainer logs it as a number.
            "grad_norm": None if hasattr(norm, "placements") else _number_if_here(norm),
            "epoch": state.epoch,
        }
        if self._counts_tokens:
            latest["num_input_tokens_seen"] = state.num_input_tokens_seen
        share = watch.batches.share()
        if share < 1.0:
            internals(log).count_samples(share)
        if control.should_log:
            self._waiting = step, latest
        else:
            log.log_step(step, **latest)
        return self._apply_requests(log, control)

    @guarded
    def on_log(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record what the Trainer logs: metrics of a step or an evaluation, or the summary at the end."""
        log, step, logs = self._live(), state.global_step, kwargs.get("logs") or {}
        numbers = _numbers_in(logs)
        if _is_summary(logs, state.log_history):
            self._write_waiting()
            self._filter.check_arrived(log)
            hidden = self._filter.hidden or None
            log.log_event(
                "train_summary", global_step=step, summary=numbers, losses_hidden_by_nan_inf_filter=hidden
            )
        elif _is_evaluation(logs):
            self._write_waiting()
            log.log_eval(step, **numbers)
            self._evaluated_at = step
        else:
            self._write_log(log, step, numbers)
        return self._apply_requests(log, control)

    # Beside the steps.

    @guarded
    def on_evaluate(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record an evaluation whose log did not come, and its time if the Trainer is not watched."""
        log, metrics = self._live(), kwargs.get("metrics") or {}
        self._write_waiting()
        if self._evaluated_at != state.global_step:
            log.log_eval(state.global_step, **_numbers_in(metrics))
        self._evaluated_at = None
        took = next((value for name, value in metrics.items() if name.endswith("_runtime")), None)
        if not self._watch.is_live and isinstance(took, Real):
            log.training.on_validation_start(start_time_msec=1000.0 * (time.time() - float(took)))
            log.training.on_validation_end()
        self._ended_at = time.monotonic()

    @guarded
    def on_save(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a checkpoint, and write the run's id into it."""
        log, step = self._live(), state.global_step
        self._write_waiting()
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
        if self._states is not None:
            self._states.put_saved(path, args, state, kwargs)
        if state.is_world_process_zero:
            remember_run(path, log)

    # Internal: how a training begins.

    def _is_first_callback(self, trainer: Any) -> bool:
        """Return whether this is the `TelemetryCallback` of the trainer that records the training: the first one."""
        if trainer is None:
            return True
        ours = [one for one in trainer.callback_handler.callbacks if isinstance(one, TelemetryCallback)]
        ours.sort(key=lambda one: one.is_by_name)
        if ours[0] is not self and not self.is_by_name:
            self.guard.report(
                "watching a Trainer twice", OSError("the trainer already has another TelemetryCallback")
            )
        self.is_live = self.is_live and ours[0] is self
        return ours[0] is self

    def _delegate(self, trainer: Any, args: Any, state: Any, control: Any, kwargs: dict[str, Any]) -> None:
        """Give a training inside the one recorded here a callback and a run of its own."""
        if trainer is None:
            return
        others = [] if self._given is not None else [copy.copy(self)]
        if not others:
            self.guard.report(
                "beginning a training within a training",
                OSError("the logger was given for the outer one, so the inner one is not recorded"),
            )
        handler = trainer.callback_handler
        # A new list: the existing one is being iterated over.
        handler.callbacks = [
            other for one in handler.callbacks for other in (others if one is self else [one])
        ]
        for other in others:
            other.on_train_begin(args, state, control, **kwargs)

    def _open(self, args: Any, state: Any, checkpoint: Any) -> bool:
        """Open the logger of the training that begins, and return whether anything is recorded."""
        if self._given is None:
            checkpoint = checkpoint or reached_checkpoint(args, state)
            name = self._run_name or args.run_name or Path(args.output_dir or "").name or "trainer"
            self._log = open_log(self._options, name, config=args.to_dict(), from_checkpoint=checkpoint)
            self.guard = self._log.guard
        # The other ranks write nothing, but carry out rank 0's requests at the same step.
        self.is_live = self._live().is_live or find_rank().rank > 0
        return self.is_live

    def _begin(self, trainer: Any, args: Any, state: Any, model: Any) -> None:
        """Watch the training; each part fails on its own."""
        log = self._live()
        self._is_training = True
        if trainer is not None:
            with self.guard.catch("watching the Trainer's methods"):
                loaded = None if self._states is None else self._states.put_first
                self._watch.start(trainer, log, self, self._leave, loaded=loaded)
        with self.guard.catch("writing the start record"):
            log.log_start(
                config=args.to_dict(),
                model=model_fields(model),
                training=training_fields(trainer, args, state, model),
                lora=lora_fields(model),
                resumed_from_step=state.global_step or None,
            )
        with self.guard.catch("declaring actions and knobs"):
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
        self._job, self._begin_part = job, internals(self._live()).begin_part
        with self.guard.catch("configuring the training's phases"):
            job.configure(
                global_batch_size=samples_per_step(trainer, args, state),
                micro_batch_size=args.per_device_train_batch_size,
                world_size=args.world_size,
            )
        self._blocks = ExitStack()
        if not _is_within(self._live(), APPLICATION):
            # A given logger may already be inside an application.
            self._blocks.enter_context(job.application())
        self._blocks.enter_context(
            job.training_loop(state.global_step, train_iterations_target=state.max_steps or None)
        )

    # Internal: steps and logs.

    def _live(self) -> TelemetryLogger:
        assert self._log is not None, "only a callback with a logger is live"
        return self._log

    def _drop_iteration(self) -> None:
        """End an iteration that was interrupted between its micro-batches, without counting it."""
        span, self._iteration = self._iteration, None
        if span is not None:
            span.stop()

    def _write_waiting(self) -> None:
        """Write a step whose log did not come."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._live().log_step(waiting[0], **waiting[1])

    def _write_log(self, log: TelemetryLogger, step: int, logged: dict[str, Any]) -> None:
        """Write what the Trainer logged for a step, together with the step's own record if that is still waiting."""
        logged.pop("global_step", None)
        if "learning_rate" in logged:
            logged["lr"] = logged.pop("learning_rate")
        if "loss" not in logged:
            # The script's own numbers; a waiting step keeps waiting for the Trainer's log.
            if not _IN_EVERY_LOG.issuperset(logged):
                internals(log).put(STEP, {"global_step": step, **logged})
            return
        waiting, self._waiting = self._waiting, None
        # The loss of the step itself is better than the Trainer's mean since its last log.
        seen = {name: value for name, value in self._latest.items() if value is not None}
        fields = {**seen, **with_known_names(logged)}
        fields["train_loss"] = seen.get("train_loss", logged["loss"])
        # The Trainer's own logs are kept, even if `log_every` merges the steps around them.
        if waiting is not None:
            log.write_step(step, **fields)
        else:
            internals(log).put(STEP, {"global_step": step, **fields})

    def _apply_requests(self, log: TelemetryLogger, control: Any) -> Any:
        """Pass requests on to the Trainer."""
        if self._wants_save:
            self._wants_save, control.should_save = False, True
        if self._wants_evaluation:
            self._wants_evaluation, control.should_evaluate = False, True
        if log.should_stop:
            control.should_training_stop = True
        return control

    # Internal: how a training ends.

    def _leave(self, error: BaseException | None) -> None:
        """End what is open, stop watching the Trainer, and close the run if it was opened here; once."""
        log = self._log
        if not self._is_training or log is None:
            return
        self._is_training = False
        with self.guard.catch("restoring the Trainer's methods"):
            self._watch.stop()
        with self.guard.catch("recording the last step"):
            self._write_waiting()
            self._filter.check_arrived(log)
        with self.guard.catch("ending an iteration"):
            self._end_open_phases(error)
        with self.guard.catch("ending the training loop"):
            self._blocks.__exit__(*exit_arguments(error))
        self._blocks, self._job, self._states = ExitStack(), None, None
        if self._given is None:
            self.is_live = False
            with self.guard.catch("closing the run"):
                log.__exit__(*exit_arguments(error))

    def _end_open_phases(self, error: BaseException | None) -> None:
        if error is None:
            self._drop_iteration()
        spans = self._update, self._iteration
        self._update = self._iteration = None
        for span in spans:
            if span is not None and error is not None and self._job is not None:
                self._job.end_failed(span, error)
            elif span is not None:
                span.stop()


def _make_copy(kind: type[TelemetryCallback], log: GivenLog, run_name: str | None) -> TelemetryCallback:
    return kind(log, run_name=run_name)


def _is_within(log: TelemetryLogger, name: str) -> bool:
    """Return whether a span of that name is open here."""
    span: Any = internals(log).current_span()
    while span is not None and span.name != name:
        span = span.outer
    return span is not None


def _number_if_here(value: Any) -> Any:
    """Return the number that a tensor in host memory holds, which needs no waiting; anything else as it is."""
    kind = type(value)
    if kind.__name__ == "Tensor" and kind.__module__ == "torch" and value.is_cpu and value.numel() == 1:
        return value.item()
    return value


def _is_summary(logs: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a log is the summary at the end of the training; `history` ends with the same log."""
    if "loss" in logs or "train_runtime" not in logs:
        return False
    # An evaluation on the training data may have the same names, but no `total_flos`. The Trainer's own printing
    # removes it from the log, but not from the history.
    return "total_flos" in logs or bool(history and "total_flos" in history[-1])


def _is_evaluation(logs: Mapping[str, Any]) -> bool:
    """Return whether a log is an evaluation's, with any prefix."""
    if "loss" in logs:
        return False
    own = [name for name in logs if name not in _IN_EVERY_LOG]
    return any(name.endswith(_EVALUATION_TIMES) and name != "train_runtime" for name in own) or (
        bool(own) and all(name.startswith("eval_") for name in own)
    )


def _numbers_in(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers in a log and its tensors of one number; texts and tables are left out."""
    return {str(name): value for name, value in logs.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) or (hasattr(value, "numel") and bool(value.numel() == 1))


_MAX_PENDING: Final = 64
"""Losses on their way from a device that are checked."""


class FilterWatch:
    """Records the first hidden loss, and counts them all."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.hidden = 0
        """Steps whose loss was hidden, as far as the device has delivered it."""
        self._is_on = is_on
        self._device = DeviceScalars()
        self._pending: deque[tuple[int, PendingScalar]] = deque()

    def check(self, log: TelemetryLogger, step: int, loss: Any) -> None:
        """Check the loss of a step now or, if a device has yet to compute it, at one of the next steps."""
        if not self._is_on:
            return
        if type(loss) is float:
            if not math.isfinite(loss):
                self._record(log, step, loss)
        elif loss is not None and len(self._pending) < _MAX_PENDING:
            taken = self._device.take(loss)
            if isinstance(taken, PendingScalar):
                self._pending.append((step, taken))
            elif isinstance(taken, float):
                self.check(log, step, taken)
        if self._pending:
            self.check_arrived(log)

    def check_arrived(self, log: TelemetryLogger) -> None:
        """Check the losses that have arrived from the device since."""
        while self._pending:
            step, pending = self._pending[0]
            loss = pending.poll()
            if loss is None:
                return
            self._pending.popleft()
            if not math.isfinite(loss):
                self._record(log, step, loss)

    def _record(self, log: TelemetryLogger, step: int, loss: float) -> None:
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


def model_fields(model: Any) -> dict[str, Any]:
    """Return the model's name, class and size."""
    if model is None:
        return {}
    return module_fields(model, getattr(getattr(model, "config", None), "name_or_path", None))


def lora_fields(model: Any) -> dict[str, Any] | None:
    """Return the configuration of the first adapter of a PEFT model."""
    adapters = getattr(model, "peft_config", None)
    if not isinstance(adapters, Mapping) or not adapters:
        return None
    adapter = next(iter(adapters.values()))
    wanted = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
    found = {name: getattr(adapter, name, None) for name in wanted}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}


def training_fields(trainer: Any, args: Any, state: Any, model: Any) -> dict[str, Any]:
    """Return how it is trained."""
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else getattr(model, "dtype", None)
    return {
        "batch_size": state.train_batch_size or args.train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "effective_batch_size": samples_per_step(trainer, args, state),
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


def samples_per_step(trainer: Any, args: Any, state: Any) -> int:
    """Return the samples of one optimizer step, over all processes."""
    if hasattr(trainer, "get_total_train_batch_size"):
        return int(trainer.get_total_train_batch_size(args))
    return int(
        (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps * args.world_size
    )
