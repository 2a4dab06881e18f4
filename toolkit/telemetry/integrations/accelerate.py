"""A tracker for Accelerate: records what a script logs with its accelerator, next to any other tracker."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from accelerate.tracking import GeneralTracker

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.logger_setup import (
    LINEAGE_FILE,
    GivenLog,
    log_save_since,
    remember_run,
    run_id_in,
)
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.metric_names import as_number, split, with_known_names
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import training_fields
from toolkit.telemetry.logger.spans.span import NO_FAILURES
from toolkit.telemetry.runfolder.records import StateTrigger
from toolkit.telemetry.timing.names import TRAINING_LOOP


class _Run(FrameworkRun):
    offers_phases = False


class TelemetryTracker(GeneralTracker):  # type: ignore[misc]  # Accelerate has no types
    """A tracker for an accelerator: `Accelerator(log_with=[TelemetryTracker(log_dir="logs")])`.

    Give it a logger, which you close yourself, or options: then it opens a run with `init_trackers` and closes it with
    `end_training`. If `resume_from` is the folder of a checkpoint, that checkpoint's run is resumed. `watch` records
    more than what is logged.

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
        **options: Any,
    ) -> None:
        """Make a tracker; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        super().__init__()
        if log is None or isinstance(log, Mapping):
            # The script itself decides what to log and when: nothing is left out.
            log = {"log_every": 1, **(log or {})}
        self._run = _Run(log, run_name=run_name, **options)
        self._run.run_id = run_id_in(resume_from) or self._run.run_id
        self._resume_from, self._resumed_from_step = resume_from, resumed_from_step
        self._accelerator: Any = None
        self._save_to: str | None = None
        self._patches: MethodPatches | None = None
        self._handles: list[Any] = []
        self._saving: tuple[float, int, str] | None = None
        """When a save began, its step and its folder, until it is recorded."""
        self._loaded: Any = None
        """The folder of a state that is being loaded, until it is recorded."""
        self._has_start = self._has_state = self._can_stop = False
        self._step = resumed_from_step or 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, writes and watches nothing yet.
        run = self._run
        others: dict[str, Any] = {"run_name": run.run_name, "resume_from": self._resume_from}
        others["resumed_from_step"] = self._resumed_from_step
        return partial(type(self), run.given or run.options, **others), ()

    @property
    def guard(self) -> Guard:
        """Counts failures of this tracker."""
        return self._run.guard

    @property
    def is_live(self) -> bool:
        """Whether anything is written: between `start` and `finish`."""
        return self._run.is_live

    # Called by the accelerator.

    @property
    def tracker(self) -> TelemetryLogger | None:
        """The logger, as `accelerator.get_tracker("telemetry", unwrap=True)` returns it; None before there is one."""
        return self._run.log

    def start(self) -> None:
        """Open the run."""
        with self.guard.catch("opening a run for Accelerate"):
            self._open()

    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write the start record, with the given configuration."""
        self._write_start(values)

    @guarded
    def log(self, /, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Write numbers, tensors and texts as those of a step or of an evaluation, by their names."""
        log = self._run.opened
        if not self._has_start:
            self._write_start(None)
        self._record_saved_and_loaded()
        self._begin_loop()
        of_step, of_evaluation = split(values)
        of_step.pop("global_step", None)
        epoch = of_step.pop("epoch", None)
        if step is None:
            step = self._step + 1 if of_step else self._step
        # Some scripts count evaluations in epochs; a script that loads an earlier state goes back.
        self._step = step if of_step else max(self._step, step)
        if of_step or not of_evaluation:
            fields = with_known_names({name: as_number(value) for name, value in of_step.items()})
            self._count_samples(log)
            log.log_step(step, **{**fields, "epoch": epoch})
        if of_evaluation:
            log.log_eval(step, **of_evaluation)

    @guarded
    def log_images(self, /, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Save images in the run folder: Pillow's, or arrays of height, width and channels."""
        for name, images in values.items():
            for image in images if hasattr(images, "__iter__") else [images]:
                self._run.opened.log_image(str(name), image, step=self._step if step is None else step)

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
        self._run.end_run(error)
        # A run is resumed once; the next training of this process begins another.
        self._has_start, self._run.run_id = False, None
        self._resume_from = self._resumed_from_step = None

    # Called by scripts.

    @property
    def should_stop(self) -> bool:
        """Whether a stop was requested; the first read declares that the run can be stopped."""
        if not self.is_live:
            return False
        log = self._run.opened
        if not self._can_stop:
            with self.guard.catch("declaring that the run can be stopped"):
                log.declare_action("stop")
            self._can_stop = True
        return log.should_stop

    def watch(self, accelerator: Any, *, save_to: str | os.PathLike[str] | None = None) -> None:
        """Record checkpoints and loaded states of an accelerator.

        Call it on every rank once everything is prepared. With `save_to` the run accepts save requests: each state is
        saved into its own folder in there.
        """
        if not self._run.options.enabled:
            return
        with self.guard.catch("watching an accelerator"):
            self._unwatch()
            self._accelerator = accelerator
            self._save_to = None if save_to is None else os.fspath(save_to)
            if not accelerator.is_main_process:
                # Accelerate skips trackers on the other ranks, which have to stop and save at the same step.
                self._open()
                self._patches = MethodPatches(self.guard)
                self._patches.follow(
                    accelerator, "log", lambda values, step=None, *_, **__: self.log(values, step)
                )
                self._patches.follow(accelerator, "end_training", lambda *_, **__: self.finish())
            self._handles.append(accelerator.register_save_state_pre_hook(self._begin_save))
            self._handles.append(accelerator.register_load_state_pre_hook(self._begin_load))
            # Private: Accelerate has no public list of what `prepare` was given.
            for optimizer in getattr(accelerator, "_optimizers", ()):
                inner = getattr(optimizer, "optimizer", optimizer)
                # Only torch's own optimizers have such hooks.
                if hasattr(inner, "register_step_pre_hook"):
                    self._handles.append(inner.register_step_pre_hook(self._begin_update))
            if self.is_live:
                self._offer_save()

    # Internal: the run.

    def _open(self) -> None:
        if self.is_live or not self._run.options.enabled:
            return
        self._run.open_run("accelerate", run_id=self._run.run_id)
        if not self._run.is_live:
            return
        self._run.begin_application()
        self._step, self._can_stop, self._has_state = self._resumed_from_step or 0, False, False
        self._offer_save()

    def _offer_save(self) -> None:
        if self._save_to is not None:
            self._run.opened.declare_action("save", self._save_on_request)

    def _begin_loop(self) -> None:
        if not self._run.has_phase(TRAINING_LOOP):
            self._run.begin_loop(self._resumed_from_step or 0)

    def _save_on_request(self) -> None:
        """Save the state between two steps; an exception becomes the answer to the request."""
        assert self._save_to is not None, "else this is not declared"
        self._accelerator.save_state(os.path.join(self._save_to, f"asked-step-{self._step}"))

    def _write_start(self, config: Mapping[str, Any] | None) -> None:
        self._has_start = True
        training = {"framework": "accelerate", "resumed_from_step": self._resumed_from_step}
        training |= training_fields({"train": config})
        # Whether the script's batch is that of one process is unknown.
        training.pop("effective_batch_size", None)
        if self._accelerator is not None:
            training["gradient_accumulation_steps"] = self._accelerator.gradient_accumulation_steps
            training["dtype"] = str(self._accelerator.mixed_precision)
            training["world_size"] = self._accelerator.num_processes
        self._run.opened.log_start(config=config or None, training=training)

    def _count_samples(self, log: TelemetryLogger) -> None:
        """Count a short batch at the end of a data loader by its share of a full one."""
        state = getattr(self._accelerator, "gradient_state", None)
        if state is None or not state.in_dataloader or not state.end_of_dataloader:
            return
        total = getattr(state.active_dataloader, "total_batch_size", None)
        if self._accelerator.gradient_accumulation_steps == 1 and total and 0 < state.remainder < total:
            internals(log).count_samples(state.remainder / total)

    # Internal: hooks of the accelerator and its optimizers.

    @guarded
    def _begin_update(self, *_: Any) -> None:
        self._record_saved_and_loaded()
        if not self._has_state:
            self._put_state("start", None, None)

    @guarded
    def _begin_save(self, _: Any, __: Any, folder: Any) -> None:
        self._record_saved_and_loaded()
        self._saving = time.time(), self._step, os.fspath(folder)
        self._put_state("save", self._step, folder)
        remember_run(folder, self._run.opened)

    def _begin_load(self, _: Any, folder: Any) -> None:
        with self.guard.catch("finding the run of a checkpoint"):
            if self.is_live:
                self._record_saved_and_loaded()
                self._loaded = folder
            elif self._run.run_id is None:
                self._run.run_id = run_id_in(folder)

    def _record_saved_and_loaded(self) -> None:
        """Record what was saved or loaded since the last hook; nothing was trained in between."""
        saving, self._saving = self._saving, None
        loaded, self._loaded = self._loaded, None
        if saving is not None:
            began, step, folder = saving
            times = [file.stat().st_mtime for file in os.scandir(folder) if file.name != LINEAGE_FILE]
            # Without files it failed.
            if times:
                times = [began, *times]
                log_save_since(self._run.opened, step, folder, (began, max(times)), "save_state's hook")
        if loaded is not None:
            # Which step a state is of that is loaded later, its script alone knows.
            is_known = self._step == self._resumed_from_step
            self._put_state("load", self._step if is_known else None, loaded)

    def _put_state(self, at: StateTrigger, step: int | None, path: Any) -> None:
        """Record the state of what was prepared."""
        accelerator, self._has_state = self._accelerator, True
        if not self._has_start:
            self._write_start(None)
        # Private: Accelerate has no public lists of what `prepare` was given.
        loader = next(iter(accelerator._dataloaders), None)  # noqa: SLF001
        samples = getattr(loader, "total_batch_size", None)
        self._run.opened.state(
            at,
            step,
            checkpoint=path,
            model=accelerator._models,  # noqa: SLF001
            optimizer=accelerator._optimizers,  # noqa: SLF001
            scheduler=accelerator._schedulers,  # noqa: SLF001
            scaler=accelerator.scaler,
            precision=accelerator.mixed_precision,
            world_size=accelerator.num_processes,
            batch_size=samples // accelerator.num_processes if isinstance(samples, int) else None,
            accumulation=accelerator.gradient_accumulation_steps,
            # Since a load, the script may have used the generators.
            has_generators=at != "load",
        )

    def _unwatch(self) -> None:
        """Remove the patches and hooks from the accelerator."""
        if self._patches is not None:
            self._patches.undo()
        for handle in self._handles:
            handle.remove()
        self._handles = []
