"""The logger: what a training script calls.

The calls around parts of a training (`span`, `timed`, `profile`, `capture_errors`, …) are in `logger_timing.py`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import MisuseError, guarded
from toolkit.telemetry.core.lifetime import reason_of
from toolkit.telemetry.core.ranks import Rank
from toolkit.telemetry.core.sink import Sink
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.logger_timing import TimingCalls
from toolkit.telemetry.logger.machine.checkpoint_files import look_at
from toolkit.telemetry.logger.options import TelemetryOptions, options_from_config, run_name_from_config
from toolkit.telemetry.logger.records.call_arguments import event_name, not_the_step, spread
from toolkit.telemetry.logger.records.folded_metrics import (
    MOST_OWN,
    NONE_GIVEN,
    PLAIN,
    PLAIN_OR_NONE,
    WELL_KNOWN,
)
from toolkit.telemetry.logger.records.media import histogram_of, image_file, numbers_of, split_media, table_of
from toolkit.telemetry.logger.records.run_summary import RunSummary
from toolkit.telemetry.logger.records.step_gate import NEVER
from toolkit.telemetry.privacy.masking import mask_table
from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.layout import SAMPLES, TABLES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from toolkit.telemetry.logger.control.requests import Request
    from toolkit.telemetry.logger.options.options_dict import OptionsDict
    from toolkit.telemetry.logger.session.live_run import LiveRun
    from toolkit.telemetry.logger.training import TrainingTelemetry

_L = TypeVar("_L")

CloseReason = Literal["finished", "exit", "stopped", "interrupted", "pruned", "signal", "failed", "replaced"]
"""How a run ends."""


class TelemetryLogger(TimingCalls):
    """Writes one run into its own folder, which can be controlled through a file.

    Making one may raise `OptionsError`, because wrong configuration is best heard of at once. After that no call
    raises but `declare_action` and `declare_knob`, none waits for a disk, a network or a GPU, and none costs more than
    some microseconds. What goes wrong is counted, said once on stderr, and recorded, and so is a call that makes no
    sense, whose values are kept as far as it is clear what they mean. `strict=True` makes such a call raise.
    """

    _training: TrainingTelemetry | None = None

    def __init__(
        self,
        run_name: str | None,
        options: TelemetryOptions | str | os.PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        clock: Clock | None = None,
        rank: Rank | None = None,
        **overrides: Unpack[OptionsDict],
    ) -> None:
        """Set up the run: `TelemetryLogger("greyjacket", "./logs", log_every=10)`.

        `options` may be the log directory alone; single options are given by name. A run without a name is named after
        the time.

        Raises:
            OptionsError: an option is wrong; the message names it, its value and what is allowed.
        """
        chosen = TelemetryOptions.of_call(options, overrides).in_environment(os.environ)
        self._summary: RunSummary | None = None
        self._opened_step = self._counted_step = -1
        """The last step that `log` was given, and the last one that it counted by itself."""
        super().__init__(run_name, chosen, config=config, sinks=sinks, clock=clock, rank=rank)
        self._of_run = self.run_id
        if self._of_run is not None:
            _loggers[self._of_run] = self

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        sinks: Sequence[Sink] = (),
        clock: Clock | None = None,
        **overrides: Unpack[OptionsDict],
    ) -> TelemetryLogger:
        """Return the logger that a training YAML asks for: `TelemetryLogger.from_config(yaml.safe_load(file))`.

        One that does nothing, if the `telemetry:` block is missing or switched off.

        Raises:
            OptionsError: the `telemetry:` block is wrong; the message names the key, its value and what is allowed.
        """
        options = options_from_config(config, **overrides)
        return cls(run_name_from_config(config), options, config=config, sinks=sinks, clock=clock)

    # What the training loop calls.

    def log_step(
        self,
        /,
        global_step: int | None = None,
        train_loss: Any = None,
        lr: Any = None,
        grad_norm: Any = None,
        epoch: Any = None,
        samples_per_sec: Any = None,
        sec_per_step: Any = None,
        gpu_mem_allocated: Any = None,
        gpu_mem_reserved: Any = None,
        cpu_mem_rss_mb: Any = None,
        nan_inf_detected: Any = None,
        **scalars: Any,
    ) -> None:
        """Log one training step, with any scalars: `log.log_step(step, train_loss=loss, lr=lr, grad_norm=norm)`.

        Numbers, numpy's or torch's, on any device. Every `log_every` steps this writes a record; the steps between are
        folded into the next one: of each number the last value, and its least, greatest and mean where it varied. A
        step whose loss is not finite or jumps is written at once.
        """
        target = self._steps
        gate = target.gate
        if target.is_special and not self._takes_step(global_step, scalars):
            return
        if (
            type(global_step) is int
            and gate.last_step < global_step < gate.due_at
            and (train_loss is None or (type(train_loss) is float and gate.low < train_loss < gate.high))
            and (nan_inf_detected is None or nan_inf_detected is False)
        ):
            # In the order of `COLUMNS`.
            given = (
                lr,
                grad_norm,
                epoch,
                samples_per_sec,
                sec_per_step,
                gpu_mem_allocated,
                gpu_mem_reserved,
                cpu_mem_rss_mb,
            )
            # Plain numbers alone are kept: a tensor would keep its graph.
            if PLAIN_OR_NONE.issuperset(map(type, given)) and (
                not scalars or (len(scalars) <= MOST_OWN and PLAIN.issuperset(map(type, scalars.values())))
            ):
                gate.last_step = global_step
                if train_loss is not None:
                    gate.losses.append(train_loss)
                if scalars or train_loss is None or given != NONE_GIVEN:
                    gate.rows.append((*given, scalars or None))
                return
        record = {
            "time": target.clock.wall(),
            "elapsed": target.clock.monotonic() - target.began,
            # Known once it is written; here, so that it is not the last field of a line.
            "seq": 0,
            "global_step": global_step,
            "nan_inf_detected": False if nan_inf_detected is None else nan_inf_detected,
            "train_loss": train_loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "epoch": epoch,
            "samples_per_sec": samples_per_sec,
            "sec_per_step": sec_per_step,
            "gpu_mem_allocated": gpu_mem_allocated,
            "gpu_mem_reserved": gpu_mem_reserved,
            "cpu_mem_rss_mb": cpu_mem_rss_mb,
        }
        for name in WELL_KNOWN:
            if record[name] is None:
                del record[name]
        if (
            target.records is None
            or global_step is None
            or issubclass(type(global_step), dict)
            or issubclass(type(train_loss), dict)
        ):
            self._take_unusual(global_step, record, scalars)
        else:
            target.records.take(global_step, train_loss, record, scalars)

    def write_step(self, /, *given: Any, **fields: Any) -> None:
        """Log a training step as `log_step` does, with its arguments, and write its record, whatever `log_every` is."""
        self._gate.write_next = True
        # So that the step is looked at closely.
        self._gate.due_at = -NEVER
        self.log_step(*given, **fields)

    def log(self, /, data: Mapping[str, Any] | None = None, step: int | None = None, **others: Any) -> None:
        """Write a record of any values by name, as `wandb.log` takes them: `log.log({"loss": 0.5, "sample": image})`.

        Without `step`, `global_step` in `data` is the step. Without both it is the step that was logged last, as
        everywhere, or counted up from the last `log` of its own, as W&B does. A mapping inside becomes
        `outer/inner`. A PIL image, a matplotlib figure or a DataFrame is kept as `log_image` and `log_table` do.
        """
        with self.guard.catch("log"):
            rows: Any = data or {}
            if not isinstance(rows, Mapping):
                raise MisuseError(
                    f"log takes values by name in a mapping, not a {type(rows).__name__}; the call is left out"
                )
            values, images, tables = split_media({**rows, **others})
            given = values.pop("global_step", None)
            if step is None and given is None and type(values.get("step")) is int:
                given = values.pop("step")
            if step is None:
                step = given
            if step is None:
                step = self._step_of_row()
            else:
                self._opened_step = step
            self.write_step(step, **values)
            for name, image in images.items():
                self.log_image(name, image, step=step)
            for name, table in tables.items():
                self.log_table(name, table, step=step)

    def _step_of_row(self) -> int:
        """Return the step of a `log` without one: of what was logged last, or counted up where `log` alone counts."""
        newest = self._gate.last_step
        if newest < 0 or newest == self._counted_step:
            newest = self._last_step() + 1
        elif newest != self._opened_step:
            # The script's own `log_step` counts.
            return newest
        self._counted_step = newest
        return newest

    @guarded
    def log_start(
        self,
        /,
        config: Any = None,
        lora: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Say what is being trained and how: `log.log_start(config=config, lora={"rank": 16}, model={"name": "flux"})`.

        The machine, the packages and the code's state are added here.
        """
        self._live().put_start(
            config=config, lora=lora, model=model, training=training, others=fields, reads_settings=True
        )

    @guarded
    def batch(
        self, /, ids: Any = None, *, batch: Any = None, losses: Any = None, step: int | None = None
    ) -> None:
        """Keep which samples the next step is trained on: `log.batch(ids)`, before its `log_step`.

        `ids` are integers or texts; without them, a fingerprint is taken of what `batch` has in host memory. Several
        calls before a `log_step` are batches of one step. `losses` has the loss of each sample.
        """
        writer = self._live().batches
        if writer is not None:
            from toolkit.telemetry.logger.records.batch_values import losses_of, row_of

            row = row_of(ids, batch)
            if row is None:
                raise MisuseError(
                    "log.batch got neither ids nor a batch that is in host memory; it is left out"
                )
            writer.take(row, step, None if losses is None else losses_of(losses, row.samples))

    def watch_loader(self, loader: _L, /) -> _L:
        """Keep the batches of a torch `DataLoader` by themselves: `for batch in log.watch_loader(loader):`.

        It returns the loader itself, whose order and random numbers stay as they are. With Accelerate, give it the
        prepared one.
        """
        with self.guard.catch("watching a data loader"):
            batches = internals(self).loader_batches()
            if batches is not None:
                batches.follow(loader)
        return loader

    @guarded
    def log_eval(
        self, /, global_step: int | None = None, metrics: Mapping[str, Any] | None = None, **others: Any
    ) -> None:
        """Log an evaluation: `log.log_eval(step, val_loss=0.2)`; metrics may also come as a mapping."""
        global_step, metrics = not_the_step(global_step, metrics, Mapping)
        step = self._step_of("log_eval", global_step, others)
        self._live().put(records.EVAL, {"global_step": step, **spread(metrics), **others})

    @guarded
    def log_epoch(
        self,
        /,
        epoch: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        *,
        global_step: int | None = None,
        **others: Any,
    ) -> None:
        """Log the end of an epoch: `log.log_epoch(3, global_step=step, val_loss=0.2)`, or with a mapping."""
        epoch, metrics = not_the_step(epoch, metrics, Mapping)
        if epoch is None:
            self.guard.report_misuse("log_epoch was called without an epoch; write log_epoch(epoch, …)")
        step = others.pop("step", None) if global_step is None else global_step
        self._live().put(records.EPOCH, {"epoch": epoch, "global_step": step, **spread(metrics), **others})

    @guarded
    def log_checkpoint(
        self,
        /,
        global_step: int | None = None,
        path: str | os.PathLike[str] | None = None,
        is_best: bool = False,
        *,
        seconds: float | None = None,
        **fields: Any,
    ) -> None:
        """Log a checkpoint that was saved: `log.log_checkpoint(step, "out/250.safetensors")`; its size is looked up.

        `path` may also be called `checkpoint_path`, as the record calls it. A call without one is recorded, too.
        """
        if path is None:
            path = fields.pop("checkpoint_path", None)
        global_step, path = not_the_step(global_step, path, (str, os.PathLike))
        known = {
            "global_step": fields.pop("step", None) if global_step is None else global_step,
            "checkpoint_path" if isinstance(path, (str, os.PathLike)) else "x_checkpoint_path": path,
            "bytes": None if path is None else look_at(path, 0.2, self.guard).size,
            "is_best": is_best,
        }
        self._live().put(records.CHECKPOINT, {**known, "seconds": seconds, **fields})

    @guarded
    def state(
        self,
        at: records.StateTrigger,
        /,
        global_step: int | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        model: Any = None,
        scaler: Any = None,
        epoch: Any = None,
        data_position: int | None = None,
        has_generators: bool = True,
        **fields: Any,
    ) -> None:
        """Record the state of the training as it was saved or loaded: `log.state("save", step, optimizer=optimizer)`.

        Give what the checkpoint holds, at the save and after the load: that a resume continues the same training is
        seen from both being equal. `data_position` is how many batches of the epoch are done. `start` is for a session
        that loads nothing, before its first optimizer step. Without `has_generators` the random generators are left
        out, such as after a load, once they were used. Several optimizers or models may be in a list, or by name.
        `fields` are `world_size`, `batch_size`, `accumulation` and whatever else belongs to the state: a value, or an
        object with tensors or a `state_dict()`, such as `ema=…`, of which a norm is written (`ema_norm`) and a hash.
        """
        from toolkit.telemetry.logger.records.training_state import state_fields

        if at not in get_args(records.StateTrigger):
            raise MisuseError(
                f"state was called with {at!r}; its first argument is 'save', 'load' or 'start'"
            )
        run = self._live()
        step = fields.pop("step", None) if global_step is None else global_step
        place = None if checkpoint is None else os.path.basename(os.path.normpath(os.fspath(checkpoint)))
        given = {"epoch": epoch, "data_position": data_position, "world_size": run.world_size}
        held = {"optimizer": optimizer, "scheduler": scheduler, "model": model, "scaler": scaler}
        read = state_fields(self.guard, **held, **fields)
        if not has_generators:
            read = {name: value for name, value in read.items() if not name.startswith("rng")}
        run.put(records.STATE, {"at": at, "global_step": step, "checkpoint": place, **given, **read})

    @guarded
    def log_sample(
        self,
        /,
        global_step: int | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        prompt: str | None = None,
        **fields: Any,
    ) -> None:
        """Log a sample file: `log.log_sample(step, "samples/1.png", prompt="a fox")`.

        One inside the run folder is kept as a path relative to it.
        """
        global_step, path = not_the_step(global_step, path, (str, os.PathLike))
        step = self._step_of("log_sample", global_step, fields)
        shown: Any = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
        if self.run_folder is not None and isinstance(shown, str):
            inside = os.path.relpath(shown, self.run_folder)
            shown = shown if inside.startswith("..") else inside
        named = "path" if isinstance(shown, str) else "x_path"
        self._live().put(records.SAMPLE, {"global_step": step, named: shown, "prompt": prompt, **fields})

    @guarded
    def log_completion(
        self,
        /,
        global_step: int | None = None,
        prompt: Any = None,
        completion: Any = None,
        *,
        chosen: Any = None,
        rejected: Any = None,
        reward: Any = None,
        **more: Any,
    ) -> None:
        """Log what the model answered: `log.log_completion(step, "2 + 2?", "4", reward=1.0)`.

        Or a pair that it learns from, `chosen` and `rejected`: texts, bytes or the messages of a chat. `reward` is a
        number, or a mapping of them by the functions' names; `more` takes whatever else belongs to it: `label`,
        `advantage`, … Of each `interval` steps the first `buffer` are written, and the rest is counted.
        """
        step = self._step_of("log_completion", global_step, more)
        texts = {"prompt": prompt, "completion": completion, "chosen": chosen, "rejected": rejected}
        self._live().completions.put(step, {**texts, "reward": reward, **more})

    @guarded
    def log_image(
        self, /, name: str, image: Any, *, step: int | None = None, caption: str | None = None, **fields: Any
    ) -> None:
        """Keep an image in `samples/`: `log.log_image("fox", image, step=step, caption="a fox")`.

        A path, bytes, a PIL image, a matplotlib figure, an array or a tensor. Arrays of numpy have their channels
        last, tensors of torch first. The file is written on another thread.
        """
        step = self._step_or_last(fields.pop("global_step", None) if step is None else step)
        make = image_file(image)

        def keep(run: LiveRun) -> None:
            data, ending = make()
            path = run.keep_file(SAMPLES, name, step, f".{ending}", data)
            shown = {"prompt": caption or name, "name": name, "caption": caption}
            run.put(records.SAMPLE, {"global_step": step, "path": path, **shown, **fields})

        self._keep_media("image", name, step, keep)

    @guarded
    def log_table(
        self,
        /,
        name: str,
        table: Any,
        *,
        columns: Sequence[str] | None = None,
        step: int | None = None,
        global_step: int | None = None,
    ) -> None:
        """Keep a table as a CSV file in `tables/`: `log.log_table("scores", rows, columns=["name", "score"])`.

        A DataFrame, a list of rows or mappings, or a mapping of columns.
        """
        step = self._step_or_last(global_step if step is None else step)
        names, rows = table_of(table, columns)

        def keep(run: LiveRun) -> None:
            from toolkit.telemetry.runfolder.table.columns import csv_of

            masked, cells = mask_table(names, rows)
            path = run.keep_file(TABLES, name, step, ".csv", csv_of(masked, cells))
            about = {"path": path, "columns": masked, "rows": len(rows)}
            run.put(records.TABLE, {"name": name, "global_step": step, **about})

        self._keep_media("table", name, step, keep)

    @guarded
    def log_histogram(
        self,
        /,
        name: str,
        values: Any,
        *,
        bins: int = 64,
        step: int | None = None,
        global_step: int | None = None,
    ) -> None:
        """Record how values are spread: `log.log_histogram("weights", layer.weight)`.

        An array, a tensor or a list. NaN and infinity are counted apart.
        """
        step = self._step_or_last(global_step if step is None else step)
        taken = numbers_of(values)

        def keep(run: LiveRun) -> None:
            counts, edges, not_finite = histogram_of(taken(), bins)
            about = {"values": counts, "bins": edges, "not_finite": not_finite}
            run.put(records.HISTOGRAM, {"name": name, "global_step": step, **about})

        self._keep_media("histogram", name, step, keep)

    @guarded
    def log_event(self, event: Any, /, **fields: Any) -> None:
        """Write a record of a kind of your own: `log.log_event("new_data", images=120)`."""
        if isinstance(event, Mapping):
            self.guard.report_misuse(
                "log_event got a mapping in the place of its kind; it is kept as 'event'"
            )
            event, fields = "event", {**event, **fields}
        name = event_name(event)[:128] or "event"
        if name in records.OF_THE_LOGGER:
            self.guard.report_misuse(
                f"log_event got {name!r}, a kind of record that the logger writes itself; it is kept as 'x_{name}'"
            )
            name = f"x_{name}"
        if "step" in fields:
            fields.setdefault("global_step", fields["step"])
        self._live().put(name, fields)

    @property
    def summary(self) -> RunSummary:
        """Values that sum up the run, such as the best one: `log.summary["best_val_loss"] = 0.12`."""
        if self._summary is None:
            self._summary = RunSummary(self._log_summary, self.guard)
        return self._summary

    @property
    def training(self) -> TrainingTelemetry:
        """The vocabulary of a training job: `with log.training.training_loop(): …`."""
        if self._training is None:
            began = self._clock.monotonic()
            # Imported between two steps, perhaps, and no part of them.
            from toolkit.telemetry.logger.training import TrainingTelemetry

            self._training = TrainingTelemetry(internals(self), self._clock)
            self._before_end = self._training.write_remaining
            if self._run is not None:
                self._run.steps.speed.leave_out(self._clock.monotonic() - began)
        return self._training

    # What the script can be asked for while it runs.

    def declare_action(self, name: str, callback: Callable[[], object] | None = None) -> None:
        """Say that this script can be asked to do something: `log.declare_action("save", save_checkpoint)`.

        `save`, `sample`, `stop`, `save_and_stop`, or something of its own.

        Raises:
            ValueError: the name is no name.
        """
        if self._rank_control is not None:
            self._rank_control.poller.declare_action(name, callback)

    def declare_knob(
        self,
        name: str,
        kind: type,
        *,
        low: float | None = None,
        high: float | None = None,
        choices: Sequence[Any] | None = None,
        callback: Callable[[Any], object] | None = None,
        value: Any = None,
    ) -> None:
        """Say that a value may be changed while the script runs: `log.declare_knob("lr_scale", float, high=2)`.

        Raises:
            ValueError: name, type or bounds make no sense.
        """
        if self._rank_control is not None:
            self._rank_control.poller.declare_knob(
                name, kind, low=low, high=high, choices=choices, callback=callback, value=value
            )

    def take_requests(self) -> list[Request]:
        """Return what was asked since the last call: `for request in log.take_requests(): …`, with name and value."""
        if self._rank_control is None or not self._rank_control.poller.outbox:
            return []
        return self.guard.call("taking requests", self._rank_control.poller.take_requests) or []

    @property
    def log_every(self) -> int:
        """Steps from one step record to the next, as in force now."""
        return (
            self._rank_control.poller.log_every if self._rank_control is not None else self._options.log_every
        )

    # What the run is, and how it ends.

    @property
    def run_folder(self) -> Path | None:
        """Where the run is written; None where it is not."""
        return self._run.session_folder.folder if self._run is not None else None

    @property
    def run_id(self) -> str | None:
        """What identifies the run across its sessions; None where nothing is written."""
        return self._run.session_folder.manifest.run_id if self._run is not None else None

    @guarded
    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait, at most `timeout_s`, until what was logged is in the files; say whether it got there.

        A large table takes rows with new columns in its own time, and at the end.
        """
        return self._live().flush(timeout_s)

    @guarded
    def sync(self) -> bool:
        """Flush, and force the records onto the disk; say whether a power cut can no longer lose them."""
        return self._live().sync(self._options.close_timeout)

    def close(self, reason: CloseReason | str | None = None, *, error: BaseException | None = None) -> None:
        """End the run: `log.close()`, or `log.close("failed", error=error)`. Returns within `close_timeout`.

        Without a reason it is *stopped* where that was asked for, and else *finished*. A reason of your own is kept as
        it is, and the run counts as *stopped*: only `finished` and `exit` say that it got to its end.
        """
        super().close(reason, error=error)

    def __enter__(self) -> TelemetryLogger:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reason = reason_of(error)
        self.close(reason, error=error if reason == "failed" else None)

    def __repr__(self) -> str:
        step = self._last_step()
        status = "running" if self.is_live else self._status
        at = f"step {step}" if step >= 0 else "no step yet"
        return f"<TelemetryLogger {self.run_name!r}: {self.run_folder or 'no folder'}, {at}, {status}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # Imported when used: a training needs no reader.
        from toolkit.telemetry.runfolder.read_run import shown_in_notebook

        if self.is_live:
            self.flush(1.0)
        return shown_in_notebook(self.run_folder, repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Like a logger of `logging`: within its process a copy of it is itself.
        return _logger_of, (self.run_name, self._options, self._of_run)


_loggers: weakref.WeakValueDictionary[str, TelemetryLogger] = weakref.WeakValueDictionary()
"""The newest logger of each run that this process has written."""
_copies: dict[str, TelemetryLogger] = {}
"""One for each run of another process, so that many copies of it say once that they write nothing."""


def _logger_of(run_name: str, options: TelemetryOptions, run_id: str | None) -> TelemetryLogger:
    """Return the logger of the run; in another process, which must not write it, one that counts its calls."""
    known = None if run_id is None else _loggers.get(run_id) or _copies.get(run_id)
    if known is not None:
        return known
    copy = TelemetryLogger(run_name, options, enabled=False)
    if run_id is not None:
        # Imported only here: a logger that is switched off costs its importer next to nothing.
        from toolkit.telemetry.logger.writing.late_calls import report_call_of_copy

        copy._of_run = run_id  # noqa: SLF001 - one of this class
        copy.guard.on_late_call = partial(report_call_of_copy, copy.guard)
        _copies[run_id] = copy
    return copy
