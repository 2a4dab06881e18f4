"""The callback for Lightning's trainer: its hooks become phases, records and control requests of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.core.clock import wall_time_of
from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.lightning.checkpoints import SavedCheckpoints
from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.lightning.logger import TelemetryLightningLogger
from toolkit.telemetry.integrations.lightning.phases import StepPhases
from toolkit.telemetry.integrations.lightning.trainer_values import (
    hardware_fields,
    hyperparameters,
    learning_rates,
    max_steps,
    metrics_so_far,
    put_state,
    training_fields,
)
from toolkit.telemetry.integrations.logger_setup import GivenLog, share_of_last_step
from toolkit.telemetry.integrations.metric_names import as_number, split, with_known_names
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import module_fields
from toolkit.telemetry.runfolder.records import STEP
from toolkit.telemetry.timing.names import (
    DATALOADER_INIT,
    OPTIMIZER_UPDATE,
    TESTING_ITERATION,
    TESTING_LOOP,
    TRAINING_ITERATION,
    TRAINING_LOOP,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
)

_Callback = class_of_lightning("Callback")


class _Call:
    """What is known of one call of the trainer: a fit, a validation or a test."""

    def __init__(self, trainer: Any = None) -> None:
        self.trainer = trainer
        self.began_ms = wall_time_of(time.monotonic()) * 1000.0
        self.phases: StepPhases | None = None
        self.checkpoints: SavedCheckpoints | None = None
        self.has_start = False
        self.takes_requests = True
        """Whether requests are possible, which all ranks carry out at the same step."""
        self.evaluation: tuple[str, str] | None = None
        """The loop of the current evaluation, and its iteration."""
        self.step = 0
        """The latest completed step."""
        self.last_share = 1.0
        """The last step of an epoch relative to the others."""
        self.epoch = 0
        """The current one."""
        self.ended: tuple[int, int] | None = None
        """An epoch that ended and is not recorded yet, and its last step."""
        self.rates: dict[str, Any] = {}
        """Learning rates of the current step, before its schedulers change them."""
        self.losses: list[Any] = []
        """Of the batches of the current step; on a GPU they are added up there, without waiting for it."""
        self.seen: Mapping[str, Any] | None = None
        """The module's metrics when the last record was written; None before the first step's."""


class TelemetryCallback(_Callback):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """A callback for Lightning's trainer that records it as a run and carries out control requests.

    Give it a logger, which you close yourself, or options (`log_dir="logs"`, …): then it opens a run when a training, a
    validation or a test begins, and closes it at the end. If the trainer has a `TelemetryLightningLogger` and only one
    of the two is given anything, both write the same run. With `phases` the parts of each step are recorded, too.

    Nothing it does stops a training, except invalid options when it is created.
    """

    def __init__(
        self, log: GivenLog = None, *, run_name: str | None = None, phases: bool | None = None, **options: Any
    ) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        super().__init__()
        self._run = FrameworkRun(log, run_name=run_name, phases=phases, **options)
        self._is_plain = log is None and run_name is None and not options
        self.is_live = False
        """Whether the hooks do anything."""
        self._logger: TelemetryLightningLogger | None = None
        self._call = _Call()

    def __getstate__(self) -> dict[str, Any]:
        # A copy, also in another process, starts with nothing open.
        return {**self.__dict__, "is_live": False, "_logger": None, "_call": _Call()}

    @property
    def telemetry(self) -> TelemetryLogger | None:
        """The logger of the run; None before there is one. (Lightning itself sets `log`.)"""
        return self._run.log

    @property
    def guard(self) -> Guard:
        """Counts failures of this callback."""
        return self._run.guard

    # Setup and teardown.

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Find the trainer's `TelemetryLightningLogger`, if it has one."""
        with self.guard.catch("setting up the callback"):
            if self._call.trainer is not None:
                # Another callback that raises while the trainer handles an exception keeps it from us.
                self._end(InterruptedError("the trainer's previous call ended without a report"))
            self._call = _Call(trainer)
            loggers = getattr(trainer, "loggers", ())
            other = next((one for one in loggers if isinstance(one, TelemetryLightningLogger)), None)
            if other is not None and self._is_plain:
                other.run.wants_phases |= self._run.wants_phases
                self._run = other.run
            elif other is not None:
                other.run = self._run
            if other is not None and self._run.options.enabled:
                self._logger, other.callback = other, self

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run: a checkpoint has been read by now, so the run to resume is known."""
        with self.guard.catch("opening a run for Lightning"):
            # Some strategies read the checkpoint later; then the run is opened when the training begins.
            if not getattr(trainer.strategy, "restore_checkpoint_after_setup", False):
                self._open_for_training(trainer, pl_module)
                if self.is_live:
                    self._run.begin_phase(DATALOADER_INIT)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Close the run."""
        self._end(None)

    def on_exception(self, _: Any, __: Any, exception: BaseException) -> None:
        """Close the run as failed or interrupted; the trainer raises the exception."""
        self._end(exception)

    # Training.

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Write the start record, and begin the loop."""
        with self.guard.catch("opening a run for Lightning"):
            self._open_for_training(trainer, pl_module)
        self._begin_training(trainer, pl_module)

    @guarded
    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Record the previous epoch, whose metrics are complete by now."""
        self._write_epoch()
        self._call.epoch = trainer.current_epoch
        if self._call.checkpoints is not None:
            self._call.checkpoints.record()

    @guarded
    def on_train_batch_start(self, *_: Any) -> None:
        """Begin an iteration, unless gradients are being accumulated for one."""
        checkpoints = self._call.checkpoints
        if checkpoints is not None and checkpoints.calls:
            checkpoints.record()
        if self._run.iteration is None:
            self._run.iteration = self._run.start_part(TRAINING_ITERATION)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        """Read the learning rate, which schedulers change later."""
        if not self._call.rates:
            self._call.rates = learning_rates(trainer.optimizers)
        if self._call.phases is not None:
            self._run.begin_part(OPTIMIZER_UPDATE)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """If the optimizer made a step, end the iteration, log it and carry out requests."""
        run, call, step = self._run, self._call, trainer.global_step
        # Lightning itself passes a dict; checking for other mappings costs more than the rest of this.
        is_mapping = type(outputs) is dict or isinstance(outputs, Mapping)
        loss = as_number(outputs.get("loss") if is_mapping else outputs)
        if loss is not None:
            call.losses.append(loss)
        if step == call.step:
            return
        iteration, run.iteration = run.iteration, None
        if iteration is not None:
            run.count_iteration(iteration)
        self._write_step(trainer, pl_module, step)

    def on_save_checkpoint(self, *_: Any) -> None:
        """Note that a checkpoint is about to be saved; its file is found at the next hook."""
        if self.is_live and self._call.checkpoints is not None:
            with self.guard.catch("noting a checkpoint"):
                self._call.checkpoints.begin()

    @guarded
    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Remember that an epoch ended."""
        # A module may end an epoch by skipping a batch that has begun.
        self._run.drop_iteration()
        # Its metrics are complete later: reading them now would make Lightning gather them from all ranks.
        self._call.ended = trainer.current_epoch, trainer.global_step
        self._call.seen = metrics_so_far(trainer)

    @guarded
    def on_train_end(self, *_: Any) -> None:
        """Record the last epoch, and end the loop."""
        self._write_epoch()
        self._run.drop_iteration()
        self._run.end_phases(TRAINING_LOOP)

    @guarded
    def on_fit_end(self, *_: Any) -> None:
        """Record the checkpoints that were saved last or in the background."""
        if self._call.checkpoints is not None:
            self._call.checkpoints.record()

    # Validation and testing.

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a validation, unless it is the sanity check."""
        if not trainer.sanity_checking:
            self._begin_evaluation(trainer, pl_module, VALIDATION_LOOP, VALIDATION_ITERATION)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a test."""
        self._begin_evaluation(trainer, pl_module, TESTING_LOOP, TESTING_ITERATION)

    @guarded
    def on_validation_batch_start(self, *_: Any) -> None:
        """Begin an iteration of a validation or a test."""
        if self._call.evaluation is not None:
            self._run.begin_phase(self._call.evaluation[1])

    @guarded
    def on_validation_batch_end(self, *_: Any) -> None:
        """End the iteration."""
        self._run.end_phases(VALIDATION_ITERATION, TESTING_ITERATION)

    @guarded
    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """End the validation or test, and record its metrics."""
        evaluation, self._call.evaluation = self._call.evaluation, None
        if evaluation is None:
            return
        self._run.end_phases(*reversed(evaluation))
        metrics = self._new_metrics(metrics_so_far(trainer))
        if metrics:
            self._run.opened.log_eval(trainer.global_step, metrics)

    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

    # Checkpoints remember their run.

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the id of its run."""
        return {"run_id": self._run.run_id} if self._run.run_id is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the run of a checkpoint."""
        run_id = state_dict.get("run_id") if isinstance(state_dict, Mapping) else None
        # A logger that was given already has its run.
        if isinstance(run_id, str) and run_id and self._run.given is None:
            self._run.run_id = run_id

    # Internal: beginning and ending.

    def _open_for_training(self, trainer: Any, pl_module: Any) -> None:
        """Open the run of a fit; one that continues no earlier one gets a run of its own."""
        run = self._run
        resumes = trainer.global_step > 0 or trainer.ckpt_path is not None
        if not run.is_live and run.given is None and not resumes:
            run.run_id = None
        self._open(trainer, pl_module)

    def _open(self, trainer: Any, pl_module: Any) -> None:
        """Open the run if it is not open, and record the time since the trainer started."""
        run, began_ms = self._run, self._call.began_ms
        # A quick run is a test of the code; Lightning removes its loggers as well.
        if not run.options.enabled or getattr(trainer, "fast_dev_run", False):
            return
        was_live = run.is_live
        log = run.opened if was_live else run.open_run(type(pl_module).__name__, run_id=run.run_id)
        if run.given is not None and trainer.world_size > 1:
            # It may be older than the other processes: each then has one that believes it is alone. If one stopped
            # on a request, the others would wait for it.
            run.is_live, self._call.takes_requests = log.is_live and trainer.is_global_zero, False
        self.is_live = run.is_live
        if self.is_live and not was_live:
            run.begin_application(began_ms)
            log.training.on_model_init_start(start_time_msec=began_ms)
            log.training.on_model_init_end()
            if run.wants_phases and trainer.training:
                self._call.phases = StepPhases(run, trainer)

    @guarded
    def _begin_training(self, trainer: Any, pl_module: Any) -> None:
        run, call = self._run, self._call
        run.end_phases(DATALOADER_INIT)
        call.step = trainer.global_step
        training = training_fields(trainer)
        data = getattr(trainer.train_dataloader, "dataset", None)
        if not getattr(trainer.train_dataloader, "drop_last", False):
            call.last_share = share_of_last_step(data, training["effective_batch_size"])
        self._write_start(trainer, pl_module, training)
        if call.takes_requests:
            run.opened.declare_action("save", self._save_on_request)
            run.opened.declare_action("stop")
        run.begin_loop(call.step, max_steps(trainer))
        with self.guard.catch("reading the checkpoint callbacks"):
            call.checkpoints = SavedCheckpoints(trainer, run)
        with self.guard.catch("recording the state that a training begins with"):
            loaded = getattr(trainer, "ckpt_path", None)
            put_state(run.opened, trainer, "load" if loaded else "start", loaded or None)

    def _write_start(self, trainer: Any, pl_module: Any, training: Mapping[str, Any]) -> None:
        """Write what is trained or evaluated, and how."""
        run, self._call.has_start = self._run, True
        with self.guard.catch("writing the start record"):
            config = {} if self._logger is None else self._logger.config
            config = (
                config | hyperparameters(getattr(trainer, "datamodule", None)) | hyperparameters(pl_module)
            )
            run.opened.log_start(config=config or None, model=module_fields(pl_module), training=training)
            known = {"global_batch_size": "effective_batch_size", "micro_batch_size": "batch_size"}
            sizes = {ours: training[theirs] for ours, theirs in known.items() if training.get(theirs)}
            if sizes and run.given is None:
                run.opened.training.configure(**sizes)

    def _end(self, error: BaseException | None) -> None:
        """End everything that is open, remove the patches, and close the run if it was opened here."""
        run, call, guard = self._run, self._call, self.guard
        was_live, self.is_live = self.is_live, False
        if call.phases is not None:
            with guard.catch("restoring Lightning's methods"):
                call.phases.stop()
        if was_live:
            # What no further hook would write, for example because of an exception.
            with guard.catch("recording the last epoch"):
                self._write_epoch()
            with guard.catch("recording the last checkpoints"):
                if call.checkpoints is not None:
                    call.checkpoints.record(is_over=error is None)
        self._call = _Call()
        if self._logger is not None:
            self._logger.callback, self._logger = None, None
        run.end_run(error, "signal" if type(error).__name__ == "SIGTERMException" else None)

    # Internal: records.

    def _write_step(self, trainer: Any, pl_module: Any, step: int) -> None:
        """Write the step that was just completed, and begin the next one."""
        call, log = self._call, self._run.log
        assert log is not None, "only a run that was opened gets here"
        losses, rates, before, every = call.losses, call.rates, call.step, log.log_every
        call.step, call.rates, call.losses = step, {}, []
        fields: dict[str, Any] = {}
        if call.seen is None or step // every > before // every:
            # Lightning collects all metrics, which is slow: only for a step that is recorded.
            fields = with_known_names(self._new_metrics(dict(trainer.logged_metrics)))
        if losses:
            # Lightning has divided each by that number, of which the last step of an epoch may have fewer.
            divided_by = trainer.accumulate_grad_batches
            is_divided = divided_by > 1 and pl_module.automatic_optimization
            share = (divided_by if is_divided else 1) / len(losses)
            loss = losses[0] if len(losses) == 1 else sum(losses)
            fields["train_loss"] = loss if share == 1.0 else loss * share
        fields |= rates or learning_rates(trainer.optimizers)
        fields["epoch"] = call.epoch
        if call.last_share < 1.0 and trainer.is_last_batch:
            internals(log).count_samples(call.last_share)
        log.log_step(step, **fields)
        if call.takes_requests and log.should_stop:
            trainer.should_stop = True

    def _write_epoch(self) -> None:
        """Write the epoch that ended, once, with the metrics logged since."""
        ended, self._call.ended = self._call.ended, None
        if ended is not None:
            metrics = self._new_metrics(metrics_so_far(self._call.trainer))
            metrics.pop("epoch", None)
            self._run.opened.log_epoch(ended[0], metrics, global_step=ended[1])

    def _new_metrics(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """Return those logged since the last record: Lightning keeps the object of an unchanged one."""
        before, self._call.seen = self._call.seen or {}, now
        return {
            str(name): value
            for name, value in now.items()
            if before.get(name) is not value and name != "global_step"
        }

    @guarded
    def write_passed(self, metrics: Mapping[str, Any]) -> None:
        """Write what the script passed to the logger; what Lightning passes is recorded from the trainer."""
        trainer = self._call.trainer
        own = {"epoch", "global_step", *metrics_so_far(trainer)}
        of_step, of_evaluation = split({name: metrics[name] for name in metrics if name not in own})
        if of_step:
            log, fields = self._run.opened, with_known_names(of_step)
            internals(log).put(STEP, {"global_step": trainer.global_step, **fields})
        if of_evaluation:
            self._run.opened.log_eval(trainer.global_step, of_evaluation)

    def _save_on_request(self) -> None:
        """Save a checkpoint between two steps; an exception becomes the answer to the request."""
        if self._call.checkpoints is None or not self._run.has_phase(TRAINING_LOOP):
            raise RuntimeError("the training is over")
        self._call.checkpoints.save()

    def _begin_evaluation(self, trainer: Any, pl_module: Any, loop: str, iteration: str) -> None:
        with self.guard.catch("beginning an evaluation of Lightning's"):
            self._open(trainer, pl_module)
            if not self.is_live:
                return
            if not self._call.has_start:
                self._write_start(trainer, pl_module, hardware_fields(trainer))
            self._call.seen = metrics_so_far(trainer)
            self._call.evaluation = loop, iteration
            self._run.begin_phase(loop)


TelemetryLightningLogger.callback_class = TelemetryCallback
