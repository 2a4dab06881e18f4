"""A tracker for Accelerate: what a script logs with its accelerator goes into a run, beside any other tracker."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from accelerate.tracking import GeneralTracker

from toolkit.core.guard import Guard, guarded
from toolkit.core.ranks import find_rank
from toolkit.telemetry.integrations.metric_names import split, with_known_names
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.integrations.opening import GivenLog, options_of, remember_run, run_id_in
from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods
from toolkit.telemetry.integrations.safe_block import SafeBlock
from toolkit.telemetry.integrations.stand_in import stand_in_for
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import OptionsError, TelemetryOptions
from toolkit.telemetry.spans.span import NO_FAILURES
from toolkit.timing.names import APPLICATION, FORWARD, OPTIMIZER_UPDATE, TRAINING_ITERATION, TRAINING_LOOP

# What scripts call the parts of their set-up, in the words of the start record.
_SET_UP: Final = {
    "learning_rate": ("learning_rate", "lr"),
    "batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "max_steps": ("max_steps", "max_train_steps", "num_training_steps"),
    "optimizer": ("optimizer", "optim"),
    "scheduler": ("lr_scheduler", "lr_scheduler_type", "scheduler"),
    "seed": ("seed",),
}
_NO_FILE_NAME: Final = re.compile(r"[^\w.-]+")


class TelemetryTracker(GeneralTracker):  # type: ignore[misc]  # Accelerate has no types
    """A tracker to be given to an accelerator: `Accelerator(log_with=[TelemetryTracker(log_dir="logs")])`.

    Give it the logger of the run, which then stays yours to close; or the options of one, and it opens a run with
    `init_trackers` and closes it with `end_training`. Where `resume_from` is the folder of a checkpoint, the run that
    it is from goes on. `watch` makes it see more than what is logged.

    Nothing it does raises into the script, apart from wrong options when it is made.
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
        """Make a tracker; no folder is made yet.

        Raises:
            OptionsError: an option is unknown or wrong.
        """
        super().__init__()
        self._is_ours = not isinstance(log, TelemetryLogger)
        if isinstance(log, TelemetryLogger):
            if options:
                raise OptionsError(
                    f"a logger was given together with options {sorted(options)}: give one of the two"
                )
            self._options = options_of({"enabled": log.is_live or find_rank().rank > 0})
            self._log: TelemetryLogger | None = log
            self.guard = log.guard
        else:
            if log is None or isinstance(log, Mapping):
                # The script itself decides what is logged when: nothing of that is left out.
                log = {"log_every": 1, **(log or {})}
            self._options = options_of(log, **options)
            self._log = None
            self.guard = Guard()
        self.is_live = False
        """Whether anything is written: not before `start`, nor after `finish`."""
        self.run_name = run_name
        self._run_id = run_id_in(resume_from)
        self._resumed_from_step = resumed_from_step
        self._parts = OpenParts()
        self._accelerator: Any = None
        self._replaced = ReplacedMethods()
        self._handles: list[Any] = []
        self._has_start = False
        self._step = resumed_from_step or 0
        self._may_go_back = False
        """Whether a state was loaded since the last step, so that the next one may be an earlier one."""
        self._grad_norm: Any = None
        self._can_stop = False
        self._places = 0
        """How often the accelerator has this tracker in its list, where each call comes as often."""
        self._repeated: tuple[Any, int] = None, 0
        """What the last call brought, and how often it has come again."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, writes and watches nothing yet: the run that is open is not its own.
        given = self._options if self._is_ours else self._log
        state = {"_run_id": self._run_id, "_resumed_from_step": self._resumed_from_step}
        return _make_again, (type(self), given, self.run_name), state

    # What the accelerator calls.

    @property
    def tracker(self) -> TelemetryLogger | None:
        """The logger of the run, as `accelerator.get_tracker("telemetry", unwrap=True)` returns it; None before."""
        return self._log

    def start(self) -> None:
        """Open the run."""
        with self.guard.catch("opening a run for Accelerate"):
            # A second `init_trackers` of one accelerator puts its trackers into its list once more.
            self._places += 1
            self._open()

    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write the start record, with the configuration that was given."""
        if not self._has_come_before(values):
            self._write_start(values)

    @guarded
    def log(self, /, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Write values, as those of a step or of an evaluation by their names: numbers, tensors and texts."""
        assert self._log is not None, "only a run that was opened gets here"
        if self._has_come_before(values):
            return
        if not self._has_start:
            self._write_start(None)
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
            fields.setdefault("grad_norm", self._grad_norm)
            self._grad_norm = None
            self._count_samples(self._log)
            self._log.log_step(step, **{**fields, "epoch": epoch})
        if of_evaluation:
            self._log.log_eval(step, **of_evaluation)

    @guarded
    def log_images(self, /, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Put images into the run folder as PNG files: Pillow's, or arrays of bytes with height, width and colours."""
        assert self._log is not None, "only a run that was opened gets here"
        folder = self._log.run_folder
        if folder is None:
            return
        step = self._step if step is None else step
        for name, images in values.items():
            for i, image in enumerate(images if hasattr(images, "__iter__") else [images]):
                path = folder / "samples" / f"{_NO_FILE_NAME.sub('_', str(name))}_{step:09d}_{i}.png"
                path.parent.mkdir(exist_ok=True)
                _as_picture(image).save(path)
                self._log.log_sample(step, path, prompt=str(name))

    def finish(self) -> None:
        """Close the run: as failed where an exception is on its way, or being handled."""
        error = sys.exc_info()[1]
        if isinstance(error, NO_FAILURES):
            error = None
        told = (type(error), error, error.__traceback__) if error is not None else (None, None, None)
        with self.guard.catch("putting Accelerate's own methods back"):
            self._put_back()
        with self.guard.catch("ending the parts of a training"):
            self._parts.end_all(error)
        with self.guard.catch("closing the run of Accelerate"):
            if self.is_live and self._is_ours and self._log is not None:
                self._log.__exit__(*told)
        self.is_live = self._has_start = False
        self._resumed_from_step, self._places = None, 0

    # What a script calls that wants more.

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked the run to stop; a script that reads this between steps is one that can be asked."""
        if not self.is_live or self._log is None:
            return False
        if not self._can_stop:
            with self.guard.catch("declaring that the run can be stopped"):
                self._log.declare_action("stop")
            self._can_stop = True
        return self._log.should_stop

    def watch(self, accelerator: Any, *, save_to: str | os.PathLike[str] | None = None) -> None:
        """See checkpoints, loaded states, iterations, backward passes, updates and gradient norms of an accelerator.

        Call it on every rank once everything is prepared. With `save_to` the run can be asked to save: the state goes
        into a folder of its own in there.
        """
        if not self._options.enabled:
            return
        with self.guard.catch("watching an accelerator"):
            self._put_back()
            self._accelerator = accelerator
            replace = {
                "save_state": self._timed_save,
                "load_state": self._timed_load,
                "backward": self._timed_backward,
                "clip_grad_norm_": self._noting_norm,
                "accumulate": self._timed_accumulate,
            }
            if not accelerator.is_main_process:
                # Accelerate leaves trackers out on the other ranks; they are to stop and save at the same step.
                self._open()
                replace |= {"log": self._logging_steps, "end_training": self._finishing}
            for name, make in replace.items():
                original = getattr(accelerator, name)
                self._replaced.put(accelerator, name, stand_in_for(original, make(original)))
            self._handles.append(accelerator.register_load_state_pre_hook(self._note_loaded))
            if save_to is not None:
                self._save_to = os.fspath(save_to)
                self._declare_save()
            for optimizer in getattr(accelerator, "_optimizers", ()):
                inner = getattr(optimizer, "optimizer", optimizer)
                # Those that are not torch's own have no such hooks.
                if hasattr(inner, "register_step_pre_hook"):
                    self._handles.append(inner.register_step_pre_hook(self._begin_update))
                    self._handles.append(inner.register_step_post_hook(self._end_update))

    # Within: the run.

    _save_to: str | None = None

    def _open(self) -> None:
        if self.is_live or not self._options.enabled:
            return
        if self._is_ours:
            # A run that goes on does so once; the next training of this process begins another.
            options, run_id, self._run_id = self._options, self._run_id, None
            if run_id is not None and options.run_id is None:
                options = options.changed(run_id=run_id)
            self._log = TelemetryLogger(self.run_name, options)
            self.guard = self._log.guard
        assert self._log is not None, "it was given, or has just been made"
        self.is_live = self._log.is_live or find_rank().rank > 0
        if self._is_ours and self.is_live:
            self._parts.begin(APPLICATION, self._log.training.application())
        self._step, self._may_go_back, self._grad_norm = self._resumed_from_step or 0, False, None
        self._can_stop = False
        self._declare_save()

    def _has_come_before(self, values: Any) -> bool:
        """Return whether the accelerator has brought this in the same call, for another place in its list."""
        before, times = self._repeated
        comes_again = before is values and times + 1 < self._places
        self._repeated = values, times + 1 if comes_again else 0
        return comes_again

    def _declare_save(self) -> None:
        if self._save_to is not None and self.is_live and self._log is not None:
            self._log.declare_action("save", self._save_as_asked)

    def _save_as_asked(self) -> None:
        """Save the state, between two steps; whatever it raises is the answer to whoever asked."""
        assert self._save_to is not None, "else this is not declared"
        self._accelerator.save_state(os.path.join(self._save_to, f"asked-step-{self._step}"))

    def _write_start(self, config: Mapping[str, Any] | None) -> None:
        assert self._log is not None, "only a run that was opened gets here"
        self._has_start = True
        training = {"framework": "accelerate", "resumed_from_step": self._resumed_from_step}
        training |= _set_up_in(config or {})
        if self._accelerator is not None:
            training["gradient_accumulation_steps"] = self._accelerator.gradient_accumulation_steps
            training["dtype"] = str(self._accelerator.mixed_precision)
            training["world_size"] = self._accelerator.num_processes
        self._log.log_start(config=config or None, training=training)

    def _count_samples(self, log: TelemetryLogger) -> None:
        """Say so where the batch that was just trained on is the last, short one of its data loader."""
        state = getattr(self._accelerator, "gradient_state", None)
        if state is None or not state.in_dataloader or not state.end_of_dataloader:
            return
        total = getattr(state.active_dataloader, "total_batch_size", None)
        if self._accelerator.gradient_accumulation_steps == 1 and total and 0 < state.remainder < total:
            log.count_samples(state.remainder / total)

    def _begin_loop(self) -> None:
        if self._log is not None and not self._parts.has(TRAINING_LOOP):
            loop = self._log.training.training_loop(train_iterations_start=self._resumed_from_step or 0)
            self._parts.begin(TRAINING_LOOP, loop)

    # Within: what is put around an accelerator's methods. What these return and raise stays their own.

    def _timed_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("output_dir")
            step, began = self._step, time.perf_counter()
            path = self._within("checkpoint_save", (step, given), partial(save, *args, **kwargs))
            seconds = time.perf_counter() - began
            with self.guard.catch("telling of a checkpoint of Accelerate's"):
                if self.is_live and self._log is not None and path is not None:
                    self._log.log_checkpoint(step, path, seconds=seconds)
                    remember_run(path, self._log)
            return path

        return timed

    def _timed_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            return self._within("checkpoint_load", (), partial(load, *args, **kwargs))

        return timed

    def _timed_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._parts_end(FORWARD)
            return self._within("backward", (), partial(backward, *args, **kwargs))

        return timed

    def _noting_norm(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            # None where gradients are still being accumulated.
            norm = clip(*args, **kwargs)
            self._grad_norm = norm if norm is not None else self._grad_norm
            return norm

        return noting

    def _timed_accumulate(self, accumulate: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def timed(*models: Any) -> Iterator[Any]:
            self._begin_batch()
            try:
                with accumulate(*models) as given:
                    yield given
            except BaseException as error:
                with self.guard.catch("ending an iteration that failed"):
                    self._parts.end_all(error, within=TRAINING_LOOP)
                raise
            self._end_batch()

        return timed

    def _logging_steps(self, log: Callable[..., Any]) -> Callable[..., Any]:
        def logging(values: Mapping[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> Any:
            self.log(values, step)
            return log(values, step, *args, **kwargs)

        return logging

    def _finishing(self, end: Callable[..., Any]) -> Callable[..., Any]:
        def ending(*args: Any, **kwargs: Any) -> Any:
            self.finish()
            return end(*args, **kwargs)

        return ending

    def _within(self, name: str, arguments: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Call something with a part of that name around it."""
        if not self.is_live or self._log is None:
            return call()
        make = getattr(self._log.training, name)
        with SafeBlock(self.guard, lambda: make(*arguments)):
            return call()

    @guarded
    def _begin_batch(self) -> None:
        assert self._log is not None, "only a run that was opened gets here"
        self._begin_loop()
        if not self._parts.has(TRAINING_ITERATION):
            self._parts.begin(TRAINING_ITERATION, self._log.training.training_iteration())
        self._parts.begin(FORWARD, self._log.training.forward())

    @guarded
    def _end_batch(self) -> None:
        self._parts.end(OPTIMIZER_UPDATE, FORWARD)
        # Gradients of further batches are still to be added where they are not synchronised.
        if self._accelerator.sync_gradients:
            self._parts.end(TRAINING_ITERATION)

    @guarded
    def _begin_update(self, *_: Any) -> None:
        assert self._log is not None, "only a run that was opened gets here"
        self._parts.begin(OPTIMIZER_UPDATE, self._log.training.optimizer_update())

    @guarded
    def _end_update(self, *_: Any) -> None:
        self._parts.end(OPTIMIZER_UPDATE)

    @guarded
    def _parts_end(self, name: str) -> None:
        self._parts.end(name)

    def _note_loaded(self, _: Any, folder: Any) -> None:
        with self.guard.catch("finding the run of a checkpoint"):
            self._may_go_back = True
            if self._run_id is None and not self.is_live:
                self._run_id = run_id_in(folder)

    def _put_back(self) -> None:
        """Let the accelerator use its own methods again, unless somebody has put something else there since."""
        self._replaced.put_back()
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _make_again(
    kind: type[TelemetryTracker], given: TelemetryLogger | TelemetryOptions, run_name: str
) -> TelemetryTracker:
    return kind(given, run_name=run_name)


def _set_up_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration says of the set-up, by the names that scripts usually have for it."""
    found = {
        ours: next((config[name] for name in names if name in config), None)
        for ours, names in _SET_UP.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _as_picture(image: Any) -> Any:
    if hasattr(image, "save"):
        return image
    from PIL import Image

    return Image.fromarray(image)
