"""The callback for Lightning's trainer: its hooks become phases, records and control requests of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.clock import wall_time_of
from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.lightning.checkpoints import SavedCheckpoints, requested_checkpoint_path
from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.lightning.logger import TelemetryLightningLogger
from toolkit.telemetry.integrations.lightning.phases import StepPhases
from toolkit.telemetry.integrations.lightning.records import (
    begin_evaluation,
    write_epoch,
    write_evaluation,
    write_remaining,
    write_start,
    write_step,
)
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.trainer_call import TrainerCall
from toolkit.telemetry.integrations.lightning.trainer_values import (
    hardware_fields,
    learning_rates,
    max_steps,
    metrics_so_far,
    put_state,
    training_fields,
)
from toolkit.telemetry.integrations.logger_setup import GivenLog, phases_in
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.timing.names import (
    DATALOADER_INIT,
    FORWARD,
    TESTING_ITERATION,
    TESTING_LOOP,
    TRAINING_LOOP,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
)

if TYPE_CHECKING:
    from toolkit.telemetry.logger.control.requests import Request

_Callback = class_of_lightning("Callback")


class TelemetryCallback(_Callback):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """A callback for Lightning's trainer that records it as a run and carries out control requests.

    Give it a logger, which you close yourself, or options (`log_dir="logs"`, …): then it opens a run when a training, a
    validation or a test begins, and closes it at the end. If the trainer has a `TelemetryLightningLogger` and only one
    of the two is given anything, both write the same run. With `phases` the parts of each step are recorded, too.

    Nothing it does stops a training, except invalid options when it is created.
    """

    def __init__(
        self,
        log: GivenLog | TelemetryLightningLogger = None,
        *,
        run_name: str | None = None,
        phases: bool | None = None,
        **options: Any,
    ) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        super().__init__()
        if isinstance(log, TelemetryLightningLogger):
            if options or run_name is not None:
                raise OptionsError(
                    "a callback with a TelemetryLightningLogger uses the logger's options: give them to the logger"
                )
            self._run = log.run
            self._wants_phases = phases_in(None, phases)[1]
        else:
            log, self._wants_phases = phases_in(log, phases)
            self._run = SharedRun(log, run_name=run_name, **options)
        self.is_live = False
        """Whether the hooks do anything."""
        self._call = TrainerCall()

    @property
    def telemetry(self) -> TelemetryLogger | None:
        """The logger of the run; None before there is one. (Lightning itself sets `log`.)"""
        return self._run.log

    @property
    def guard(self) -> Guard:
        """Counts failures of this callback."""
        return self._run.guard

    def on_request(self, trainer: Any, pl_module: Any, request: Request) -> None:
        """Carry out a request for an action or knob of your own, between two steps; override it in a subclass."""

    # Setup and teardown.

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Find the trainer's `TelemetryLightningLogger`, if it has one."""
        with self.guard.catch("setting up the callback"):
            if self._is_nested(trainer):
                self.is_live = False
                self._call = TrainerCall(trainer=trainer, is_ignored=True, outer=self._call)
                return
            if self._call.trainer is not None:
                # Another callback that raises while the trainer handles an exception keeps it from us.
                self._end(InterruptedError("the trainer's previous call ended without a report"))
            self._call = TrainerCall(trainer=trainer, began_at=time.monotonic())
            loggers = getattr(trainer, "loggers", ())
            other = next((one for one in loggers if isinstance(one, TelemetryLightningLogger)), None)
            if other is not None:
                self._share_run_with(other)
            elif self._run.was_given_nothing:
                # Lightning has removed all loggers, so the options of ours are unknown.
                self._call.is_ignored = bool(getattr(trainer, "fast_dev_run", False))

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run: a checkpoint has been read by now, so the run to resume is known."""
        with self.guard.catch("opening a run for Lightning"):
            # Some strategies read the checkpoint later; then the run is opened when the training begins.
            if not getattr(trainer.strategy, "restore_checkpoint_after_setup", False):
                self._run.begin_training(trainer)
                if self._open(pl_module):
                    if self._wants_phases:
                        self._call.parts = StepPhases(self._run, trainer)
                    self._run.phases.begin(DATALOADER_INIT, self._run.training.dataloader_init())

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
            if not self.is_live:
                self._run.begin_training(trainer)
            self._open(pl_module)
        self._begin_training(trainer, pl_module)

    @guarded
    def on_train_epoch_start(self, *_: Any) -> None:
        """Record the previous epoch, whose metrics are complete by now."""
        write_epoch(self._run, self._call)
        if self._call.checkpoints is not None:
            self._call.checkpoints.record()

    @guarded
    def on_train_batch_start(self, _: Any, __: Any, batch: Any, *___: Any) -> None:
        """Begin an iteration, unless gradients are being accumulated for one."""
        call = self._call
        call.sizes.add(batch)
        if call.checkpoints is not None and call.checkpoints.calls:
            call.checkpoints.record()
        if self._run.iteration is None:
            self._run.begin_iteration()
        if call.parts is not None:
            call.parts.begin(FORWARD)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        """Read the learning rate, which schedulers change later."""
        if not self._call.rates:
            self._call.rates = learning_rates(trainer.optimizers)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """If the optimizer made a step, end the iteration, log it and carry out requests."""
        call = self._call
        if call.parts is not None:
            call.parts.end()
        call.add_loss(outputs)
        step = trainer.global_step
        if step == call.step:
            return
        run = self._run
        run.end_iteration()
        try:
            write_step(run, call, pl_module, step)
        finally:
            call.step, call.is_first = step, False
            call.rates, call.loss, call.batches = {}, None, 0
        if run.knows_its_ranks:
            self._do_requests(trainer, pl_module)

    def on_save_checkpoint(self, *_: Any) -> None:
        """Note that a checkpoint is about to be saved; its file is found at the next hook."""
        if self.is_live and self._call.checkpoints is not None:
            with self.guard.catch("noting a checkpoint"):
                self._call.checkpoints.begin()

    @guarded
    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Remember that an epoch ended; its metrics are complete only after this."""
        call = self._call
        # A module may end an epoch by skipping a batch that has begun.
        if call.parts is not None:
            call.parts.end()
        self._run.drop_iteration()
        # Reading them now would make Lightning gather them from all ranks, in the middle of something else.
        call.epoch = trainer.current_epoch, trainer.global_step
        call.seen = metrics_so_far(trainer)

    @guarded
    def on_train_end(self, *_: Any) -> None:
        """Record the last epoch, and end the loop."""
        write_epoch(self._run, self._call)
        self._run.drop_iteration()
        self._run.phases.end(TRAINING_LOOP)

    @guarded
    def on_fit_end(self, *_: Any) -> None:
        """Record the checkpoints that were saved last or in the background."""
        if self._call.checkpoints is not None:
            self._call.checkpoints.record()

    # Validation and testing.

    @guarded
    def on_sanity_check_start(self, *_: Any) -> None:
        """Do not count Lightning's sanity check as data loader creation."""
        self._run.phases.end(DATALOADER_INIT)

    @guarded
    def on_sanity_check_end(self, *_: Any) -> None:
        """Continue data loader creation."""
        self._run.phases.begin(DATALOADER_INIT, self._run.training.dataloader_init())

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a validation, unless it is the sanity check."""
        if not trainer.sanity_checking:
            self._begin_evaluation(trainer, pl_module, VALIDATION_LOOP)

    @guarded
    def on_validation_batch_start(self, *_: Any) -> None:
        """Begin an iteration."""
        if self._run.phases.has(VALIDATION_LOOP):
            self._run.phases.begin(VALIDATION_ITERATION, self._run.training.validation_iteration())

    @guarded
    def on_validation_batch_end(self, *_: Any) -> None:
        """End the iteration."""
        self._run.phases.end(VALIDATION_ITERATION)

    @guarded
    def on_validation_end(self, *_: Any) -> None:
        """End the validation, and record its metrics."""
        self._end_evaluation(VALIDATION_ITERATION, VALIDATION_LOOP)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a test."""
        self._begin_evaluation(trainer, pl_module, TESTING_LOOP)

    @guarded
    def on_test_batch_start(self, *_: Any) -> None:
        """Begin an iteration."""
        self._run.phases.begin(TESTING_ITERATION, self._run.training.testing_iteration())

    @guarded
    def on_test_batch_end(self, *_: Any) -> None:
        """End the iteration."""
        self._run.phases.end(TESTING_ITERATION)

    @guarded
    def on_test_end(self, *_: Any) -> None:
        """End the test, and record its metrics."""
        self._end_evaluation(TESTING_ITERATION, TESTING_LOOP)

    # Checkpoints remember their run; a copy in another process starts with nothing open.

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the id of its run."""
        return {"run_id": self._run.run_id} if self._run.run_id is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the run of a checkpoint."""
        run_id = state_dict.get("run_id") if isinstance(state_dict, Mapping) else None
        # A logger that was given already has its run.
        if isinstance(run_id, str) and run_id and self._run.given is None:
            self._run.run_id = run_id

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_live": False, "_call": TrainerCall()}

    # Internal: beginning and ending.

    def _is_nested(self, trainer: Any) -> bool:
        """Return whether another trainer with this callback is running."""
        other = self._call.trainer
        return other is not None and other is not trainer and other.state.status == "running"

    def _share_run_with(self, other: TelemetryLightningLogger) -> None:
        """Share one run with the trainer's logger, unless both were given something."""
        if self._run.was_given_nothing:
            self._run = other.run
        elif other.run.was_given_nothing:
            other.run = self._run
        if other.run is self._run and self._run.options.enabled:
            self._run.has_callback = True

    def _open(self, pl_module: Any) -> bool:
        """Open the run and record the time since the trainer started; return whether it was opened now."""
        run = self._run
        if self._call.is_ignored:
            return False
        was_opened = run.open(type(pl_module).__name__)
        self.is_live = run.is_live
        if not was_opened:
            return False
        began = self._call.began_at and wall_time_of(self._call.began_at) * 1000.0
        run.begin_application(began)
        run.training.on_model_init_start(start_time_msec=began)
        run.training.on_model_init_end()
        return True

    @guarded
    def _begin_training(self, trainer: Any, pl_module: Any) -> None:
        run, call = self._run, self._call
        run.phases.end(DATALOADER_INIT)
        call.step = trainer.global_step
        with self.guard.catch("writing the start record"):
            write_start(run, trainer, pl_module, training_fields(trainer))
        if run.knows_its_ranks:
            run.opened.declare_action("save", partial(self._save_on_request, trainer))
            run.opened.declare_action("stop")
        run.begin_loop(call.step, max_steps(trainer))
        with self.guard.catch("reading the checkpoint callbacks"):
            call.checkpoints = SavedCheckpoints(trainer, run)
        if self._wants_phases:
            with self.guard.catch("patching Lightning's methods"):
                call.parts = call.parts or StepPhases(run, trainer)
                call.parts.patch(trainer, pl_module)
        with self.guard.catch("recording the state that a training begins with"):
            loaded = getattr(trainer, "ckpt_path", None)
            put_state(run.opened, trainer, "load" if loaded else "start", loaded or None)

    def _end(self, error: BaseException | None) -> None:
        """End everything that is open, remove the patches, and close the run if it was opened here."""
        run, call = self._run, self._call
        if call.outer is not None:
            self._call, self.is_live = call.outer, run.is_live
            return
        was_live, self.is_live, self._call = self.is_live, False, TrainerCall()
        if call.parts is not None:
            with self.guard.catch("restoring Lightning's methods"):
                call.parts.stop(error)
        if was_live:
            write_remaining(run, call, error)
        run.has_callback = False
        run.close(error)

    # Internal: requests and evaluations.

    def _do_requests(self, trainer: Any, pl_module: Any) -> None:
        log = self._run.log
        if log is None:
            return
        for request in log.take_requests():
            if request.name != "stop":
                with self.guard.catch(f"carrying out the request {request.name}"):
                    self.on_request(trainer, pl_module, request)
        if log.should_stop:
            trainer.should_stop = True

    def _save_on_request(self, trainer: Any) -> None:
        """Save a checkpoint between two steps; an exception becomes the answer to the request."""
        if not self._run.phases.has(TRAINING_LOOP):
            raise RuntimeError("the training is over")
        assert self._call.checkpoints is not None, "made when the training began"
        self._call.checkpoints.save(requested_checkpoint_path(trainer))

    def _begin_evaluation(self, trainer: Any, pl_module: Any, loop: str) -> None:
        with self.guard.catch("beginning an evaluation of Lightning's"):
            self._open(pl_module)
            if not self.is_live:
                return
            run, call = self._run, self._call
            if not run.has_start:
                with self.guard.catch("writing the start record"):
                    write_start(run, trainer, pl_module, hardware_fields(trainer))
            begin_evaluation(run, call)
            training = run.training
            phase = training.validation_loop() if loop == VALIDATION_LOOP else training.testing_loop()
            run.phases.begin(loop, phase)

    def _end_evaluation(self, iteration: str, loop: str) -> None:
        run, call = self._run, self._call
        if not run.phases.has(loop):
            return
        run.phases.end(iteration, loop)
        write_evaluation(run, call)
