"""The callback for `Trainer`: its hooks write a run, and pass control requests back to the Trainer."""

# Every hook of a callback has the arguments of all of them.
# ruff: noqa: ARG002

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun, unreported
from toolkit.telemetry.integrations.logger_setup import (
    GivenLog,
    log_save_since,
    remember_run,
    run_id_in,
    share_of_last_step,
)
from toolkit.telemetry.integrations.metric_names import with_known_names
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
from toolkit.telemetry.runfolder.records import STEP, StateTrigger
from toolkit.telemetry.timing.names import OPTIMIZER_UPDATE, TRAINING_ITERATION

_INTERVALS: Final = ("logging_steps", "eval_steps", "save_steps")
_IN_EVERY_LOG: Final = frozenset({"epoch", "num_input_tokens_seen", "step"})
"""What the Trainer adds to each log."""
_EVALUATION_TIMES: Final = ("_runtime", "_samples_per_second")
"""Endings of the times in an evaluation's log, whatever its prefix; a step's log may have `train_runtime`."""
_RUN: Final = "telemetry_run"
"""Where the Trainer's own state, which each checkpoint has, names the run."""


class TelemetryCallback(FrameworkRun, TrainerCallback):
    """Records a training by `Trainer` as a run, and carries out control requests.

    Give it a logger, which you close yourself, or options (`log_dir=…`, `log_every=…`, or a `telemetry:` block as a
    mapping): then it opens a run with each training and closes it at the end. That run gets the `run_name` of the
    callback or of the `TrainingArguments`, else the name of the output folder. With `phases` it also records what the
    Trainer does not tell its callbacks, by patching methods of the trainer.

    Nothing it does raises into the Trainer, except invalid options when it is created.
    """

    reports_failures = False

    def __init__(
        self, log: GivenLog = None, *, run_name: str | None = None, phases: bool | None = None, **options: Any
    ) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError for invalid options or any with a logger."""
        FrameworkRun.__init__(self, log, run_name=run_name, phases=phases, **options)
        # With a logger that was given, the hooks between two trainings write, too.
        self.is_live = self.log is not None and self.log.is_live
        self.is_by_name = False
        """Whether it was made for `report_to`: one that the script made itself then records the training."""
        self._offered: tuple[Any, Any, Mapping[str, Any]] | None = None
        """A training that is recorded if no other callback does."""
        self.state: Any = None
        """The Trainer's state of the training that is recorded."""
        self._parts: TrainerPhases | None = None
        self._completions: TrainerCompletions | None = None
        self._latest: dict[str, Any] = {}
        """The fields of the latest step."""
        self._waits_for_log = False
        """Whether that step is written together with the Trainer's own log of it, which comes next."""
        self._learning_rate: Any = None
        self._tokens = 0
        self._last_share = 1.0
        """The last step of an epoch relative to the others."""
        self._epoch_began = 0.0
        self._hook_ended = 0.0
        """When the last hook before a checkpoint was called."""
        self._requested: set[str] = set()
        """What the Trainer's control is set to at the end of this step."""
        self._needs_first_state = False

    # The training as a whole.

    def on_train_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run and write the start record."""
        if not self.options.enabled:
            return
        with self.guard.catch("beginning to record a Trainer"):
            self.end_run(InterruptedError("another training began before this one reported its end"))
            if self.is_by_name:
                # A callback that the script made is called after this one.
                self._offered = args, state, kwargs
            else:
                self._begin(args, state, kwargs)

    @guarded
    def on_train_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the run if it was opened here: finished, or stopped on request."""
        self.end_run(None)

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
        is_cut_short = control.should_epoch_stop or control.should_training_stop
        # Data of unknown length may end anywhere in the Trainer's epoch.
        if state.epoch and (not is_cut_short or float(state.epoch).is_integer()):
            seconds = time.monotonic() - self._epoch_began
            self.opened.log_epoch(math.ceil(state.epoch), global_step=state.global_step, seconds=seconds)
        return self._apply_requests(control)

    # Steps.

    @guarded
    def on_step_begin(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin an iteration, whose micro-batches are all loaded."""
        if self.iteration is not None:
            self.drop_iteration()
        if self._parts is not None:
            self._parts.begin_step()
        if self._needs_first_state:
            self._needs_first_state = False
            self._put_state("load" if state.global_step else "start", args, state, kwargs)
        # Before the schedule changes it.
        groups = getattr(kwargs.get("optimizer"), "param_groups", None)
        self._learning_rate = groups[0].get("lr") if groups else None
        self.iteration = self.start_part(TRAINING_ITERATION)

    def on_pre_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the optimizer step."""
        if self._parts is not None:
            self.begin_part(OPTIMIZER_UPDATE)

    def on_optimizer_step(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the optimizer step."""
        if self._parts is not None:
            self.end_phases(OPTIMIZER_UPDATE)

    @guarded
    def on_step_end(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record a step, and apply requests."""
        log, iteration, epoch = self.log, self.iteration, state.epoch
        assert log is not None, "only a run that was opened gets here"
        self._latest = latest = {"global_step": state.global_step, "lr": self._learning_rate, "epoch": epoch}
        seen = state.num_input_tokens_seen
        if seen:
            latest["num_input_tokens_seen"] = seen
            if iteration is not None:
                iteration.set(tokens=int(seen - self._tokens))
            self._tokens = seen
        self.iteration = None
        if iteration is not None:
            self.count_iteration(iteration)
        self._hook_ended = time.time()
        if self._parts is not None:
            latest |= self._parts.end_step()
        if self._last_share < 1.0 and epoch and float(epoch).is_integer():
            internals(log).count_samples(self._last_share)
        self._waits_for_log = control.should_log
        if not control.should_log:
            log.log_step(**latest)
        return self._apply_requests(control) if self._requested or log.should_stop else control

    @guarded
    def on_log(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Record what the Trainer logs: metrics of a step or an evaluation, or the summary at the end."""
        log, step, logs = self.opened, state.global_step, kwargs.get("logs") or {}
        numbers = {str(name): value for name, value in logs.items() if _is_number(value)}
        # The Trainer's own printing removes `total_flos` from the log, but not from the history.
        is_summary = bool(state.log_history) and "total_flos" in state.log_history[-1]
        if "loss" in logs:
            self._write_log(log, step, numbers)
        elif is_summary:
            log.log_event("train_summary", global_step=step, summary=numbers)
        elif _is_evaluation(logs):
            log.log_eval(step, numbers)
        elif not _IN_EVERY_LOG.issuperset(numbers):
            # The script's own; a step that waits for the Trainer's log still does.
            internals(log).put(STEP, {"global_step": step, **_with_rate(numbers)})
        return self._apply_requests(control)

    # Between the steps.

    @guarded
    def on_evaluate(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time of an evaluation, which the Trainer has logged."""
        metrics: Mapping[str, Any] = kwargs.get("metrics") or {}
        took = next((value for name, value in metrics.items() if name.endswith("_runtime")), None)
        if self._parts is None and isinstance(took, Real):
            training = self.opened.training
            training.on_validation_start(start_time_msec=1000.0 * (time.time() - float(took)))
            training.on_validation_end()
        self._hook_ended = time.time()

    @guarded
    def on_save(self, /, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a checkpoint, and write the run's id into it."""
        log, step = self.opened, state.global_step
        path = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
        exact = None if self._parts is None else self._parts.save_began
        began, hook = (exact, None) if exact else (self._hook_ended, "the last hook before it")
        is_best = path == state.best_model_checkpoint
        log_save_since(log, step, path, (began, time.time()), hook, is_best=is_best)
        self._put_state("save", args, state, kwargs, path)
        if state.is_world_process_zero:
            remember_run(path, log)
        self._hook_ended = time.time()

    # Internal: how a training begins.

    def describe(self, args: Any) -> dict[str, Any]:
        """Return the fields of the start record that say what was configured."""
        return {"config": args.to_dict()}

    def _begin(self, args: Any, state: Any, given: Mapping[str, Any]) -> None:
        """Record the training of this state, unless another callback does; each part fails on its own."""
        if any(getattr(one, "state", None) is state for one in unreported):
            self.is_live = False
            if not self.is_by_name:
                error = OSError("the trainer already has another TelemetryCallback")
                self.guard.report("recording a training twice", error)
            return
        name = args.run_name or Path(args.output_dir or "").name or "trainer"
        log = self.open_run(name, args.to_dict(), _run_to_resume(args, state))
        if not self.is_live:
            return
        self.state, self._needs_first_state = state, True
        state.stateful_callbacks[_RUN] = {"args": {}, "attributes": {"run_id": log.run_id}}
        self.begin_application()
        trainer = None
        with self.guard.catch("patching the Trainer's methods"):
            trainer = self._patched_trainer(args, log)
        samples = samples_per_step(args, state)
        with self.guard.catch("writing the start record"):
            model = given.get("model")
            log.log_start(
                **self.describe(args),
                model=model_fields(model),
                training=training_fields(args, state, model)
                | {"trainer": trainer and type(trainer).__name__},
                lora=lora_fields(model),
                resumed_from_step=state.global_step or None,
            )
        with self.guard.catch("declaring actions and knobs"):
            self._declare(log, trainer, args, state)
        with self.guard.catch("configuring the training's phases"):
            log.training.configure(
                global_batch_size=samples,
                micro_batch_size=args.per_device_train_batch_size,
                world_size=args.world_size,
            )
        self._tokens = state.num_input_tokens_seen
        self._latest, self._waits_for_log, self._hook_ended = {}, False, time.time()
        data = getattr(given.get("train_dataloader"), "dataset", None)
        self._last_share = 1.0 if args.dataloader_drop_last else share_of_last_step(data, samples)
        self.begin_loop(state.global_step, state.max_steps or None)

    def _patched_trainer(self, args: Any, log: TelemetryLogger) -> Any:
        """Return the calling trainer if its phases or, for one of TRL's, its completions are recorded."""
        is_of_trl = any(kind.__module__.partition(".")[0] == "trl" for kind in type(args).__mro__)
        recorder = internals(log).completions if is_of_trl else None
        collects = recorder is not None and recorder.options.collect
        trainer = calling_trainer(self) if self.wants_phases or collects else None
        if trainer is not None and self.wants_phases:
            self._parts = TrainerPhases(trainer, log, self.end_run)
        if trainer is not None and log.is_live:
            # Last, and stopped first: it patches methods that are already patched.
            self._completions = TrainerCompletions.of(trainer, log)
        return trainer

    def _declare(self, log: TelemetryLogger, trainer: Any, args: Any, state: Any) -> None:
        log.declare_action("stop")
        log.declare_action("save", functools.partial(self._requested.add, "should_save"))
        # Without a data set an evaluation would raise; with this strategy the Trainer requires one.
        if args.eval_strategy != "no" or getattr(trainer, "eval_dataset", None) is not None:
            log.declare_action("evaluate", functools.partial(self._requested.add, "should_evaluate"))
        for name in _INTERVALS:
            value, change = getattr(state, name), functools.partial(setattr, state, name)
            is_used = getattr(args, name.replace("_steps", "_strategy")) == "steps"
            if is_used and isinstance(value, int) and value > 0:
                log.declare_knob(name, int, low=1, high=1_000_000, value=value, callback=change)

    def _put_state(
        self, at: StateTrigger, args: Any, state: Any, given: Mapping[str, Any], path: str | None = None
    ) -> None:
        """Record the state of the training as it was saved or loaded, or that nothing was loaded."""
        loader: Any = given.get("train_dataloader")
        position = None
        # A loader of a stream has the method, and no length.
        if has_length(loader) and state.epoch is not None:
            # The Trainer skips what its own count of steps says, unless it is asked not to.
            skips = at == "save" or not args.ignore_data_skip
            position = round(state.epoch % 1.0 * len(loader)) if skips else 0
        self.opened.state(
            at,
            state.global_step,
            checkpoint=path or _reached_checkpoint(args, state),
            model=given.get("model"),
            optimizer=given.get("optimizer"),
            scheduler=given.get("lr_scheduler"),
            scaler=None if self._parts is None else self._parts.scaler,
            epoch=state.epoch,
            data_position=position,
            # The Trainer restores the generators before it makes an epoch's iterator, which uses them.
            has_generators=at != "load" or bool(position),
            world_size=args.world_size,
            batch_size=state.train_batch_size or args.train_batch_size,
            accumulation=args.gradient_accumulation_steps,
        )

    # Internal: steps and logs.

    def _write_log(self, log: TelemetryLogger, step: int, logged: dict[str, Any]) -> None:
        """Write what the Trainer logged for a step, together with the step's own record if that waits for it."""
        # The loss of the step itself is better than the Trainer's mean since its last log.
        seen = {name: value for name, value in self._latest.items() if value is not None}
        fields = {**seen, **with_known_names(_with_rate(logged)), "global_step": step}
        fields["train_loss"] = seen.get("train_loss", logged.get("loss"))
        # The Trainer's own logs are kept, even if `log_every` merges the steps around them.
        if self._waits_for_log:
            self._waits_for_log = False
            log.write_step(**fields)
        else:
            internals(log).put(STEP, fields)

    def _apply_requests(self, control: Any) -> Any:
        """Pass requests on to the Trainer."""
        while self._requested:
            setattr(control, self._requested.pop(), True)
        if self.opened.should_stop:
            control.should_training_stop = True
        return control

    def end_run(self, error: BaseException | None, status: str | None = None) -> None:
        """End what is open, restore the Trainer's methods, and close the run if it was opened here; once."""
        self._offered = None
        if self.state is None:
            return
        self.state = None
        patched, self._completions, self._parts = (self._completions, self._parts), None, None
        with self.guard.catch("restoring the Trainer's methods"):
            for one in patched:
                if one is not None:
                    one.stop()
        with self.guard.catch("recording the last step"):
            if self._waits_for_log:
                self.opened.log_step(**self._latest)
        super().end_run(error, status)
        # One that was given stays open.
        self.is_live = self.given is not None and self.given.is_live


def _run_to_resume(args: Any, state: Any) -> str | None:
    """Return the id of the run that a checkpoint belongs to; None for a new run."""
    kept = state.stateful_callbacks.get(_RUN)
    named = kept.get("attributes", {}).get("run_id") if isinstance(kept, dict) else None
    return named if isinstance(named, str) else run_id_in(_reached_checkpoint(args, state))


def _reached_checkpoint(args: Any, state: Any) -> str | None:
    """Return the checkpoint whose steps a training begins with; None if it begins with the first."""
    step = state.global_step
    return os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}") if step else None


def _is_evaluation(logs: Mapping[str, Any]) -> bool:
    """Return whether a log without a loss is an evaluation's, with any prefix."""
    own = [name for name in logs if name not in _IN_EVERY_LOG]
    return any(name.endswith(_EVALUATION_TIMES) and name != "train_runtime" for name in own) or (
        bool(own) and all(name.startswith("eval_") for name in own)
    )


def _with_rate(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was logged, with the learning rate under our name for it."""
    return {
        "lr" if name == "learning_rate" else name: logged[name] for name in logged if name != "global_step"
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) or (hasattr(value, "numel") and bool(value.numel() == 1))
