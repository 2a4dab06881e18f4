"""A tracker for Accelerate: records what a script logs with its accelerator, next to any other tracker."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from accelerate.tracking import GeneralTracker

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.integrations.accelerate_phases import AcceleratorPhases
from toolkit.telemetry.integrations.logger_setup import (
    LINEAGE_FILE,
    GivenLog,
    given_logger,
    log_save_since,
    options_of,
    phases_in,
    remember_run,
    resuming,
    run_id_in,
)
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.metric_names import split, with_known_names
from toolkit.telemetry.integrations.open_phases import OpenPhases, exit_arguments
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.spans.span import NO_FAILURES
from toolkit.telemetry.runfolder.records import StateMoment
from toolkit.telemetry.timing.names import (
    APPLICATION,
    TRAINING_LOOP,
)

# Fields of the start record, and what scripts usually call them.
_SETUP: Final = {
    "learning_rate": ("learning_rate", "lr"),
    "batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "max_steps": ("max_steps", "max_train_steps", "num_training_steps"),
    "optimizer": ("optimizer", "optim"),
    "scheduler": ("lr_scheduler", "lr_scheduler_type", "scheduler"),
    "seed": ("seed",),
}


class TelemetryTracker(GeneralTracker):  # type: ignore[misc]  # Accelerate has no types
    """A tracker for an accelerator: `Accelerator(log_with=[TelemetryTracker(log_dir="logs")])`.

    Give it a logger, which you close yourself, or options: then it opens a run with `init_trackers` and closes it with
    `end_training`. If `resume_from` is the folder of a checkpoint, that checkpoint's run is resumed. `watch` records
    more than what is logged, and with `phases` the parts of each step.

    Nothing it does raises into the script, except invalid options when it is created.
    """

    name = "telemetry"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        log: GivenLog = None,
        *,
        run_name: str = "accelerate",
        resume_from: str | os.PathLike[str] | None = None,
        resumed_from_step: int | None = None,
        phases: bool | None = None,
        **options: Any,
    ) -> None:
        """Make a tracker; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        super().__init__()
        log, self._wants_phases = phases_in(log, phases)
        self._log = given_logger(log, options)
        self._is_ours = self._log is None
        if isinstance(log, TelemetryLogger):
            self._options = options_of({"enabled": log.is_live or find_rank().rank > 0})
            self.guard = log.guard
        else:
            if log is None or isinstance(log, Mapping):
                # The script itself decides what to log and when: nothing is left out.
                log = {"log_every": 1, **(log or {})}
            self._options = options_of(log, **options)
            self.guard = Guard()
        self.is_live = False
        """Whether anything is written: between `start` and `finish`."""
        self.run_name = run_name
        self._run_id = run_id_in(resume_from)
        self._resumed_from_step = resumed_from_step
        self._phases = OpenPhases()
        self._accelerator: Any = None
        self._patches = MethodPatches(self.guard)
        self._handles: list[Any] = []
        self._parts: AcceleratorPhases | None = None
        self._saving: tuple[float, int, str] | None = None
        """When a save began, its step and its folder, until it is recorded."""
        self._loaded: Any = None
        """The folder of a state that is being loaded, until it is recorded."""
        self._has_start = False
        self._step = resumed_from_step or 0
        self._may_go_back = False
        """Whether a state was loaded since the last step, so the next one may be an earlier one."""
        self._can_stop = False
        self._listed = 0
        """How often this tracker is in the accelerator's list; each call is repeated as often."""
        self._repeated: tuple[Any, int] = None, 0
        """The values of the last call, and how often it was repeated."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, writes and watches nothing yet.
        given = self._options if self._is_ours else self._log
        state = {"_run_id": self._run_id, "_resumed_from_step": self._resumed_from_step}
        state |= {"_wants_phases": self._wants_phases}
        return _make_copy, (type(self), given, self.run_name), state

    # Called by the accelerator.

    @property
    def tracker(self) -> TelemetryLogger | None:
        """The logger, as `accelerator.get_tracker("telemetry", unwrap=True)` returns it; None before there is one."""
        return self._log

    def start(self) -> None:
        """Open the run."""
        with self.guard.catch("opening a run for Accelerate"):
            # A second `init_trackers` adds the trackers to the accelerator's list once more.
            self._listed += 1
            self._open()

    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write the start record, with the given configuration."""
        if not self._is_repeated(values):
            self._write_start(values)

    @guarded
    def log(self, /, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Write numbers, tensors and texts as those of a step or of an evaluation, by their names."""
        assert self._log is not None, "only a run that was opened gets here"
        if self._is_repeated(values):
            return
        if not self._has_start:
            self._write_start(None)
        self._record_saved_and_loaded()
        self._begin_loop()
        values = {str(name): value for name, value in values.items()}
        of_step, of_evaluation = split(
            {name: value for name, value in values.items() if name != "global_step"}
        )
        epoch = of_step.pop("epoch", None)
        if step is None:
            step = self._step + 1 if of_step else self._step
        # Some scripts count evaluations in epochs.
        self._step = step if self._may_go_back and of_step else max(self._step, step)
        self._may_go_back = self._may_go_back and not of_step
        if of_step or not of_evaluation:
            fields = with_known_names(of_step)
            if self._parts is not None:
                fields.setdefault("grad_norm", self._parts.grad_norm)
                self._parts.grad_norm = None
            self._count_samples(self._log)
            self._log.log_step(step, **{**fields, "epoch": epoch})
        if of_evaluation:
            self._log.log_eval(step, **of_evaluation)

    @guarded
    def log_images(self, /, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Save images in the run folder: Pillow's, or arrays of height, width and channels."""
        assert self._log is not None, "only a run that was opened gets here"
        for name, images in values.items():
            for image in images if hasattr(images, "__iter__") else [images]:
                self._log.log_image(str(name), image, step=self._step if step is None else step)

    def finish(self) -> None:
        """Close the run: as failed if an exception is being raised or handled."""
        error = sys.exc_info()[1]
        if isinstance(error, NO_FAILURES):
            error = None
        if error is None and self.is_live:
            with self.guard.catch("recording the last checkpoint"):
                self._record_saved_and_loaded()
        with self.guard.catch("restoring Accelerate's methods"):
            self._unwatch()
        with self.guard.catch("ending the phases of a training"):
            self._phases.end_all(error)
        with self.guard.catch("closing the run of Accelerate"):
            if self.is_live and self._is_ours and self._log is not None:
                self._log.__exit__(*exit_arguments(error))
        self.is_live = self._has_start = False
        self._resumed_from_step, self._listed = None, 0

    # Called by scripts.

    @property
    def should_stop(self) -> bool:
        """Whether a stop was requested; the first read declares that the run can be stopped."""
        if not self.is_live or self._log is None:
            return False
        if not self._can_stop:
            with self.guard.catch("declaring that the run can be stopped"):
                self._log.declare_action("stop")
            self._can_stop = True
        return self._log.should_stop

    def watch(self, accelerator: Any, *, save_to: str | os.PathLike[str] | None = None) -> None:
        """Record checkpoints and loaded states of an accelerator, and with `phases` the parts of each step.

        Call it on every rank once everything is prepared. With `save_to` the run accepts save requests: each state is
        saved into its own folder in there.
        """
        if not self._options.enabled:
            return
        with self.guard.catch("watching an accelerator"):
            self._unwatch()
            self._accelerator = accelerator
            if not accelerator.is_main_process:
                # Accelerate skips trackers on the other ranks, which have to stop and save at the same step.
                self._open()
                self._patches.around(accelerator, "log", before=self._log_other_rank)
                self._patches.around(accelerator, "end_training", before=lambda *_, **__: self.finish())
            self._handles.append(accelerator.register_save_state_pre_hook(self._begin_save))
            self._handles.append(accelerator.register_load_state_pre_hook(self._begin_load))
            if save_to is not None:
                self._save_to = os.fspath(save_to)
                self._declare_save()
            # Private: Accelerate has no public list of what `prepare` was given.
            for optimizer in getattr(accelerator, "_optimizers", ()):
                inner = getattr(optimizer, "optimizer", optimizer)
                # Only torch's own optimizers have such hooks.
                if hasattr(inner, "register_step_pre_hook"):
                    self._handles.append(inner.register_step_pre_hook(self._begin_update))
                    if self._wants_phases:
                        self._handles.append(inner.register_step_post_hook(self._end_update))
            self._add_parts()

    # Internal: the run.

    _save_to: str | None = None
    _awaits_state = False
    """Whether no state was recorded yet since the run was opened."""

    def _open(self) -> None:
        if self.is_live or not self._options.enabled:
            return
        if self._is_ours:
            # A run is resumed once; the next training of this process begins another.
            run_id, self._run_id = self._run_id, None
            self._log = TelemetryLogger(self.run_name, resuming(self._options, run_id))
            self.guard = self._patches.guard = self._log.guard
        assert self._log is not None, "it was given or just created"
        self.is_live = self._log.is_live or find_rank().rank > 0
        if self._is_ours and self.is_live:
            self._phases.begin(APPLICATION, self._log.training.application())
        self._step, self._may_go_back = self._resumed_from_step or 0, False
        self._can_stop, self._awaits_state = False, True
        self._declare_save()
        self._add_parts()

    def _add_parts(self) -> None:
        accelerator, log = self._accelerator, self._log
        if self._wants_phases and self._parts is None and accelerator is not None and log is not None:
            self._parts = AcceleratorPhases(accelerator, log, self._phases, self._begin_loop)

    def _begin_loop(self) -> None:
        if self._log is not None and not self._phases.has(TRAINING_LOOP):
            loop = self._log.training.training_loop(train_iterations_start=self._resumed_from_step or 0)
            self._phases.begin(TRAINING_LOOP, loop)

    def _is_repeated(self, values: Any) -> bool:
        """Return whether the accelerator already passed these values in the same call."""
        before, times = self._repeated
        is_repeated = before is values and times + 1 < self._listed
        self._repeated = values, times + 1 if is_repeated else 0
        return is_repeated

    def _declare_save(self) -> None:
        if self._save_to is not None and self.is_live and self._log is not None:
            self._log.declare_action("save", self._save_on_request)

    def _save_on_request(self) -> None:
        """Save the state between two steps; an exception becomes the answer to the request."""
        assert self._save_to is not None, "else this is not declared"
        self._accelerator.save_state(os.path.join(self._save_to, f"asked-step-{self._step}"))

    def _write_start(self, config: Mapping[str, Any] | None) -> None:
        assert self._log is not None, "only a run that was opened gets here"
        self._has_start = True
        training = {"framework": "accelerate", "resumed_from_step": self._resumed_from_step}
        training |= _setup_in(config or {})
        if self._accelerator is not None:
            training["gradient_accumulation_steps"] = self._accelerator.gradient_accumulation_steps
            training["dtype"] = str(self._accelerator.mixed_precision)
            training["world_size"] = self._accelerator.num_processes
        self._log.log_start(config=config or None, training=training)

    def _count_samples(self, log: TelemetryLogger) -> None:
        """Count a short batch at the end of a data loader by its share of a full one."""
        state = getattr(self._accelerator, "gradient_state", None)
        if state is None or not state.in_dataloader or not state.end_of_dataloader:
            return
        total = getattr(state.active_dataloader, "total_batch_size", None)
        if self._accelerator.gradient_accumulation_steps == 1 and total and 0 < state.remainder < total:
            internals(log).count_samples(state.remainder / total)

    # Internal: hooks of the accelerator and its optimizers.

    def _log_other_rank(self, values: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any) -> None:
        self.log(values, step)

    @guarded
    def _begin_update(self, *_: Any) -> None:
        self._record_saved_and_loaded()
        if self._awaits_state:
            self._put_state("start", None, None)
        if self._parts is not None:
            self._parts.begin_update()

    @guarded
    def _end_update(self, *_: Any) -> None:
        if self._parts is not None:
            self._parts.end_update()

    @guarded
    def _begin_save(self, _: Any, __: Any, folder: Any) -> None:
        assert self._log is not None, "only a run that was opened gets here"
        self._record_saved_and_loaded()
        self._saving = time.time(), self._step, os.fspath(folder)
        self._put_state("save", self._step, folder)
        remember_run(folder, self._log)

    def _begin_load(self, _: Any, folder: Any) -> None:
        with self.guard.catch("finding the run of a checkpoint"):
            if self.is_live:
                self._record_saved_and_loaded()
                self._loaded = folder
            self._may_go_back = True
            if self._run_id is None and not self.is_live:
                self._run_id = run_id_in(folder)

    def _record_saved_and_loaded(self) -> None:
        """Record what was saved or loaded since the last hook; nothing was trained in between."""
        assert self._log is not None, "only a run that was opened gets here"
        saving, self._saving = self._saving, None
        loaded, self._loaded = self._loaded, None
        if saving is not None:
            began, step, folder = saving
            times = [file.stat().st_mtime for file in os.scandir(folder) if file.name != LINEAGE_FILE]
            # Without files it failed.
            if times:
                ended = max(began, *times)
                log_save_since(self._log, step, folder, (began, ended), "save_state's hook", is_best=False)
        if loaded is not None:
            # Which step a state is of that is loaded later, its script alone knows.
            is_known = self._step == self._resumed_from_step
            self._put_state("load", self._step if is_known else None, loaded)

    def _put_state(self, at: StateMoment, step: int | None, path: Any) -> None:
        """Record the state of what was prepared."""
        accelerator, self._awaits_state = self._accelerator, False
        assert self._log is not None, "only a run that was opened gets here"
        if not self._has_start:
            self._write_start(None)
        # Private: Accelerate has no public lists of what `prepare` was given.
        loader = next(iter(accelerator._dataloaders), None)  # noqa: SLF001
        samples = getattr(loader, "total_batch_size", None)
        self._log.state(
            at,
            step,
            checkpoint=path,
            model=accelerator._models,  # noqa: SLF001
            optimizer=accelerator._optimizers,  # noqa: SLF001
            scheduler=accelerator._schedulers,  # noqa: SLF001
            scaler=accelerator.scaler,
            world_size=accelerator.num_processes,
            batch_size=samples // accelerator.num_processes if isinstance(samples, int) else None,
            accumulation=accelerator.gradient_accumulation_steps,
            # Since a load, the script may have used the generators.
            has_generators=at != "load",
        )

    def _unwatch(self) -> None:
        """Remove the patches and hooks from the accelerator."""
        self._patches.undo()
        if self._parts is not None:
            self._parts.stop()
            self._parts = None
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _make_copy(
    kind: type[TelemetryTracker], given: TelemetryLogger | TelemetryOptions, run_name: str
) -> TelemetryTracker:
    return kind(given, run_name=run_name)


def _setup_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training setup in a configuration, by the names that scripts usually use."""
    found = {
        ours: next((config[name] for name in names if name in config), None) for ours, names in _SETUP.items()
    }
    return {name: value for name, value in found.items() if value is not None}
