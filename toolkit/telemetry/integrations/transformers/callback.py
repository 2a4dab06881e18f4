"""The callback for `Trainer`: its hooks write a run, and pass control requests back to the Trainer."""

# Every hook of a callback has the arguments of all of them.
# ruff: noqa: ARG002

from __future__ import annotations

import atexit
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from toolkit.telemetry.core.clock import wall_time_of
from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.hooked_run import HookedRun
from toolkit.telemetry.integrations.logger_setup import (
    GivenLog,
    log_save_since,
    phases_in,
    remember_run,
    run_id_in,
)
from toolkit.telemetry.integrations.metric_names import with_known_names
from toolkit.telemetry.integrations.open_phases import exit_arguments
from toolkit.telemetry.integrations.transformers.phases import TrainerPhases, calling_trainer
from toolkit.telemetry.integrations.transformers.start_fields import (
    lora_fields,
    model_fields,
    samples_per_step,
    training_fields,
)
from toolkit.telemetry.integrations.trl_completions import TrainerCompletions
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.logger.training import TrainingTelemetry
from toolkit.telemetry.runfolder.records import STEP, StateMoment
from toolkit.telemetry.timing.names import APPLICATION, OPTIMIZER_UPDATE, TRAINING_ITERATION

_INTERVALS: Final = ("logging_steps", "eval_steps", "save_steps")
_IN_EVERY_LOG: Final = frozenset({"epoch", "num_input_tokens_seen", "step"})
"""What the Trainer adds to each log."""
_EVALUATION_TIMES: Final = ("_runtime", "_samples_per_second")
"""Endings of the times in an evaluation's log, whatever its prefix; a step's log may have `train_runtime`."""
_RUN: Final = "telemetry_run"
"""Where the Trainer's own state, which each checkpoint has, names the run."""


