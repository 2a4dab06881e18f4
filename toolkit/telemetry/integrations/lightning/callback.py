"""The callback for Lightning's trainer: each of its hooks as parts, records and answers of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolkit.core.guard import Guard, guarded
from toolkit.core.wall_times import wall_time_of
from toolkit.telemetry.integrations.lightning.batch_part import BatchPart
from toolkit.telemetry.integrations.lightning.call_records import (
    begin_evaluation,
    put_epoch,
    put_evaluation,
    put_start,
    put_step,
    put_the_rest,
)
from toolkit.telemetry.integrations.lightning.checkpoints import Checkpoints, path_of_asked
from toolkit.telemetry.integrations.lightning.description import (
    about_hardware,
    about_training,
    max_steps,
)
from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.lightning.logger import TelemetryLightningLogger
from toolkit.telemetry.integrations.lightning.module_metrics import metrics_so_far
from toolkit.telemetry.integrations.lightning.one_call import OneCall
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.step_so_far import learning_rates
from toolkit.telemetry.integrations.lightning.surrounded import Surrounded
from toolkit.telemetry.integrations.opening import GivenLog
from toolkit.telemetry.integrations.stand_in import stand_in_for
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import OptionsError
from toolkit.timing.names import (
    APPLICATION,
    BACKWARD,
    DATA_LOADING,
    DATALOADER_INIT,
    FORWARD,
    OPTIMIZER_UPDATE,
    TESTING_ITERATION,
    TESTING_LOOP,
    TRAINING_ITERATION,
    TRAINING_LOOP,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
    ZERO_GRAD,
)

if TYPE_CHECKING:
    from toolkit.telemetry.control.poller import Request

_Callback = class_of_lightning("Callback")

_PROFILED: Final = ("training_step", "validation_step", "test_step", "optimizer_step")
"""Methods of a module whose calls are timed one by one."""


class TelemetryCallback(_Callback):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """A callback for Lightning's trainer that writes what it does as a run, and lets somebody steer it.

    Give it the logger of the run, which then stays yours to close; or the options of one (`log_dir="logs"`, …), and it
    opens a run when a training, a validation or a test begins, and closes it with that. Where the trainer has a
    `TelemetryLightningLogger` and only one of the two is given anything, both write the same run.

    Nothing it does stops a training, apart from wrong options when it is made.
    """

    def __init__(
        self,
        log: GivenLog | TelemetryLightningLogger = None,
        *,
        run_name: str | None = None,
        **options: Any,
    ) -> None:
        """Make a callback; no folder is made yet.

        Raises:
            OptionsError: an option is unknown or wrong.
        """
        super().__init__()
        if isinstance(log, TelemetryLightningLogger):
            if options or run_name is not None:
                raise OptionsError(
                    "a callback that is given a logger takes its options: give them to the logger"
                )
            self._run = log.run
        else:
            self._run = SharedRun(log, run_name, options)
        self.is_live = False
        """Whether the hooks do anything."""
        self._call = OneCall()

    @property
    def telemetry(self) -> TelemetryLogger | None:
        """The logger that is written with; None before there is a run. Lightning itself puts a `log` here."""
        return self._run.log

    @property
    def guard(self) -> Guard:
        """Counts what went wrong here."""
        return self._run.guard

    def on_request(self, trainer: Any, pl_module: Any, request: Request) -> None:
        """Do what was asked with an action or knob of your own, between two steps; for classes derived from this."""

    # What the trainer calls before and after everything else.

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Find the logger of ours that the trainer has, if it has one."""
        with self.guard.catch("setting up the callback"):
            if self._is_within_a_call_of_another(trainer):
                self.is_live, self._call = False, OneCall(trainer=trainer, is_left_out=True, outer=self._call)
                return
            if self._call.trainer is not None:
                # Another callback can raise while an exception goes through the trainer, and keeps it from us then.
                self._end(InterruptedError("the trainer's call before this one ended without a word"))
            self._call = OneCall(trainer=trainer, began_at=time.monotonic())
            loggers = getattr(trainer, "loggers", ())
            other = next((one for one in loggers if isinstance(one, TelemetryLightningLogger)), None)
            if other is not None:
                self._share_run_with(other)
            elif self._run.was_given_nothing:
                # Lightning has taken all loggers away, and nobody knows what ours was given.
                self._call.is_left_out = bool(getattr(trainer, "fast_dev_run", False))

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run: a checkpoint has been read by now, so that it is known which one goes on."""
        with self.guard.catch("opening a run for Lightning"):
            # Some strategies read the checkpoint later; the run is then opened when the training begins.
            if not getattr(trainer.strategy, "restore_checkpoint_after_setup", False):
                self._run.begin_training(trainer)
                if self._open(pl_module):
                    self._call.parts.begin(DATALOADER_INIT, self._run.training.dataloader_init())

    def teardown(self, *_: Any, **__: Any) -> None:
        """Close the run."""
        self._end(None)

    def on_exception(self, _: Any, __: Any, exception: BaseException) -> None:
        """Close the run as failed or interrupted; the exception is the trainer's to raise."""
        self._end(exception)

    # Training.

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Say what is trained and how, and begin the loop."""
        with self.guard.catch("opening a run for Lightning"):
            if not self.is_live:
                self._run.begin_training(trainer)
            self._open(pl_module)
        self._begin_training(trainer, pl_module)

    @guarded
    def on_train_epoch_start(self, *_: Any) -> None:
        """Tell of the epoch before, whose metrics are all there by now."""
        put_epoch(self._run, self._call)

    @guarded
    def on_train_batch_start(self, _: Any, __: Any, batch: Any, *___: Any) -> None:
        """Begin an iteration, unless gradients are being accumulated for one."""
        call = self._call
        call.step.sizes.add(batch)
        if not call.parts.has(TRAINING_ITERATION):
            call.parts.begin(TRAINING_ITERATION, self._run.training.training_iteration())
        call.batch.begin(FORWARD)

    @guarded
    def on_before_zero_grad(self, *_: Any) -> None:
        """The forward pass is over."""
        self._call.batch.begin(ZERO_GRAD)

    @guarded
    def on_before_backward(self, *_: Any) -> None:
        """The forward pass is over, where nothing was cleared."""
        self._call.batch.begin(BACKWARD)

    @guarded
    def on_after_backward(self, *_: Any) -> None:
        """The backward pass is over."""
        self._call.batch.end(BACKWARD)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        """Begin the optimizer's step; the learning rate is this step's, schedulers change it later."""
        call = self._call
        call.batch.begin(OPTIMIZER_UPDATE)
        if not call.step.rates:
            call.step.rates = learning_rates(trainer.optimizers)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """End the iteration if the optimizer has made a step, log it, and do what was asked."""
        call = self._call
        call.batch.end()
        call.step.add_loss(outputs)
        number = trainer.global_step
        if number == call.step.number:
            return
        call.parts.end(TRAINING_ITERATION)
        with self.guard.catch("logging a step of Lightning's"):
            put_step(self._run, call, pl_module, number)
        call.step.begin_after(number)
        self._do_requests(trainer, pl_module)

    @guarded
    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Remember that an epoch ended; its metrics are complete only after this."""
        call = self._call
        # A module may end an epoch by refusing a batch that has begun.
        call.batch.end()
        call.parts.drop(TRAINING_ITERATION)
        # Asking Lightning for them now would have it gather them from all ranks, in the midst of something else.
        call.epoch = trainer.current_epoch, trainer.global_step
        call.metrics_before = metrics_so_far(trainer)

    @guarded
    def on_train_end(self, *_: Any) -> None:
        """Tell of the last epoch, and end the loop."""
        put_epoch(self._run, self._call)
        self._call.parts.drop(TRAINING_ITERATION)
        self._call.parts.end(TRAINING_LOOP)

    @guarded
    def on_fit_end(self, *_: Any) -> None:
        """Tell of the checkpoints that were saved beside the training."""
        if self._call.checkpoints is not None:
            self._call.checkpoints.tell_of_all()

    # Validation and testing.

    @guarded
    def on_sanity_check_start(self, *_: Any) -> None:
        """Leave out the check of the validation before the training."""
        self._call.parts.end(DATALOADER_INIT)

    @guarded
    def on_sanity_check_end(self, *_: Any) -> None:
        """Go on waiting for the data loaders."""
        self._call.parts.begin(DATALOADER_INIT, self._run.training.dataloader_init())

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a validation; the check of it before a training is none."""
        if not trainer.sanity_checking:
            self._begin_evaluation(trainer, pl_module, VALIDATION_LOOP)

    @guarded
    def on_validation_batch_start(self, *_: Any) -> None:
        """Begin an iteration of it."""
        if self._call.parts.has(VALIDATION_LOOP):
            self._call.parts.begin(VALIDATION_ITERATION, self._run.training.validation_iteration())

    @guarded
    def on_validation_batch_end(self, *_: Any) -> None:
        """End it."""
        self._call.parts.end(VALIDATION_ITERATION)

    @guarded
    def on_validation_end(self, *_: Any) -> None:
        """End the validation, and tell of its metrics."""
        self._end_evaluation(VALIDATION_ITERATION, VALIDATION_LOOP)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a test."""
        self._begin_evaluation(trainer, pl_module, TESTING_LOOP)

    @guarded
    def on_test_batch_start(self, *_: Any) -> None:
        """Begin an iteration of it."""
        self._call.parts.begin(TESTING_ITERATION, self._run.training.testing_iteration())

    @guarded
    def on_test_batch_end(self, *_: Any) -> None:
        """End it."""
        self._call.parts.end(TESTING_ITERATION)

    @guarded
    def on_test_end(self, *_: Any) -> None:
        """End the test, and tell of its metrics."""
        self._end_evaluation(TESTING_ITERATION, TESTING_LOOP)

    # Checkpoints remember their run; a copy in another process begins with nothing that is open here.

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: which run it is from."""
        return {"run_id": self._run.run_id} if self._run.run_id is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the run that a checkpoint is from."""
        run_id = state_dict.get("run_id") if isinstance(state_dict, Mapping) else None
        if isinstance(run_id, str) and run_id:
            self._run.go_on_with(run_id)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_live": False, "_call": OneCall()}

    # Within: beginning and ending.

    def _is_within_a_call_of_another(self, trainer: Any) -> bool:
        """Return whether a trainer that has this callback, too, is called while another one trains."""
        other = self._call.trainer
        return other is not None and other is not trainer and other.state.status == "running"

    def _share_run_with(self, other: TelemetryLightningLogger) -> None:
        """Write one run with the trainer's logger, unless each was given something of its own."""
        if self._run.was_given_nothing:
            self._run = other.run
        elif other.run.was_given_nothing:
            other.run = self._run
        run, connector = self._run, getattr(self._call.trainer, "_logger_connector", None)
        if other.run is not run or run.is_off:
            return
        run.has_callback = True
        if callable(getattr(connector, "log_metrics", None)):
            marked = Surrounded(
                connector, "log_metrics", before=run.begin_lightnings_turn, after=run.end_lightnings_turn
            )
            self._call.replaced.put(connector, "log_metrics", marked)

    def _open(self, pl_module: Any) -> bool:
        """Open the run if it is not, and tell of the time since the trainer has begun; return whether it was done."""
        run = self._run
        if self._call.is_left_out:
            return False
        was_opened = run.open(type(pl_module).__name__)
        self.is_live = run.is_live
        if not was_opened:
            return False
        began = None if self._call.began_at is None else wall_time_of(self._call.began_at) * 1000.0
        if run.is_ours:
            # Whoever brings a logger may have an application around all this.
            self._call.parts.begin(APPLICATION, run.training.application(start_time_msec=began))
        run.training.on_model_init_start(start_time_msec=began)
        run.training.on_model_init_end()
        return True

    @guarded
    def _begin_training(self, trainer: Any, pl_module: Any) -> None:
        run, call = self._run, self._call
        call.parts.end(DATALOADER_INIT)
        call.step.number = step = trainer.global_step
        call.batch = BatchPart(run.opened.span)
        with self.guard.catch("saying what is trained"):
            about = about_training(trainer) | ({"resumed_from_step": step} if step else {})
            put_start(run, trainer, pl_module, about)
        if run.knows_its_ranks:
            run.opened.declare_action("save", partial(self._save_as_asked, trainer))
            run.opened.declare_action("stop")
        target = max_steps(trainer)
        call.parts.begin(
            TRAINING_LOOP,
            run.training.training_loop(train_iterations_start=step, train_iterations_target=target),
        )
        with self.guard.catch("following Lightning's data loading and checkpoints"):
            self._follow(trainer)
        self._profile(pl_module)

    def _follow(self, trainer: Any) -> None:
        """Put our own around what the trainer has no hook for; on these objects alone, and until the end."""
        call = self._call
        call.checkpoints = Checkpoints(trainer, self._run)
        call.replaced.put(trainer, "save_checkpoint", call.checkpoints.save)
        loop = trainer.fit_loop.epoch_loop
        around_a_fetch = {
            "_on_before_fetch": {"after": self._begin_loading},
            "_on_after_fetch": {"before": self._end_loading},
        }
        for name, ours in around_a_fetch.items():
            if callable(getattr(loop, name, None)):
                call.replaced.put(loop, name, Surrounded(loop, name, **ours))
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                call.hooked.append(optimizer.register_step_post_hook(self._end_update))

    def _profile(self, pl_module: Any) -> None:
        """Time the calls of the module's own methods one by one."""
        call = self._call
        if call.is_profiled or getattr(pl_module, "_compiler_ctx", None) is not None:
            # A module that is compiled has compiled methods, which a stand-in would not be.
            return
        call.is_profiled = True
        for name in _PROFILED:
            with self.guard.catch("profiling a method of the module's"):
                original = getattr(pl_module, name)
                timed = self._run.opened.profile(original, name=f"{type(pl_module).__name__}.{name}")
                if timed is not original:
                    call.replaced.put(pl_module, name, stand_in_for(original, timed))

    @guarded
    def _begin_loading(self) -> None:
        self._call.batch.begin(DATA_LOADING)

    @guarded
    def _end_loading(self) -> None:
        self._call.batch.end(DATA_LOADING)

    @guarded
    def _end_update(self, *_: Any) -> None:
        self._call.batch.end(OPTIMIZER_UPDATE)

    def _end(self, error: BaseException | None) -> None:
        """End all that is open, put everything back, and close the run if it was opened here."""
        run, call = self._run, self._call
        if call.outer is not None:
            self._call, self.is_live = call.outer, run.is_live
            return
        was_live, self.is_live, self._call = self.is_live, False, OneCall()
        with self.guard.catch("putting Lightning's own methods back"):
            call.replaced.put_back()
            for handle in call.hooked:
                handle.remove()
        if was_live:
            put_the_rest(run, call)
        with self.guard.catch("ending the parts of a training"):
            call.batch.end(error=error)
            call.parts.end_all(error, undone=TRAINING_ITERATION)
        with self.guard.catch("closing the run of Lightning"):
            run.has_callback = run.is_lightnings_turn = False
            run.close(error)

    # Within: requests and evaluations.

    def _do_requests(self, trainer: Any, pl_module: Any) -> None:
        log = self._run.opened
        if not self._run.knows_its_ranks:
            return
        for request in log.take_requests():
            if request.name != "stop":
                with self.guard.catch(f"doing what was asked: {request.name}"):
                    self.on_request(trainer, pl_module, request)
        if log.should_stop:
            trainer.should_stop = True

    def _save_as_asked(self, trainer: Any) -> None:
        """Save a checkpoint, between two steps; whatever it raises is the answer to whoever asked."""
        if not self._call.parts.has(TRAINING_LOOP):
            raise RuntimeError("the training is over")
        trainer.save_checkpoint(path_of_asked(trainer))

    def _begin_evaluation(self, trainer: Any, pl_module: Any, loop: str) -> None:
        with self.guard.catch("beginning an evaluation of Lightning's"):
            self._open(pl_module)
            if not self.is_live:
                return
            run, call = self._run, self._call
            if not run.has_start:
                with self.guard.catch("saying what is evaluated"):
                    put_start(run, trainer, pl_module, about_hardware(trainer))
            begin_evaluation(run, call)
            self._profile(pl_module)
            training = run.training
            part = training.validation_loop() if loop == VALIDATION_LOOP else training.testing_loop()
            call.parts.begin(loop, part)

    def _end_evaluation(self, iteration: str, loop: str) -> None:
        run, call = self._run, self._call
        if not call.parts.has(loop):
            return
        call.parts.end(iteration, loop)
        put_evaluation(run, call)
