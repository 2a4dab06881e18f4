"""A callback and a logger for Lightning: its trainings as runs with curves, spans, checkpoints and requests."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from types import new_class
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.guard import Guard, guarded
from toolkit.telemetry.integrations.metric_names import split, with_known_names
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.integrations.opening import GivenLog, options_of
from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import OptionsError
from toolkit.telemetry.ranks import find_rank
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
    from toolkit.telemetry.control_poller import Request

_FRAMEWORKS: Final = ("lightning.pytorch", "pytorch_lightning")
"""One framework under two names, each with classes of its own."""


def _base(name: str) -> Any:
    """Return the framework's class of that name.

    It is the class of the package that the script has imported, of both where it has imported both, and else of the
    one that is installed: a trainer takes only what is made for its own package.
    """
    imported = [package for package in _FRAMEWORKS if package in sys.modules]
    installed = [package for package in _FRAMEWORKS if find_spec(package.partition(".")[0]) is not None]
    packages = imported or installed[:1]
    if not packages:
        raise ImportError("neither lightning nor pytorch_lightning is installed: pip install lightning")
    if name == "Logger":
        packages = [f"{package}.loggers" for package in packages]
    return new_class(name, tuple(getattr(import_module(package), name) for package in packages))


_Callback = _base("Callback")
_Logger = _base("Logger")

_OF_A_BATCH: Final = (DATA_LOADING, FORWARD, ZERO_GRAD, BACKWARD, OPTIMIZER_UPDATE)


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
            self._run = _Run(log, run_name, options)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget all that belongs to one call of the trainer."""
        self._parts = OpenParts()
        self._replaced = ReplacedMethods()
        self._hooked: list[Any] = []
        self._set_up_at: float | None = None
        self._step = 0
        self._has_logged = False
        self._loss: Any = None
        self._batches = 0
        self._lr: dict[str, Any] = {}
        self._metrics_before: Mapping[str, Any] = {}
        self._epoch: tuple[int, int] | None = None
        self._saved_elsewhere: list[tuple[int, Any, float]] = []

    @property
    def telemetry(self) -> TelemetryLogger | None:
        """The logger that is written with; None before there is a run. Lightning itself puts a `log` here."""
        return self._run.log

    @property
    def guard(self) -> Guard:
        """Counts what went wrong here."""
        return self._run.guard

    @property
    def is_live(self) -> bool:
        """Whether the hooks do anything."""
        return self._run.is_live

    def on_request(self, trainer: Any, pl_module: Any, request: Request) -> None:
        """Do what was asked with an action or knob of your own, between two steps; for classes derived from this."""

    # What the trainer calls before and after everything else.

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Find the logger of ours that the trainer has, if it has one."""
        with self.guard.watch("setting up the callback"):
            self._begin_anew()
            self._set_up_at = time.time()
            loggers = getattr(trainer, "loggers", ())
            other = next((one for one in loggers if isinstance(one, TelemetryLightningLogger)), None)
            if other is None:
                return
            if self._run.was_given_nothing:
                self._run = other.run
            elif other.run.was_given_nothing:
                other.run = self._run
            if other.run is self._run:
                self._run.has_callback = True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run: a checkpoint has been read by now, so that it is known which one goes on."""
        with self.guard.watch("opening a run for Lightning"):
            # Some strategies read the checkpoint later; the run is then opened when the training begins.
            if not getattr(trainer.strategy, "restore_checkpoint_after_setup", False) and self._open(
                pl_module
            ):
                self._parts.begin(DATALOADER_INIT, self._run.training.dataloader_init())

    def teardown(self, *_: Any, **__: Any) -> None:
        """Close the run."""
        self._end(None)

    def on_exception(self, _: Any, __: Any, exception: BaseException) -> None:
        """Close the run as failed or interrupted; the exception is the trainer's to raise."""
        self._end(exception)

    # Training.

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Say what is trained and how, and begin the loop."""
        with self.guard.watch("opening a run for Lightning"):
            self._open(pl_module)
        self._begin_training(trainer, pl_module)

    @guarded
    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Tell of the epoch before, whose metrics are all there by now."""
        self._tell_of_epoch(trainer)

    @guarded
    def on_train_batch_start(self, *_: Any) -> None:
        """Begin an iteration, unless gradients are being accumulated for one."""
        training = self._run.training
        if not self._parts.has(TRAINING_ITERATION):
            self._parts.begin(TRAINING_ITERATION, training.training_iteration())
        self._parts.begin(FORWARD, training.forward())

    @guarded
    def on_before_zero_grad(self, *_: Any) -> None:
        """The forward pass is over."""
        self._parts.end(FORWARD)
        self._parts.begin(ZERO_GRAD, self._run.training.zero_grad())

    @guarded
    def on_before_backward(self, *_: Any) -> None:
        """The forward pass is over, where nothing was cleared."""
        self._parts.end(OPTIMIZER_UPDATE, ZERO_GRAD, FORWARD)
        self._parts.begin(BACKWARD, self._run.training.backward())

    @guarded
    def on_after_backward(self, *_: Any) -> None:
        """The backward pass is over."""
        self._parts.end(BACKWARD)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        """Begin the optimizer's step; the learning rate is this step's, schedulers change it later."""
        self._parts.end(BACKWARD, FORWARD)
        self._parts.begin(OPTIMIZER_UPDATE, self._run.training.optimizer_update())
        if not self._lr:
            self._lr = _learning_rates(trainer.optimizers)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """End the iteration if the optimizer has made a step, log it, and do what was asked."""
        self._parts.end(*reversed(_OF_A_BATCH))
        self._add_loss(outputs)
        step = trainer.global_step
        if step == self._step:
            return
        self._step = step
        self._parts.end(TRAINING_ITERATION)
        with self.guard.watch("logging a step of Lightning's"):
            self._log_step(trainer, pl_module, step)
        self._loss, self._batches, self._lr = None, 0, {}
        self._do_requests(trainer, pl_module)

    @guarded
    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Remember that an epoch ended; its metrics are complete only after this."""
        # Asking Lightning for them now would have it gather them from all ranks, in the midst of something else.
        self._epoch = trainer.current_epoch, trainer.global_step
        self._metrics_before = _metrics_so_far(trainer)

    @guarded
    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """Tell of the last epoch, and end the loop."""
        self._tell_of_epoch(trainer)
        self._parts.drop(TRAINING_ITERATION)
        self._parts.end(TRAINING_LOOP)

    @guarded
    def on_fit_end(self, trainer: Any, *_: Any) -> None:
        """Tell of the checkpoints that were saved beside the training: the trainer has waited for them."""
        for step, path, seconds in self._saved_elsewhere:
            if os.path.exists(path):
                self._run.training.on_save_checkpoint_success(step, path=path)
                self._log_checkpoint(trainer, step, path, seconds)
        self._saved_elsewhere = []

    # Validation and testing.

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a validation; the check of it before a training is none."""
        if not trainer.sanity_checking:
            self._begin_evaluation(trainer, pl_module, VALIDATION_LOOP)

    @guarded
    def on_validation_batch_start(self, *_: Any) -> None:
        """Begin an iteration of it."""
        if self._parts.has(VALIDATION_LOOP):
            self._parts.begin(VALIDATION_ITERATION, self._run.training.validation_iteration())

    @guarded
    def on_validation_batch_end(self, *_: Any) -> None:
        """End it."""
        self._parts.end(VALIDATION_ITERATION)

    @guarded
    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """End the validation, and tell of its metrics."""
        self._end_evaluation(trainer, VALIDATION_ITERATION, VALIDATION_LOOP)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a test."""
        self._begin_evaluation(trainer, pl_module, TESTING_LOOP)

    @guarded
    def on_test_batch_start(self, *_: Any) -> None:
        """Begin an iteration of it."""
        self._parts.begin(TESTING_ITERATION, self._run.training.testing_iteration())

    @guarded
    def on_test_batch_end(self, *_: Any) -> None:
        """End it."""
        self._parts.end(TESTING_ITERATION)

    @guarded
    def on_test_end(self, trainer: Any, *_: Any) -> None:
        """End the test, and tell of its metrics."""
        self._end_evaluation(trainer, TESTING_ITERATION, TESTING_LOOP)

    # Checkpoints remember their run.

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: which run it is from."""
        return {"run_id": self._run.run_id} if self._run.run_id is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the run that a checkpoint is from."""
        run_id = state_dict.get("run_id") if isinstance(state_dict, Mapping) else None
        if isinstance(run_id, str) and run_id:
            self._run.run_id = run_id

    # Within: beginning and ending.

    def _open(self, pl_module: Any) -> bool:
        """Open the run if it is not, and tell of the time since the trainer has begun; return whether it was done."""
        run = self._run
        if not run.open(type(pl_module).__name__):
            return False
        began = None if self._set_up_at is None else self._set_up_at * 1000.0
        if run.is_ours:
            # Whoever brings a logger may have an application around all this.
            self._parts.begin(APPLICATION, run.training.application(start_time_msec=began))
        run.training.on_model_init_start(start_time_msec=began)
        run.training.on_model_init_end()
        return True

    @guarded
    def on_sanity_check_start(self, *_: Any) -> None:
        """Leave out the check of the validation before the training."""
        self._parts.end(DATALOADER_INIT)

    @guarded
    def on_sanity_check_end(self, *_: Any) -> None:
        """Go on waiting for the data loaders."""
        self._parts.begin(DATALOADER_INIT, self._run.training.dataloader_init())

    @guarded
    def _begin_training(self, trainer: Any, pl_module: Any) -> None:
        run = self._run
        self._parts.end(DATALOADER_INIT)
        self._step = step = trainer.global_step
        with self.guard.watch("saying what is trained"):
            about = _about_training(trainer) | ({"resumed_from_step": step} if step else {})
            self._tell_of_start(trainer, pl_module, about)
        run.opened.declare_action("save", partial(self._save_as_asked, trainer))
        run.opened.declare_action("stop")
        target = _max_steps(trainer)
        self._parts.begin(
            TRAINING_LOOP,
            run.training.training_loop(train_iterations_start=step, train_iterations_target=target),
        )
        with self.guard.watch("following Lightning's data loading and checkpoints"):
            self._follow(trainer)

    def _follow(self, trainer: Any) -> None:
        """Put our own around what the trainer has no hook for; on these objects alone, and until the end."""
        self._replaced.put(trainer, "save_checkpoint", self._timed_save(trainer, trainer.save_checkpoint))
        loop = trainer.fit_loop.epoch_loop
        before, after = getattr(loop, "_on_before_fetch", None), getattr(loop, "_on_after_fetch", None)
        if callable(before) and callable(after):
            self._replaced.put(loop, "_on_before_fetch", _in_turn(before, self._begin_loading))
            self._replaced.put(loop, "_on_after_fetch", _in_turn(self._end_loading, after))
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                self._hooked.append(optimizer.register_step_post_hook(self._end_update))

    @guarded
    def _begin_loading(self) -> None:
        self._parts.begin(DATA_LOADING, self._run.training.data_loading())

    @guarded
    def _end_loading(self) -> None:
        self._parts.end(DATA_LOADING)

    @guarded
    def _end_update(self, *_: Any) -> None:
        self._parts.end(OPTIMIZER_UPDATE)

    def _tell_of_start(self, trainer: Any, pl_module: Any, training: Mapping[str, Any]) -> None:
        run = self._run
        config = {**run.config, **_hyperparameters(getattr(trainer, "datamodule", None))}
        config |= _hyperparameters(pl_module)
        run.opened.log_start(config=config or None, model=_about_model(pl_module), training=training)
        run.has_start = True
        known = {"global_batch_size": "effective_batch_size", "micro_batch_size": "batch_size"}
        sizes = {ours: training[theirs] for ours, theirs in known.items() if training.get(theirs)}
        if sizes and run.is_ours:
            run.training.configure(**sizes)

    def _end(self, error: BaseException | None) -> None:
        """End all that is open, put everything back, and close the run if it was opened here."""
        with self.guard.watch("putting Lightning's own methods back"):
            self._replaced.put_back()
            for handle in self._hooked:
                handle.remove()
            self._hooked = []
        with self.guard.watch("ending the parts of a training"):
            self._parts.end_all(error, undone=TRAINING_ITERATION)
        with self.guard.watch("closing the run of Lightning"):
            self._run.has_callback = False
            self._run.close(error)

    # Within: steps.

    def _add_loss(self, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss
            self._batches += 1

    def _mean_loss(self, trainer: Any, pl_module: Any) -> Any:
        """Return the mean loss of the step's batches, which Lightning has divided by how many there should be."""
        if self._loss is None:
            return None
        divided_by = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        return self._loss if divided_by == self._batches else self._loss * (divided_by / self._batches)

    def _log_step(self, trainer: Any, pl_module: Any, step: int) -> None:
        run = self._run
        loss, lr = self._mean_loss(trainer, pl_module), self._lr or _learning_rates(trainer.optimizers)
        fields: dict[str, Any] = {}
        if not self._has_logged or step % run.opened.log_every == 0:
            # Read only for a step that is recorded.
            self._has_logged = True
            fields = with_known_names({**self._new_metrics(trainer), **run.take_metrics()})
        if loss is not None:
            fields["train_loss"] = loss
        fields.pop("global_step", None)
        run.opened.log_step(step, **{**fields, **lr, "epoch": trainer.current_epoch})

    def _new_metrics(self, trainer: Any) -> dict[str, Any]:
        """Return what the module has logged in this step: of the older metrics, Lightning still has the same object."""
        before, now = _metrics_so_far(trainer), dict(trainer.logged_metrics)
        return {name: value for name, value in now.items() if before.get(name) is not value}

    def _tell_of_epoch(self, trainer: Any) -> None:
        if self._epoch is None:
            return
        (epoch, step), self._epoch = self._epoch, None
        before, now = self._metrics_before, _metrics_so_far(trainer)
        metrics = {name: value for name, value in now.items() if before.get(name) is not value}
        metrics |= self._run.take_metrics()
        self._run.opened.log_epoch(epoch, global_step=step, **_free_of(metrics, "epoch", "global_step"))

    def _do_requests(self, trainer: Any, pl_module: Any) -> None:
        log = self._run.opened
        for request in log.take_requests():
            if request.name != "stop":
                with self.guard.watch(f"doing what was asked: {request.name}"):
                    self.on_request(trainer, pl_module, request)
        if log.should_stop:
            trainer.should_stop = True

    def _save_as_asked(self, trainer: Any) -> None:
        """Save a checkpoint, between two steps; whatever it raises is the answer to whoever asked."""
        if not self._parts.has(TRAINING_LOOP):
            raise RuntimeError("the training is over")
        trainer.save_checkpoint(_path_of_asked(trainer))

    # Within: evaluations and checkpoints.

    def _begin_evaluation(self, trainer: Any, pl_module: Any, loop: str) -> None:
        with self.guard.watch("beginning an evaluation of Lightning's"):
            self._open(pl_module)
            if not self.is_live:
                return
            if not self._run.has_start:
                self._tell_of_start(trainer, pl_module, _about_hardware(trainer))
            training = self._run.training
            self._metrics_before = _metrics_so_far(trainer)
            part = training.validation_loop() if loop == VALIDATION_LOOP else training.testing_loop()
            self._parts.begin(loop, part)

    def _end_evaluation(self, trainer: Any, iteration: str, loop: str) -> None:
        if not self._parts.has(loop):
            return
        self._parts.end(iteration, loop)
        before, now = self._metrics_before, _metrics_so_far(trainer)
        metrics = {name: value for name, value in now.items() if before.get(name) is not value}
        if metrics:
            self._run.opened.log_eval(trainer.global_step, **_free_of(metrics, "global_step"))

    def _timed_save(self, trainer: Any, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return the trainer's method with a span around it; what it returns and raises stays its own."""

        @wraps(save)
        def timed(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_live:
                return save(filepath, *args, **kwargs)
            step, began, part = trainer.global_step, time.perf_counter(), None
            is_async = _saves_elsewhere(trainer)
            with self.guard.watch("beginning a checkpoint of Lightning's"):
                strategy = "async" if is_async else "sync"
                part = self._run.training.checkpoint_save(step, path=filepath, strategy=strategy)
                part.__enter__()
            try:
                result = save(filepath, *args, **kwargs)
            except BaseException as error:
                with self.guard.watch("ending a checkpoint of Lightning's"):
                    if part is not None:
                        part.__exit__(type(error), error, error.__traceback__)
                raise
            with self.guard.watch("ending a checkpoint of Lightning's"):
                seconds = time.perf_counter() - began
                if part is not None:
                    part.__exit__(None, None, None)
                if is_async:
                    self._saved_elsewhere.append((step, filepath, seconds))
                else:
                    self._log_checkpoint(trainer, step, filepath, seconds)
            return result

        return timed

    def _log_checkpoint(self, trainer: Any, step: int, path: Any, seconds: float) -> None:
        is_best = any(
            getattr(one, "monitor", None) is not None and getattr(one, "best_model_path", None) == str(path)
            for one in trainer.checkpoint_callbacks
        )
        self._run.opened.log_checkpoint(step, path, is_best=is_best, seconds=seconds)


class TelemetryLightningLogger(_Logger):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """A logger for Lightning's trainer: what is logged with `self.log` and the hyperparameters go into a run.

    With a `TelemetryCallback` beside it, both write one run, and the callback tells of everything else. Alone, it
    writes what Lightning hands to loggers, at the step that Lightning says, and nothing can be asked of the run.
    """

    def __init__(
        self,
        log: GivenLog = None,
        *,
        run_name: str | None = None,
        save_dir: str | os.PathLike[str] = "lightning_logs",
        **options: Any,
    ) -> None:
        """Make a logger; no folder is made yet. Lightning puts checkpoints into `save_dir`, not into the run folder.

        Raises:
            OptionsError: an option is unknown or wrong.
        """
        super().__init__()
        self.run = _Run(log, run_name, options)
        """What it has in common with the callback."""
        self._save_dir = os.fspath(save_dir)

    @property
    def guard(self) -> Guard:
        """Counts what went wrong here."""
        return self.run.guard

    @property
    def is_live(self) -> bool:
        """Whether anything is written."""
        return not self.run.is_off

    @property
    def experiment(self) -> TelemetryLogger | None:
        """The logger of the run; None before it has begun."""
        return self.run.log

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.run.run_name or "lightning"

    @property
    def version(self) -> str:
        """Empty: the checkpoints of a run that goes on are where they were."""
        return ""

    @property
    def save_dir(self) -> str:
        """Where Lightning puts checkpoints and its command line's configuration."""
        return self._save_dir

    @property
    def log_dir(self) -> str | None:
        """The run folder; None before the run has begun."""
        folder = self.run.log.run_folder if self.run.log is not None else None
        return None if folder is None else str(folder)

    @guarded
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Remember the hyperparameters for the start record."""
        given = vars(params) if isinstance(params, Namespace) else params
        self.run.config |= {str(name): value for name, value in dict(given or {}).items()}

    @guarded
    def log_graph(self, model: Any, *_: Any, **__: Any) -> None:
        """Write the start record, where no callback does it: this comes once the hyperparameters are known."""
        if not self.run.has_callback and self._opened() and not self.run.has_start:
            self._write_start(_about_model(model))

    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write metrics that were logged, as those of a step or of an evaluation by their names."""
        if self.run.has_callback:
            # Lightning's own come with the epoch, and the callback has read them already.
            if "epoch" not in metrics:
                self.run.add_metrics(metrics)
            return
        if not self._opened():
            return
        if not self.run.has_start:
            self._write_start(None)
        log, at = self.run.opened, step if step is not None else 0
        epoch = metrics.get("epoch")
        of_step, of_evaluation = split(_free_of(metrics, "epoch", "global_step"))
        if of_step:
            log.log_step(at, **{**with_known_names(of_step), "epoch": epoch})
        # Those of single batches of a validation are counted by its batches, not by the training's steps.
        of_loop = {name: value for name, value in of_evaluation.items() if not name.endswith("_step")}
        if of_loop:
            log.log_eval(at, **of_loop)

    @guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Tell of a checkpoint, where no callback does it."""
        path = (
            getattr(checkpoint_callback, "_last_checkpoint_saved", None)
            or checkpoint_callback.best_model_path
        )
        if path and not self.run.has_callback and self._opened():
            step = getattr(checkpoint_callback, "_last_global_step_saved", 0)
            is_best = checkpoint_callback.monitor is not None and path == checkpoint_callback.best_model_path
            self.run.opened.log_checkpoint(step, path, is_best=is_best)

    @guarded
    def finalize(self, status: str) -> None:
        """Close the run, where no callback does it."""
        if not self.run.has_callback:
            error = sys.exc_info()[1]
            self.run.close(error if status != "success" else None, failed=status != "success")

    def _opened(self) -> bool:
        self.run.open(self.name, every_step=True)
        return self.run.is_live

    def _write_start(self, model: Mapping[str, Any] | None) -> None:
        self.run.has_start = True
        self.run.opened.log_start(config=self.run.config or None, model=model)


class _Run:
    """The run that a callback, a logger or both of one trainer write: one that was given, or one that they open."""

    def __init__(self, given: GivenLog, run_name: str | None, options: Mapping[str, Any]) -> None:
        self.was_given_nothing = given is None and run_name is None and not options
        self.run_name = run_name
        self.run_id: str | None = None
        self.config: dict[str, Any] = {}
        self.has_callback = False
        self.has_start = False
        self.is_live = False
        self.is_ours = not isinstance(given, TelemetryLogger)
        self.log: TelemetryLogger | None = None
        self._metrics: dict[str, Any] = {}
        if isinstance(given, TelemetryLogger):
            if options:
                raise OptionsError(
                    f"a logger was given together with options {sorted(options)}: give one of the two"
                )
            self.log, self.guard = given, given.guard
            self.run_name = run_name or given.run_name
            self.run_id = given.run_id
            self._options = options_of({"enabled": given.is_live or find_rank().rank > 0})
            self._states_interval = True
        else:
            self.guard = Guard()
            self._options = options_of(given, **options)
            self._states_interval = "log_every" in {*(given if isinstance(given, Mapping) else ()), *options}

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be written at all."""
        return not self._options.enabled

    @property
    def opened(self) -> TelemetryLogger:
        """The logger, once there is one."""
        assert self.log is not None, "only a run that was opened gets here"
        return self.log

    @property
    def training(self) -> Any:
        """The vocabulary of a training."""
        return self.opened.training

    def open(self, default_name: str, *, every_step: bool = False) -> bool:
        """Open the run, as a further session where it had one; return whether that was done just now."""
        if self.is_live or self.is_off:
            return False
        if self.is_ours:
            options = self._options
            if self.run_id is not None and options.run_id is None:
                options = options.changed(run_id=self.run_id)
            if every_step and not self._states_interval:
                options = options.changed(log_every=1)
            self.log = TelemetryLogger(self.run_name or default_name, options)
            self.guard = self.log.guard
            self.run_id = self.log.run_id or self.run_id
        # The other ranks write nothing, and are asked for the same at the same step.
        self.is_live = self.opened.is_live or find_rank().rank > 0
        return self.is_live

    def close(self, error: BaseException | None, *, failed: bool = False) -> None:
        """Close the run, if it was opened here, by how it ended."""
        if not self.is_live:
            return
        self.is_live = self.has_start = False
        log = self.opened
        if not self.is_ours:
            if error is not None:
                log.training.on_error(error)
        elif error is None:
            log.close("failed" if failed else None)
        elif type(error).__name__ == "SIGTERMException":
            log.close("signal")
        else:
            log.__exit__(type(error), error, error.__traceback__)

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep metrics that somebody handed to the logger for the next record."""
        self._metrics.update({str(name): value for name, value in metrics.items()})

    def take_metrics(self) -> dict[str, Any]:
        """Return the metrics that were kept, once."""
        taken, self._metrics = self._metrics, {}
        return taken

    def __getstate__(self) -> dict[str, Any]:
        # Trainers that start processes send their callbacks there. The guard stays here; so does a run that is open.
        state = dict(self.__dict__, guard=None, is_live=False, _metrics={})
        return {**state, "log": None if self.is_ours else self.log}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.guard = Guard() if self.log is None else self.log.guard


def _in_turn(first: Callable[[], Any], second: Callable[[], Any]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _metrics_so_far(trainer: Any) -> dict[str, Any]:
    """Return the metrics as Lightning last put them together.

    Its property of that name puts them together anew, which at some moments gathers them from all ranks: a rank that
    asks alone would wait for the others for ever.
    """
    connector = getattr(trainer, "_logger_connector", None)
    return dict(getattr(connector, "_logged_metrics", None) or {})


def _free_of(metrics: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {str(name): value for name, value in metrics.items() if str(name) not in names}


def _learning_rates(optimizers: Any) -> dict[str, Any]:
    """Return the learning rate of each group of parameters: `lr`, then `lr_1`, `lr_2`, …"""
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return {f"lr_{i}" if i else "lr": group["lr"] for i, group in enumerate(groups) if "lr" in group}


def _hyperparameters(owner: Any) -> dict[str, Any]:
    return {str(name): value for name, value in dict(getattr(owner, "hparams", None) or {}).items()}


def _about_model(pl_module: Any) -> dict[str, Any]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in pl_module.parameters()]
    return {
        "name": type(pl_module).__name__,
        "architecture": type(pl_module).__name__,
        "total_params": sum(size for size, _ in sizes),
        "trainable_params": sum(size for size, trains in sizes if trains),
    }


def _about_training(trainer: Any) -> dict[str, Any]:
    """Return what the start record tells of the set-up; what is not known is None and left out there."""
    batch_size = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
    accumulated = trainer.accumulate_grad_batches
    is_known = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    rates = _learning_rates(trainer.optimizers)
    schedulers = [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return {
        "batch_size": batch_size if is_known else None,
        "gradient_accumulation_steps": accumulated,
        "effective_batch_size": batch_size * accumulated * trainer.world_size if is_known else None,
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers) or None,
        "scheduler": ", ".join(schedulers) or None,
        "learning_rate": rates.get("lr"),
        "max_steps": _max_steps(trainer),
        "max_epochs": trainer.max_epochs if trainer.max_epochs != -1 else None,
        "max_grad_norm": trainer.gradient_clip_val,
        "seed": int(seed) if seed.isdecimal() else None,
        **_about_hardware(trainer),
    }


def _about_hardware(trainer: Any) -> dict[str, Any]:
    return {
        "framework": "lightning",
        "dtype": str(trainer.precision),
        "strategy": type(trainer.strategy).__name__,
        "world_size": trainer.world_size,
    }


def _max_steps(trainer: Any) -> int | None:
    """Return after how many steps the training ends; None where it ends otherwise."""
    if trainer.max_steps != -1:
        return int(trainer.max_steps)
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if epochs in (None, -1) or not isinstance(batches, int):
        return None
    # An epoch's last batches make a step, too, where they are fewer.
    return int(-(-batches // trainer.accumulate_grad_batches) * epochs)


def _path_of_asked(trainer: Any) -> str:
    """Return where a checkpoint goes that somebody asks for: beside the trainer's own."""
    own = getattr(trainer.checkpoint_callback, "dirpath", None)
    folder = own or os.path.join(trainer.default_root_dir, "checkpoints")
    return os.path.join(folder, f"asked-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")


def _saves_elsewhere(trainer: Any) -> bool:
    plugin = getattr(trainer.strategy, "checkpoint_io", None)
    return any(kind.__name__ == "AsyncCheckpointIO" for kind in type(plugin).__mro__)