class TelemetryCallback(HookedRun, TrainerCallback):
    """Records a training by `Trainer` as a run, and carries out control requests.

    Give it a logger, which you close yourself, or options (`log_dir=…`, `log_every=…`, or a `telemetry:` block as a
    mapping): then it opens a run with each training and closes it at the end. That run gets the `run_name` of the
    callback or of the `TrainingArguments`, else the name of the output folder. With `phases` it also records what the
    Trainer does not tell its callbacks, by patching methods of the trainer.

    Nothing it does raises into the Trainer, except invalid options when it is created.
    """

    def __init__(
        self, log: GivenLog = None, *, run_name: str | None = None, phases: bool | None = None, **options: Any
    ) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError for invalid options or any with a logger."""
        log, self._wants_phases = phases_in(log, phases)
        HookedRun.__init__(self, log, run_name=run_name, **options)
        # With a logger that was given, the hooks between two trainings write, too.
        self.is_live = self.log is not None and self.log.is_live
        self.is_by_name = False
        """Whether it was made for `report_to`: one that the script made itself then records the training."""
        self._offered: tuple[Any, Any, Mapping[str, Any]] | None = None
        """A training that is recorded if no other callback does."""
        self.state: Any = None
        """The Trainer's state of the training that is recorded."""
        self._phases: TrainerPhases | None = None
        self._completions = TrainerCompletions(self.guard)
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
        self._last_share = 1.0
        """The last step of an epoch relative to the others."""
        self._epoch_began = 0.0
        self._ended_at = 0.0
        """When the last hook before a checkpoint was called, by the monotonic clock."""
        self._requested: set[str] = set()
        """What the Trainer's control is set to at the end of this step."""
        self._evaluated_at: int | None = None
        self._needs_first_state = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy in a copied trainer records nothing yet.
        make, arguments = super().__reduce__()
        return functools.partial(make, phases=self._wants_phases), arguments

    # The training as a whole.

    def on_train_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run and write the start record."""
        if self._given is None and not self._options.enabled:
            return
        with self.guard.catch("beginning to record a Trainer"):
            self.leave(InterruptedError("another training began before this one reported its end"))
            if self.is_by_name:
                # A callback that the script made is called after this one.
                self._offered = args, state, kwargs
            else:
                self._begin(args, state, kwargs)

    @guarded
    def on_train_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the run if it was opened here: finished, or stopped on request."""
        self.leave(None)

    def on_epoch_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember when the epoch began."""
        offered, self._offered = self._offered, None
        if offered is not None:
            with self.guard.catch("beginning to record a Trainer"):
                self._begin(*offered)
        self._epoch_began = time.monotonic()

    @guarded
    def on_epoch_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record an epoch, unless the training stops in the middle of it."""
        log = self._opened()
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
        if self._phases is not None:
            self._phases.begin_step()
        if self._needs_first_state:
            self._needs_first_state = False
            self._put_state("load" if state.global_step else "start", args, state, kwargs)
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
        log, step, job, epoch = self.log, state.global_step, self._job, state.epoch
        assert log is not None, "only a callback with a logger is live"
        iteration, self._iteration = self._iteration, None
        if iteration is not None and job is not None:
            if self._counts_tokens:
                iteration.set(tokens=int(state.num_input_tokens_seen - self._tokens))
                self._tokens = state.num_input_tokens_seen
            job.end_iteration(iteration)
        self._ended_at = time.monotonic()
        self._latest = latest = {"lr": self._learning_rate, "epoch": epoch}
        if self._phases is not None:
            latest |= self._phases.end_step()
        if self._last_share < 1.0 and epoch and float(epoch).is_integer():
            internals(log).count_samples(self._last_share)
        if self._counts_tokens:
            latest["num_input_tokens_seen"] = state.num_input_tokens_seen
        if control.should_log:
            self._waiting = step, latest
        else:
            log.log_step(step, **latest)
        if self._requested or log.should_stop:
            self._apply_requests(log, control)
        return control

    @guarded
    def on_log(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record what the Trainer logs: metrics of a step or an evaluation, or the summary at the end."""
        log, step, logs = self._opened(), state.global_step, kwargs.get("logs") or {}
        numbers = _numbers_in(logs)
        if _is_summary(logs, state.log_history):
            self._write_waiting()
            log.log_event("train_summary", global_step=step, summary=numbers)
        elif _is_evaluation(logs):
            self._write_waiting()
            log.log_eval(step, **numbers)
            self._evaluated_at = step
        else:
            self._write_log(log, step, numbers)
        return self._apply_requests(log, control)

    # Between the steps.

    @guarded
    def on_evaluate(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record an evaluation whose log did not come, and its time."""
        log, metrics = self._opened(), kwargs.get("metrics") or {}
        self._write_waiting()
        if self._evaluated_at != state.global_step:
            log.log_eval(state.global_step, **_numbers_in(metrics))
        self._evaluated_at = None
        took = next((value for name, value in metrics.items() if name.endswith("_runtime")), None)
        if self._phases is None and isinstance(took, Real):
            log.training.on_validation_start(start_time_msec=1000.0 * (time.time() - float(took)))
            log.training.on_validation_end()
        self._ended_at = time.monotonic()

    @guarded
    def on_save(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a checkpoint, and write the run's id into it."""
        log, step = self._opened(), state.global_step
        self._write_waiting()
        path = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
        saved = None
        if self._phases is not None:
            saved, self._phases.saved = self._phases.saved, None
        if saved is not None:
            path, seconds = saved
            log.log_checkpoint(step, path, is_best=path == state.best_model_checkpoint, seconds=seconds)
        else:
            is_best, since = path == state.best_model_checkpoint, "the last hook before it"
            times = wall_time_of(self._ended_at), time.time()
            log_save_since(log, step, path, times, since, is_best=is_best)
        self._put_state("save", args, state, kwargs, path)
        if state.is_world_process_zero:
            remember_run(path, log)
        self._ended_at = time.monotonic()

    # Internal: how a training begins.

    def _begin(self, args: Any, state: Any, parts: Mapping[str, Any]) -> None:
        """Record the training of this state, unless another callback does; each part fails on its own."""
        if any(one.state is state for one in _RECORDING):
            self.is_live = False
            if not self.is_by_name:
                self.guard.report(
                    "recording a training twice", OSError("the trainer already has another TelemetryCallback")
                )
            return
        name = args.run_name or Path(args.output_dir or "").name or "trainer"
        log = self._open(name, args.to_dict(), _run_to_resume(args, state))
        # The other ranks write nothing, but carry out rank 0's requests at the same step.
        self.is_live = log.is_live or find_rank().rank > 0
        if not self.is_live:
            return
        model = parts.get("model")
        self.state, self._needs_first_state = state, True
        _RECORDING.add(self)
        # The last to be registered is called first: before the logger is closed.
        atexit.unregister(_end_unreported)
        atexit.register(_end_unreported)
        state.stateful_callbacks[_RUN] = {"args": {}, "attributes": {"run_id": log.run_id}}
        trainer = None
        with self.guard.catch("finding the Trainer"):
            trainer = self._trainer_to_patch(args, log)
        if trainer is not None:
            with self.guard.catch("patching the Trainer's methods"):
                if self._wants_phases:
                    self._phases = TrainerPhases(trainer, log, self.leave)
                if log.is_live:
                    # Last, and stopped first: it patches methods that are already patched.
                    self._completions.start(trainer, log)
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
        self._begin_blocks(log, trainer, args, state, parts)

    def _trainer_to_patch(self, args: Any, log: TelemetryLogger) -> Any:
        """Return the calling trainer if its phases or, for one of TRL's, its completions are recorded."""
        is_of_trl = any(kind.__module__.partition(".")[0] == "trl" for kind in type(args).__mro__)
        recorder = internals(log).completions if is_of_trl else None
        collects = recorder is not None and recorder.options.collect
        return calling_trainer(self) if self._wants_phases or collects else None

    def _declare(self, log: TelemetryLogger, trainer: Any, args: Any, state: Any) -> None:
        for action, wanted in (("save", "should_save"), ("evaluate", "should_evaluate")):
            # Without a data set an evaluation would raise; with this strategy the Trainer requires one.
            has_data = args.eval_strategy != "no" or getattr(trainer, "eval_dataset", None) is not None
            if action == "save" or has_data:
                log.declare_action(action, functools.partial(self._requested.add, wanted))
        log.declare_action("stop")
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

    def _begin_blocks(
        self, log: TelemetryLogger, trainer: Any, args: Any, state: Any, parts: Mapping[str, Any]
    ) -> None:
        self._job, self._begin_part = job, _ = log.training, internals(log).begin_part
        samples = samples_per_step(trainer, args, state)
        loader: Any = parts.get("train_dataloader")
        data = getattr(loader, "dataset", None)
        left = len(data) % samples if has_length(data) else 0
        self._last_share = left / samples if left and not args.dataloader_drop_last else 1.0
        with self.guard.catch("configuring the training's phases"):
            job.configure(
                global_batch_size=samples,
                micro_batch_size=args.per_device_train_batch_size,
                world_size=args.world_size,
            )
        self._blocks = ExitStack()
        if not _is_within(log, APPLICATION):
            # A given logger may already be inside an application.
            self._blocks.enter_context(job.application())
        self._blocks.enter_context(
            job.training_loop(state.global_step, train_iterations_target=state.max_steps or None)
        )

    def _put_state(
        self, at: StateMoment, args: Any, state: Any, parts: Mapping[str, Any], path: str | None = None
    ) -> None:
        """Record the state of the training as it was saved or loaded, or that nothing was loaded."""
        loader: Any = parts.get("train_dataloader")
        position = None
        # A loader of a stream has the method, and no length.
        if has_length(loader) and state.epoch is not None:
            # The Trainer skips what its own count of steps says, unless it is asked not to.
            skips = at == "save" or not args.ignore_data_skip
            position = round(state.epoch % 1.0 * len(loader)) if skips else 0
        self._opened().state(
            at,
            state.global_step,
            checkpoint=path or _reached_checkpoint(args, state),
            model=parts.get("model"),
            optimizer=parts.get("optimizer"),
            scheduler=parts.get("lr_scheduler"),
            scaler=None if self._phases is None else self._phases.scaler,
            epoch=state.epoch,
            data_position=position,
            # The Trainer restores the generators before it makes an epoch's iterator, which uses them.
            has_generators=at != "load" or bool(position),
            world_size=args.world_size,
            batch_size=state.train_batch_size or args.train_batch_size,
            accumulation=args.gradient_accumulation_steps,
        )

    # Internal: steps and logs.

    def _drop_iteration(self) -> None:
        """End an iteration that was interrupted between its micro-batches, without counting it."""
        span, self._iteration = self._iteration, None
        if span is not None:
            span.stop()

    def _write_waiting(self) -> None:
        """Write a step whose log did not come."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._opened().log_step(waiting[0], **waiting[1])

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
        while self._requested:
            setattr(control, self._requested.pop(), True)
        if log.should_stop:
            control.should_training_stop = True
        return control

    def leave(self, error: BaseException | None) -> None:
        """End what is open, restore the Trainer's methods, and close the run if it was opened here; once."""
        log, self._offered = self.log, None
        if self.state is None or log is None:
            return
        self.state = None
        _RECORDING.discard(self)
        phases, self._phases = self._phases, None
        with self.guard.catch("restoring the Trainer's methods"):
            self._completions.stop()
            if phases is not None:
                phases.stop()
        with self.guard.catch("recording the last step"):
            self._write_waiting()
        with self.guard.catch("ending an iteration"):
            self._end_open_phases(error)
        with self.guard.catch("ending the training loop"):
            self._blocks.__exit__(*exit_arguments(error))
        self._blocks, self._job = ExitStack(), None
        with self.guard.catch("closing the run"):
            # One that was given stays open.
            is_given = self._given is not None
            self._close(error)
            self.is_live = is_given and log.is_live

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


_RECORDING: Final[set[TelemetryCallback]] = set()
"""The callbacks whose trainings have not reported their end."""


def _end_unreported() -> None:
    """Close the runs of trainings whose exception the script has caught; the logger closes those that it ended."""
    if getattr(sys, "last_exc", getattr(sys, "last_value", None)) is None:
        for callback in list(_RECORDING):
            with callback.guard.catch("closing the run of a training that did not report its end"):
                callback.leave(InterruptedError("the training ended without a report"))


def _run_to_resume(args: Any, state: Any) -> str | None:
    """Return the id of the run that a checkpoint belongs to; None for a new run."""
    kept = state.stateful_callbacks.get(_RUN)
    named = kept.get("attributes", {}).get("run_id") if isinstance(kept, dict) else None
    return named if isinstance(named, str) else run_id_in(_reached_checkpoint(args, state))


def _reached_checkpoint(args: Any, state: Any) -> str | None:
    """Return the checkpoint whose steps a training begins with; None if it begins with the first."""
    step = state.global_step
    return os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}") if step else None


def _is_within(log: TelemetryLogger, name: str) -> bool:
    """Return whether a span of that name is open here."""
    span: Any = internals(log).current_span()
    while span is not None and span.name != name:
        span = span.outer
    return span is not None


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
