"""The callback for Lightning's trainer: its hooks become phases, records and control requests of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.lightning.checkpoints import SavedCheckpoints
from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.lightning.logger import TelemetryLightningLogger
from toolkit.telemetry.integrations.lightning.phases import StepPhases
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.trainer_call import TrainerCall
from toolkit.telemetry.integrations.lightning.trainer_values import (
    hardware_fields,
    learning_rates,
    max_steps,
    put_state,
    training_fields,
)
from toolkit.telemetry.integrations.logger_setup import GivenLog
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
            self._run.wants_phases |= bool(phases)
        else:
            self._run = SharedRun(log, run_name=run_name, phases=phases, **options)
        self.is_live = False
        """Whether the hooks do anything."""
        self._call = TrainerCall(self._run)

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
            if self._call.trainer is not None:
                # Another callback that raises while the trainer handles an exception keeps it from us.
                self._end(InterruptedError("the trainer's previous call ended without a report"))
            loggers = getattr(trainer, "loggers", ())
            other = next((one for one in loggers if isinstance(one, TelemetryLightningLogger)), None)
            if other is not None:
                self._share_run_with(other)
            # A quick run has no loggers any more, so the options of ours are unknown.
            is_quick = bool(getattr(trainer, "fast_dev_run", False))
            is_ignored = is_quick and other is None and self._run.was_given_nothing
            self._call = TrainerCall(self._run, trainer, is_ignored=is_ignored)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run: a checkpoint has been read by now, so the run to resume is known."""
        with self.guard.catch("opening a run for Lightning"):
            # Some strategies read the checkpoint later; then the run is opened when the training begins.
            if not getattr(trainer.strategy, "restore_checkpoint_after_setup", False):
                self._run.begin_training(trainer)
                if self._open(pl_module):
                    if self._run.wants_phases:
                        self._call.parts = StepPhases(self._run, trainer)
                    self._run.phases.begin(DATALOADER_INIT, self._run.opened.training.dataloader_init())

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
        self._call.write_epoch()
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
        call.write_step(pl_module, step)
        if run.knows_its_ranks:
            self._do_requests(trainer, pl_module)

    def on_save_checkpoint(self, *_: Any) -> None:
        """Note that a checkpoint is about to be saved; its file is found at the next hook."""
        if self.is_live and self._call.checkpoints is not None:
            with self.guard.catch("noting a checkpoint"):
                self._call.checkpoints.begin()

    @guarded
    def on_train_epoch_end(self, *_: Any) -> None:
        """Remember that an epoch ended."""
        # A module may end an epoch by skipping a batch that has begun.
        if self._call.parts is not None:
            self._call.parts.end()
        self._run.drop_iteration()
        self._call.end_epoch()

    @guarded
    def on_train_end(self, *_: Any) -> None:
        """Record the last epoch, and end the loop."""
        self._call.write_epoch()
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
        self._run.phases.begin(DATALOADER_INIT, self._run.opened.training.dataloader_init())

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
            iteration = self._call.evaluation[1]
            # The phases have the names of their methods.
            self._run.phases.begin(iteration, getattr(self._run.opened.training, iteration)())

    @guarded
    def on_validation_batch_end(self, *_: Any) -> None:
        """End the iteration."""
        self._run.phases.end(VALIDATION_ITERATION, TESTING_ITERATION)

    @guarded
    def on_validation_end(self, *_: Any) -> None:
        """End the validation or test, and record its metrics."""
        evaluation, self._call.evaluation = self._call.evaluation, None
        if evaluation is not None:
            self._run.phases.end(*reversed(evaluation))
            self._call.write_evaluation()

    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

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
        return {**self.__dict__, "is_live": False, "_call": TrainerCall(self._run)}

    # Internal: beginning and ending.

    def _share_run_with(self, other: TelemetryLightningLogger) -> None:
        """Share one run with the trainer's logger, unless both were given something."""
        if self._run.was_given_nothing:
            other.run.wants_phases |= self._run.wants_phases
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
        run.begin_application(self._call.began_ms)
        run.opened.training.on_model_init_start(start_time_msec=self._call.began_ms)
        run.opened.training.on_model_init_end()
        return True

    @guarded
    def _begin_training(self, trainer: Any, pl_module: Any) -> None:
        run, call = self._run, self._call
        run.phases.end(DATALOADER_INIT)
        call.step = trainer.global_step
        with self.guard.catch("writing the start record"):
            call.write_start(pl_module, training_fields(trainer))
        if run.knows_its_ranks:
            run.opened.declare_action("save", self._save_on_request)
            run.opened.declare_action("stop")
        run.begin_loop(call.step, max_steps(trainer))
        with self.guard.catch("reading the checkpoint callbacks"):
            call.checkpoints = SavedCheckpoints(trainer, run)
        if run.wants_phases:
            with self.guard.catch("patching Lightning's methods"):
                call.parts = call.parts or StepPhases(run, trainer)
                call.parts.patch(trainer, pl_module)
        with self.guard.catch("recording the state that a training begins with"):
            loaded = getattr(trainer, "ckpt_path", None)
            put_state(run.opened, trainer, "load" if loaded else "start", loaded or None)

    def _end(self, error: BaseException | None) -> None:
        """End everything that is open, remove the patches, and close the run if it was opened here."""
        run, call = self._run, self._call
        was_live, self.is_live, self._call = self.is_live, False, TrainerCall(run)
        if call.parts is not None:
            with self.guard.catch("restoring Lightning's methods"):
                call.parts.stop(error)
        if was_live:
            call.write_remaining(error)
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

    def _save_on_request(self) -> None:
        """Save a checkpoint between two steps; an exception becomes the answer to the request."""
        if self._call.checkpoints is None or not self._run.phases.has(TRAINING_LOOP):
            raise RuntimeError("the training is over")
        self._call.checkpoints.save()

    def _begin_evaluation(self, trainer: Any, pl_module: Any, loop: str, iteration: str) -> None:
        with self.guard.catch("beginning an evaluation of Lightning's"):
            self._open(pl_module)
            if not self.is_live:
                return
            run = self._run
            if not run.has_start:
                with self.guard.catch("writing the start record"):
                    self._call.write_start(pl_module, hardware_fields(trainer))
            self._call.begin_evaluation(loop, iteration)
            run.phases.begin(loop, getattr(run.opened.training, loop)())


TelemetryLightningLogger.callback_class = TelemetryCallback
