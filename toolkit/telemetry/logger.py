"""The logger: what a training script calls."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from toolkit.core.clock import Clock, SystemClock
from toolkit.core.decorators import hint_at_missing, wrap_calls
from toolkit.core.guard import Guard, MisuseError, guarded
from toolkit.core.lifetime import (
    CloseOnce,
    close_at_exit,
    do_not_close_at_exit,
    is_interactive,
    process_ends,
    reason_of,
)
from toolkit.core.ranks import Rank, find_rank, is_chosen, local_rank
from toolkit.core.run_context import RunContext, RunEvents
from toolkit.core.sink import Sink
from toolkit.mirrors.registry import missing_packages
from toolkit.privacy.configured_secrets import keep_secrets_of
from toolkit.privacy.masking import mask_table, without_secrets
from toolkit.privacy.secret_shapes import mask_text
from toolkit.runfolder import records
from toolkit.runfolder.layout import SAMPLES, TABLES
from toolkit.runfolder.table.columns import csv_of
from toolkit.telemetry.machine.checkpoint_files import look_at
from toolkit.telemetry.options import (
    OptionsError,
    TelemetryOptions,
    options_from_config,
    run_name_from_config,
)
from toolkit.telemetry.records.call_arguments import event_name, fields_by_name, not_the_step, spread
from toolkit.telemetry.records.folded_metrics import MOST_OWN
from toolkit.telemetry.records.media import (
    MOST_BINS,
    histogram_of,
    image_file,
    snapshot,
    split_media,
    table_of,
)
from toolkit.telemetry.records.run_summary import RunSummary
from toolkit.telemetry.records.step_gate import NEVER, StepGate
from toolkit.telemetry.records.step_taker import NO_STEPS, StepTaker, silent_steps
from toolkit.telemetry.spans.span import NO_SPAN, AnySpan, FoldedSpan

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from toolkit.telemetry.control.rank_control import RankControl
    from toolkit.telemetry.control.requests import Request
    from toolkit.telemetry.control.silent_rank import SilentRank
    from toolkit.telemetry.errors.capture import ErrorCapture
    from toolkit.telemetry.live_run import LiveRun
    from toolkit.telemetry.options.options_dict import OptionsDict
    from toolkit.telemetry.records.completions.recorder import CompletionRecorder
    from toolkit.telemetry.spans.profiling import Profiling
    from toolkit.telemetry.spans.recorder import SpanRecorder
    from toolkit.telemetry.spans.totals import SpanTimes
    from toolkit.telemetry.training import TrainingTelemetry
    from toolkit.telemetry.writing.announcement import Announcer
    from toolkit.telemetry.writing.session_folder import SessionFolder

_F = TypeVar("_F", bound=Callable[..., Any])

CloseReason = Literal["finished", "exit", "stopped", "interrupted", "pruned", "signal", "failed", "replaced"]
"""How a run ends."""

_STATUS_OF: Final[Mapping[str, str]] = {
    "finished": "finished",
    "exit": "finished",
    "stopped": "stopped",
    "interrupted": "stopped",
    "pruned": "stopped",
    "signal": "stopped",
    "failed": "failed",
}


_WHERE_THE_FORK_IS: Final = (
    "the logger of ai-toolkit's telemetry fork is in toolkit.telemetry.compat.fork, with all its calls"
)
_OPTIONS_OF_THE_FORK: Final = frozenset({"enable_tensorboard", "enable_wandb"})
_INSTEAD_OF_THE_FORKS: Final = {
    "check_control_file": f"requests are applied without it, or are in take_requests(); {_WHERE_THE_FORK_IS}",
    "log_control_change": f"each change is recorded by itself; {_WHERE_THE_FORK_IS}",
    "run_log_dir": f"it is run_folder; {_WHERE_THE_FORK_IS}",
    "jsonl_path": f"it is run_folder / 'metrics.jsonl'; {_WHERE_THE_FORK_IS}",
    "csv_path": f"it is run_folder / 'metrics.csv'; {_WHERE_THE_FORK_IS}",
    "control_path": f"it is run_folder / 'control.json'; {_WHERE_THE_FORK_IS}",
    **dict.fromkeys(("enable_tensorboard", "enable_wandb", "tb_writer", "wandb_run"), _WHERE_THE_FORK_IS),
}
"""Hints for names that only the fork's logger has."""

_MOST_EARLY: Final = 100
_at_prompt: weakref.WeakValueDictionary[tuple[str, str, int], TelemetryLogger] = weakref.WeakValueDictionary()
"""The newest logger of each name and log directory that a thread has made in a notebook or at a prompt."""
_SHUT: Final = StepGate()
"""The gate of a logger that could not be set up: no step passes it."""


@hint_at_missing(_INSTEAD_OF_THE_FORKS)
class TelemetryLogger:
    """Writes one run into its own folder, which can be controlled through a file.

    Making one may raise `OptionsError`, because wrong configuration is best heard of at once. After that no call
    raises but `declare_action` and `declare_knob`, none waits for a disk, a network or a GPU, and none costs more than
    some microseconds. What goes wrong is counted, said once on stderr, and recorded, and so is a call that makes no
    sense, whose values are kept as far as it is clear what they mean. `strict=True` makes such a call raise.
    """

    def __init__(
        self,
        run_name: str,
        options: TelemetryOptions | str | os.PathLike[str] | None = None,
        *of_the_fork: Any,
        config: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        clock: Clock | None = None,
        rank: Rank | None = None,
        **overrides: Unpack[OptionsDict],
    ) -> None:
        """Set up the run.

        `options` may also be the log directory alone, as in `TelemetryLogger("greyjacket", "./logs")`.

        Raises:
            OptionsError: an option is wrong; the message names it, its value and what is allowed.
        """
        if of_the_fork or not _OPTIONS_OF_THE_FORK.isdisjoint(overrides):
            raise OptionsError(
                "enable_tensorboard and enable_wandb are tensorboard and wandb here, given by name; "
                f"{_WHERE_THE_FORK_IS}"
            )
        if isinstance(options, (str, os.PathLike)):
            if "log_dir" in overrides:
                raise OptionsError(
                    f"telemetry.log_dir is given twice, as {os.fspath(options)!r} and {overrides['log_dir']!r}"
                )
            overrides = {**overrides, "log_dir": options}
            options = None
        elif options is not None and not isinstance(options, TelemetryOptions):
            raise OptionsError(
                f"the second argument is of the type {type(options).__name__}; it must be the log directory "
                "or TelemetryOptions, and single options are given by name"
            )
        if options is None:
            options = TelemetryOptions.from_mapping({}, **overrides)
        elif overrides:
            options = options.changed(**overrides)
        options = options.in_environment(os.environ)
        self.run_name = "run"
        self.guard = Guard(on_first=self._publish_failure)
        self.is_live = False
        """Whether calls have an effect: not where telemetry is off, on most ranks, in a forked child, once closed."""
        self.ignored = 0
        """Steps logged while the logger was not live."""
        self._options = options
        self._events: RunEvents | None = None
        self._early: list[tuple[str, BaseException]] | None = []
        """What went wrong before there was a run to record it; None once there is one."""
        self._internals = Internals(
            self, self.guard, lambda: self._run, lambda: self._options, self._after_fork_in_child
        )
        self._status = "off"
        self._gate = _SHUT
        self._steps = NO_STEPS
        self._ends: CloseOnce
        self._run: LiveRun | None = None
        self._silent_rank: SilentRank | None = None
        self._rank_control: RankControl | None = None
        self._announcer: Announcer | None = None
        self._training: TrainingTelemetry | None = None
        self._profiling: Profiling | None = None
        self._summary: RunSummary | None = None
        self._profiled: Mapping[str, Callable[[], AbstractContextManager[object]]] = {}
        self._folding: dict[str, SpanTimes] = {}
        self._make_span: Callable[[Any, dict[str, Any]], AnySpan] = _make_no_span
        self._span_recorder: SpanRecorder | None = None
        self.guard.strict, self.guard.quiet = options.strict, options.quiet
        self._clock = clock or SystemClock()
        self._rank = rank
        is_set_up = False
        try:
            with self.guard.catch_except(OptionsError, "setting up the run"):
                self._set_up(run_name, config, sinks)
                is_set_up = True
        finally:
            if not is_set_up:
                # A bug of ours, or a machine at its limits: the training continues, and nothing is logged of it. Or the
                # script was interrupted: it has no logger, so no thread of one may stay.
                self._give_up()

    def _set_up(self, run_name: str, config: Mapping[str, Any] | None, sinks: Sequence[Sink]) -> None:
        self._gate, self._ends = StepGate(), CloseOnce()
        if self._options.mistake:
            self.guard.report_misuse(self._options.mistake)
        keep_secrets_of(self._options, os.environ)
        options = self._options = without_secrets(self._options)
        self.run_name = mask_text(str(run_name))
        clock = self._clock
        rank = self._rank or find_rank()
        if options.enabled:
            for sentence in missing_packages(options, may_send=options.may_send).values():
                self.guard.report_misuse(sentence)
            if is_interactive():
                self._replace_earlier()
        session_folder = self._open_folder(rank, clock) if options.enabled else None
        if session_folder is None:
            self._become_inert()
            if options.enabled and options.control and rank.rank:
                self._follow(rank, clock)
            return
        # Imported only now: a logger that is switched off costs its importer next to nothing.
        from toolkit.telemetry.live_run import LiveRun

        self._events = events = RunEvents()
        context = RunContext(
            clock=clock,
            guard=self.guard,
            events=events,
            run_id=session_folder.manifest.run_id,
            session=session_folder.session.session,
            rank=session_folder.rank,
            began=clock.monotonic(),
        )
        self._run = LiveRun(
            session_folder,
            options,
            config=config,
            sinks=sinks,
            rank=rank,
            gate=self._gate,
            context=context,
            announcer=self._announcer,
        )
        if options.span_options.enabled:
            self._span_recorder = self._run.spans
            self._folding = self._span_recorder.folding
            self._make_span = self._span_recorder.make
        else:
            self._run.spans.is_open = False
        self._rank_control = self._run.rank_control
        among_ranks = self._rank_control is not None and self._rank_control.is_among_ranks
        self._steps = StepTaker(
            self.guard.wrap("log_step", self._run.steps.take),
            self._gate,
            clock=clock,
            began=context.began,
            ranks=self._rank_control if among_ranks else None,
        )
        self.is_live = True
        close_at_exit(
            self,
            in_forked_child=self._after_fork_in_child,
            timeout_s=options.close_timeout,
            disk=session_folder.folder.parent,
        )
        self._run.start()
        early, self._early = self._early or (), None
        for failure in early:
            self._publish_failure(*failure)
        with self.guard.catch("hooking what ends the script"):
            self._run.errors.watch.begin(self._run.errors.recorder)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INSTEAD_OF_THE_FORKS]

    def _give_up(self) -> None:
        run, self._run = self._run, None
        silent_rank, self._silent_rank = self._silent_rank, None
        self._rank_control = self._span_recorder = None
        self._become_inert()
        do_not_close_at_exit(self)
        with self.guard.catch("giving up the run"):
            if run is not None:
                run.close(status="failed", reason="telemetry could not be set up", error=None)
            if silent_rank is not None:
                silent_rank.close()

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        sinks: Sequence[Sink] = (),
        clock: Clock | None = None,
        **overrides: Unpack[OptionsDict],
    ) -> TelemetryLogger:
        """Return the logger that a training YAML asks for, given as a mapping; one that does nothing if it does not.

        Raises:
            OptionsError: the `telemetry:` block is wrong; the message names the key, its value and what is allowed.
        """
        options = options_from_config(config, **overrides)
        name = run_name_from_config(config) or time.strftime("run-%Y%m%d-%H%M%S")
        return cls(name, options, config=config, sinks=sinks, clock=clock)

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
        """Log one training step, with any scalars: numbers, numpy's or torch's, on any device.

        Every `log_every` steps this writes a record; the steps between are folded into the next one: of each number
        the last value, and its least, greatest and mean where it varied. A step whose loss is not finite or jumps is
        written at once.
        """
        # A step without a record usually ends in the first block below. The well-known fields are parameters, because
        # collecting them in a dictionary would cost more than everything else such a step needs. Nothing here can
        # raise: what is called is guarded, or built in.
        steps = self._steps
        gate = steps.gate
        if steps.is_special:
            if steps.ranks is not None:
                with self.guard.catch("agreeing with the other ranks"):
                    steps.ranks.at_step(scalars.get("step") if global_step is None else global_step)
            if not self.is_live:
                self.ignored += 1
                if self._run is not None:
                    self.guard.on_late_call("log_step")
                return
        if (
            type(global_step) is int
            and gate.last_step < global_step < gate.due_at
            and type(train_loss) is float
            and gate.low < train_loss < gate.high
            and (nan_inf_detected is None or nan_inf_detected is False)
        ):
            if (
                lr is None
                and grad_norm is None
                and epoch is None
                and samples_per_sec is None
                and sec_per_step is None
                and gpu_mem_allocated is None
                and gpu_mem_reserved is None
                and cpu_mem_rss_mb is None
                and not scalars
            ):
                gate.last_step = global_step
                gate.losses.append(train_loss)
                return
            if (
                # Plain numbers alone are kept: a tensor would keep its graph. Of the last five a caller mostly gives
                # none, or all.
                (type(lr) is float or lr is None)
                and (type(grad_norm) is float or grad_norm is None)
                and (type(epoch) is int or epoch is None or type(epoch) is float)
                and (not scalars or (len(scalars) <= MOST_OWN and _are_plain(scalars)))
                and (
                    (
                        samples_per_sec is None
                        and sec_per_step is None
                        and gpu_mem_allocated is None
                        and gpu_mem_reserved is None
                        and cpu_mem_rss_mb is None
                    )
                    or (
                        (
                            type(samples_per_sec) is float
                            or samples_per_sec is None
                            or type(samples_per_sec) is int
                        )
                        and (type(sec_per_step) is float or sec_per_step is None or type(sec_per_step) is int)
                        and (
                            type(gpu_mem_allocated) is float
                            or gpu_mem_allocated is None
                            or type(gpu_mem_allocated) is int
                        )
                        and (
                            type(gpu_mem_reserved) is float
                            or gpu_mem_reserved is None
                            or type(gpu_mem_reserved) is int
                        )
                        and (
                            type(cpu_mem_rss_mb) is float
                            or cpu_mem_rss_mb is None
                            or type(cpu_mem_rss_mb) is int
                        )
                    )
                )
            ):
                gate.last_step = global_step
                gate.losses.append(train_loss)
                gate.keep_row(
                    (
                        lr,
                        grad_norm,
                        epoch,
                        samples_per_sec,
                        sec_per_step,
                        gpu_mem_allocated,
                        gpu_mem_reserved,
                        cpu_mem_rss_mb,
                        # An empty dictionary of each step would be as large as its row.
                        scalars or None,
                    )
                )
                return
        # In one piece as far as possible: a dictionary that has to grow costs more.
        if (
            train_loss is not None
            and lr is not None
            and grad_norm is not None
            and epoch is not None
            and samples_per_sec is not None
            and sec_per_step is not None
            and gpu_mem_allocated is not None
            and gpu_mem_reserved is not None
            and cpu_mem_rss_mb is not None
        ):
            record = {
                "time": steps.wall(),
                "elapsed": steps.monotonic() - steps.began,
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
        else:
            record = {
                "time": steps.wall(),
                "elapsed": steps.monotonic() - steps.began,
                # Known once it is written; here, so that it is not the last field of a line.
                "seq": 0,
                "global_step": global_step,
                "nan_inf_detected": False if nan_inf_detected is None else nan_inf_detected,
                "train_loss": train_loss,
            }
            if train_loss is None:
                del record["train_loss"]
            if lr is not None:
                record["lr"] = lr
            if grad_norm is not None:
                record["grad_norm"] = grad_norm
            if epoch is not None:
                record["epoch"] = epoch
            if samples_per_sec is not None:
                record["samples_per_sec"] = samples_per_sec
            if sec_per_step is not None:
                record["sec_per_step"] = sec_per_step
            if gpu_mem_allocated is not None:
                record["gpu_mem_allocated"] = gpu_mem_allocated
            if gpu_mem_reserved is not None:
                record["gpu_mem_reserved"] = gpu_mem_reserved
            if cpu_mem_rss_mb is not None:
                record["cpu_mem_rss_mb"] = cpu_mem_rss_mb
        if global_step is None or type(lr) is dict or type(train_loss) is dict or "metrics" in scalars:
            self._take_unusual(global_step, record, scalars)
        else:
            steps.take(global_step, train_loss, record, scalars)

    def write_step(self, /, *given: Any, **fields: Any) -> None:
        """Log a training step as `log_step` does, with its arguments, and write its record, whatever `log_every` is."""
        self._gate.write_next = True
        # So that the step is looked at closely.
        self._gate.due_at = -NEVER
        self.log_step(*given, **fields)

    @guarded
    def _take_unusual(self, global_step: Any, record: dict[str, Any], scalars: dict[str, Any]) -> None:
        """Take a step that is called `step`, or is missing, or has its metrics in a mapping."""
        if type(record.get("train_loss")) is dict:
            self.guard.report_misuse(
                "log_step got a mapping in the place of the loss; its values are logged under their own names, as by "
                "log_step(step, **metrics)",
                "a mapping as the loss",
            )
        fields = fields_by_name(record, scalars, is_needed=global_step is None)
        if fields is None:
            self._steps.take(global_step, record.get("train_loss"), record, scalars)
            return
        if global_step is None:
            global_step = self._step_of("log_step", None, fields, is_next=True)
        self.log_step(global_step, **fields)

    def _step_of(self, call: str, given: Any, fields: dict[str, Any], *, is_next: bool = False) -> Any:
        """Return the step of a call, which may be called `step`; without one it is the last one, or the next."""
        step = fields.pop("step", None) if given is None else given
        if step is None:
            step = self._last_step(at_least=0) if not is_next else self._last_step() + 1
            self.guard.report_misuse(
                f"{call} was called without a step, and is recorded at step {step}; write {call}(step, …)",
                f"{call} without a step",
            )
        return step

    @guarded
    def count_samples(self, share: float) -> None:
        """Set which share of its usual samples the current step has: for a short last batch.

        `samples_per_sec` is worked out with as many samples a step as the start record says, where this is not called.
        """
        self._live().steps.count_samples(share)

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
        """Say what is being trained and how; the machine, the packages and the code's state are added here."""
        self._live().put_start(
            config=config, lora=lora, model=model, training=training, others=fields, wait_s=2.0
        )

    @guarded
    def log_eval(
        self, /, global_step: int | None = None, metrics: Mapping[str, Any] | None = None, **others: Any
    ) -> None:
        """Log an evaluation, such as `val_loss`; metrics may also come as a mapping."""
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
        """Log the end of an epoch and its metrics, which may also come as a mapping."""
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
        """Log a checkpoint that was saved; its size is looked up.

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
    def log_sample(
        self,
        /,
        global_step: int | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        prompt: str | None = None,
        **fields: Any,
    ) -> None:
        """Log a sample file; one inside the run folder is kept as a path relative to it."""
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
        """Tell what the model answered, or of a pair that it learns from: texts, bytes or the messages of a chat.

        `reward` is a number, or a mapping of them by the functions' names; `more` takes whatever else belongs to it:
        `label`, `advantage`, `reward_diff`, `log_odds_ratio`, … Of each `interval` steps the first `buffer` are
        written, and the rest is counted.
        """
        step = self._step_of("log_completion", global_step, more)
        texts = {"prompt": prompt, "completion": completion, "chosen": chosen, "rejected": rejected}
        self._live().completions.put(step, {**texts, "reward": reward, **more})

    def log(self, /, data: Mapping[str, Any] | None = None, step: int | None = None, **others: Any) -> None:
        """Write a record of any values by name, as `wandb.log` takes them; each call writes one.

        Without `step`, `global_step` in `data` is the step, else the one after the last. A mapping inside becomes
        `outer/inner`. A PIL image, a matplotlib figure or a DataFrame is kept as `log_image` and `log_table` do.
        """
        with self.guard.catch("log"):
            rows: Any = data or {}
            if not isinstance(rows, Mapping):
                raise MisuseError(f"log takes values by name in a mapping, not a {type(rows).__name__}")
            values, images, tables = split_media({**rows, **others})
            given = values.pop("global_step", None)
            if step is None:
                step = (
                    values.pop("step", None) if given is None and type(values.get("step")) is int else given
                )
            if step is None:
                step = self._last_step() + 1
            self.write_step(step, **values)
            for name, image in images.items():
                self.log_image(name, image, step=step)
            for name, table in tables.items():
                self.log_table(name, table, step=step)

    @guarded
    def log_image(
        self, /, name: str, image: Any, *, step: int | None = None, caption: str | None = None, **fields: Any
    ) -> None:
        """Keep an image in `samples/`: a path, bytes, a PIL image, a matplotlib figure, an array or a tensor.

        Arrays of numpy have their channels last, tensors of torch first. The file is written on another thread.
        """
        step = fields.pop("global_step", None) if step is None else step
        step = self._last_step(at_least=0) if step is None else step
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
        """Keep a table as a CSV file in `tables/`: a DataFrame, a list of rows or mappings, a mapping of columns."""
        step = global_step if step is None else step
        step = self._last_step(at_least=0) if step is None else step
        names, rows = table_of(table, columns)

        def keep(run: LiveRun) -> None:
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
        """Record how values are spread: an array, a tensor or a list. NaN and infinity are counted apart."""
        step = global_step if step is None else step
        step = self._last_step(at_least=0) if step is None else step
        taken = snapshot(values)

        def keep(run: LiveRun) -> None:
            counts, edges, not_finite = histogram_of(taken(), max(1, min(int(bins), MOST_BINS)))
            about = {"values": counts, "bins": edges, "not_finite": not_finite}
            run.put(records.HISTOGRAM, {"name": name, "global_step": step, **about})

        self._keep_media("histogram", name, step, keep)

    def _keep_media(self, kind: str, name: str, step: int, keep: Callable[[LiveRun], None]) -> None:
        run = self._live()
        if not run.media.put(f"keeping a {kind}", lambda: keep(run)):
            run.put(records.MEDIA_DROPPED, {"kind": kind, "name": name, "global_step": step})

    def _last_step(self, at_least: int = -1) -> int:
        """Return the newest step that is known: of this session, or of the one that it resumes."""
        earlier = self._run.step_before if self._run is not None else None
        return max(self._gate.last_step, at_least, -1 if earlier is None else earlier)

    @property
    def summary(self) -> RunSummary:
        """Values that sum up the run, such as the best one: `log.summary["best_val_loss"] = 0.12`."""
        if self._summary is None:
            self._summary = RunSummary(self._log_summary, self.guard)
        return self._summary

    @guarded
    def _log_summary(self, values: Mapping[str, Any]) -> None:
        self._live().put(records.SUMMARY, values)

    @guarded
    def log_event(self, event: str, /, **fields: Any) -> None:
        """Write a record of a kind of your own."""
        name = event_name(event)[:128] or "event"
        if name in records.OF_THE_LOGGER:
            self.guard.report_misuse(
                f"log_event got {name!r}, a kind of record that the logger writes itself; it is kept as 'x_{name}'"
            )
            name = f"x_{name}"
        if "step" in fields:
            fields.setdefault("global_step", fields["step"])
        self._live().put(name, fields)

    # Where the time goes.

    def span(self, name: str = "", /, **attributes: Any) -> AnySpan:
        """Return a span to put around a part of the work: `with log.span("encode", images=4):`.

        Short parts of every step (`data_loading`, `forward`, …) are added up on the step records; others get a record
        of their own, inside the span that is open around them. An exception is recorded on the span and raised.
        """
        # A name whose own code runs when it is looked up may fail: it is looked up behind the guard.
        if type(name) is str:
            times = self._folding.get(name)
            if times is not None:
                return FoldedSpan(self._span_recorder, times, attributes)  # type: ignore[arg-type]
        span: AnySpan = NO_SPAN
        if self._span_recorder is not None:
            with self.guard.catch("making a span"):
                span = self._make_span(name, attributes)
        return span

    @guarded(otherwise=NO_SPAN)
    def device_span(self, name: str = "", /, **attributes: Any) -> AnySpan:
        """Return a span that is timed by the GPU's own clock as well, without waiting for it."""
        recorder = self._span_recorder
        return NO_SPAN if recorder is None else recorder.make_on_device(name, attributes)

    def timed(self, name: str | None = None, /, **attributes: Any) -> Callable[[_F], _F]:
        """Return a decorator that puts a span around each call of a function, one that is awaited too."""

        def decorate(function: _F) -> _F:
            timed = function
            with self.guard.catch("timing a function"):
                self._report_class("timed", function)
                inside = getattr(function, "__func__", None) or getattr(function, "fget", None) or function
                called = name or str(getattr(inside, "__qualname__", "call"))
                timed = wrap_calls(function, lambda: self.span(called, **attributes))
            return timed

        return decorate

    def _report_class(self, decorator: str, decorated: object) -> None:
        if isinstance(decorated, type):
            self.guard.report_misuse(
                f"{decorator} decorates functions, methods and properties; the class {decorated.__name__} is left "
                "as it is"
            )

    @overload
    def profile(
        self,
        name_: str | None = None,
        /,
        *,
        name: str | None = None,
        min_duration_ms: float | None = None,
        log_interval: int | None = None,
    ) -> Callable[[_F], _F]: ...

    @overload
    def profile(
        self,
        function: _F,
        /,
        *,
        name: str | None = None,
        min_duration_ms: float | None = None,
        log_interval: int | None = None,
    ) -> _F: ...

    def profile(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        min_duration_ms: float | None = None,
        log_interval: int | None = None,
    ) -> Any:
        """Time each call of a function as `profiling/<Class>.<function>`: `@log.profile` or `@log.profile(…)`.

        Calls shorter than `min_duration_ms` are not counted; of the others the first and each `log_interval`-th is
        logged. What is not given is as the options say.
        """
        if isinstance(function, str):
            function, name = None, function

        def decorate(called: _F) -> _F:
            profiled = called
            with self.guard.catch("profiling a function"):
                self._report_class("profile", called)
                profiling = self._profiles()
                if profiling is not None:
                    profiled = profiling.function(called, name, min_duration_ms, log_interval)
            return profiled

        return decorate if function is None else decorate(function)

    def profile_block(
        self, name: str = "", /, *, min_duration_ms: float | None = None, log_interval: int | None = None
    ) -> AbstractContextManager[object]:
        """Time a block as `profiling/<name>`: `with log.profile_block("forward_pass"):`."""
        known = self._profiled.get(name) if type(name) is str else None
        if known is not None:
            return known()
        return self._profile_block(name, min_duration_ms, log_interval)

    @guarded(otherwise=NO_SPAN)
    def _profile_block(
        self, name: str, min_duration_ms: float | None, log_interval: int | None
    ) -> AbstractContextManager[object]:
        if type(name) is str and not name:
            self.guard.report_misuse("profile_block was called without a name")
        profiling = self._profiles()
        return NO_SPAN if profiling is None else profiling.block(name, min_duration_ms, log_interval)

    def _profiles(self) -> Profiling | None:
        if self._profiling is None and self.is_live and self._run is not None:
            from toolkit.telemetry.spans.profiling import Profiling

            recorder = self._run.spans
            self._profiling = Profiling(
                self._options.profiling_options,
                recorder.times,
                recorder.closed,
                recorder.monotonic,
                self.guard,
            )
            self._profiled = self._profiling.makers
        return self._profiling

    @guarded(otherwise=NO_SPAN)
    def start_span(
        self,
        name: str = "",
        /,
        *,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        parent: AnySpan | str | None = None,
    ) -> AnySpan:
        """Begin a span that is stopped elsewhere: for callbacks, which cannot nest. It may begin in the past."""
        return self._live().spans.start(name, attributes, start_time, parent)

    @guarded
    def current_span(self) -> AnySpan | None:
        """Return the span that is open here, on this thread or in this task."""
        return self._live().spans.innermost()

    @property
    def training(self) -> TrainingTelemetry:
        """The vocabulary of a training job: a span, a callback and the figures for each of its parts."""
        if self._training is None:
            from toolkit.telemetry.training import TrainingTelemetry

            self._training = TrainingTelemetry(internals(self), clock=self._clock)
        return self._training

    @overload
    def capture_errors(self, /) -> ErrorCapture: ...

    @overload
    def capture_errors(self, function: _F, /) -> _F: ...

    def capture_errors(self, function: Any = None, /) -> Any:
        """Return a block, or a decorator, whose exceptions are recorded and raised as usual.

        `with log.capture_errors():`, `@log.capture_errors()` or `@log.capture_errors`, also of what is awaited or
        iterated. An exception that several of them see is one error.
        """
        from toolkit.telemetry.errors.capture import ErrorCapture

        if self.is_live and self._run is not None:
            with self.guard.catch("listening to the output"):
                self._run.errors.watch.listen()
        with self.guard.catch("capturing errors"):
            self._report_class("capture_errors", function)
        capture = ErrorCapture(self._take_error)
        return capture if function is None else capture(function)

    @guarded
    def _take_error(self, error: BaseException) -> None:
        self._live().errors.recorder.take(error, caught_by="capture_errors")

    # Control.

    def declare_action(self, name: str, callback: Callable[[], object] | None = None) -> None:
        """Say that this script can be asked to `save`, `sample`, `stop`, `save_and_stop`, or something of its own.

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
        """Say that this script has a value that may be changed while it runs, within which bounds, and what it is now.

        Raises:
            ValueError: name, type or bounds make no sense.
        """
        if self._rank_control is not None:
            self._rank_control.poller.declare_knob(
                name, kind, low=low, high=high, choices=choices, callback=callback, value=value
            )

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to stop; read it between steps."""
        if self._rank_control is None:
            return False
        poller = self._rank_control.poller
        if poller.stop_asked:
            with self.guard.catch("looking whether to stop"):
                return poller.should_stop
        return poller.has_stopped

    def take_requests(self) -> list[Request]:
        """Return what was asked of the run since the last call: actions by name, knobs with their value."""
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
        """End the run. Returns within `close_timeout`.

        Without a reason it is *stopped* where that was asked for, and else *finished*. A reason of your own is kept as
        it is, and the run counts as *stopped*: only `finished` and `exit` say that it got to its end.
        """
        if self._silent_rank is not None:
            silent_rank, self._silent_rank = self._silent_rank, None
            self._become_inert()
            do_not_close_at_exit(self)
            with self.guard.catch("closing"):
                silent_rank.close()
        with self.guard.catch("ending by a signal"):
            if self._run is not None:
                self._run.errors.watch.wait_for_signal()
        self._close(reason, error)
        if self._run is not None:
            # Another thread may be ending it: a script that is over must not take that one's last records along.
            with self.guard.catch("closing"):
                self._ends.wait(self._options.close_timeout)
            with self.guard.catch("ending by a signal"):
                self._run.errors.watch.wait_for_signal()

    @guarded
    def _close(self, reason: str | None, error: BaseException | None) -> None:
        run = self._live()
        if self._ends.begin():
            try:
                self._end(run, reason, error)
            finally:
                # In this order: a child that is forked in between must not wait for an end that is the parent's.
                self._ends.done()
                do_not_close_at_exit(self)

    def _end(self, run: LiveRun, reason: str | None, error: BaseException | None) -> None:
        with self.guard.catch("finding out why the run ends"):
            reason, error = run.errors.recorder.how_it_ends(reason, error)
        if reason is None:
            reason = "stopped" if self.should_stop else "finished"
        reason = reason if isinstance(reason, str) else f"<{type(reason).__name__}>"
        if self._training is not None:
            with self.guard.catch("writing the last iterations"):
                self._training.close()
        self._become_inert()
        if not process_ends():
            # Threads may log until the very end of a process.
            self.guard.on_late_call = run.late_calls.take
        self._status = _STATUS_OF.get(reason, "stopped")
        for sentence in run.close(status=self._status, reason=reason, error=error):
            self.guard.report("closing", OSError(sentence))

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

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process must not write, so it is one that does nothing.
        return _inert_logger, (self.run_name, self._options)

    def _after_fork_in_child(self) -> None:
        # The threads and files are the parent's.
        self._become_inert()
        self._rank_control = None
        # A close that is under way is the parent's; do not wait for it here.
        self._ends = CloseOnce(is_over=True)
        if self._run is not None:
            self._run.errors.watch.after_fork_in_child()
            self._run.spans.after_fork_in_child()
            self._run.pipeline.after_fork_in_child()

    # Within.

    def _replace_earlier(self) -> None:
        """End a run that the same cell of a notebook has left open, before it is executed again."""
        key = self.run_name, os.path.abspath(self._options.log_dir), threading.get_ident()
        earlier = _at_prompt.get(key)
        if earlier is not None and earlier.is_live:
            self.guard.report_misuse(
                f"the run {self.run_name!r} in {earlier.run_folder} was still open; it is ended as replaced. Call "
                "close() at the end of a training, or use `with`",
                "a run that was still open",
            )
            earlier.close("replaced")
        _at_prompt[key] = self

    def _open_folder(self, rank: Rank, clock: Clock) -> SessionFolder | None:
        from toolkit.telemetry.writing.announcement import Announcer, next_key
        from toolkit.telemetry.writing.rank_folder import announcement_of, join_rank_zero
        from toolkit.telemetry.writing.session_folder import open_session

        options, guard = self._options, self.guard
        key = next_key(self.run_name) if rank.world_size > 1 else ""
        if rank.rank == 0:
            session_folder = open_session(self.run_name, options, now=clock.wall(), guard=guard)
            if key and options.ranks != "zero":
                with guard.catch("announcing the run to the other ranks"):
                    self._announcer = Announcer(key, announcement_of(session_folder), guard)
                    self._announcer.announce()
            return session_folder
        if not is_chosen(options.ranks, rank):
            if options.ranks == "first_per_node" and local_rank() is None:
                trouble = "the launcher sets no LOCAL_RANK, so the first rank of this node is not known"
                guard.report("choosing the ranks that write", OSError(trouble))
            return None
        joined: SessionFolder | None = None
        with guard.catch("finding rank 0's folder"):
            joined = join_rank_zero(self.run_name, options, rank, key, now=clock.wall(), guard=guard)
            if joined is None:
                trouble = (
                    f"rank {rank.rank} found no run of this launch in {options.log_dir}; if its nodes have disks of "
                    "their own, make the logger after the process group, or have the launcher set TELEMETRY_RUN_ID"
                )
                guard.report("finding rank 0's folder", OSError(trouble))
        return joined

    def _follow(self, rank: Rank, clock: Clock) -> None:
        """Be asked what rank 0 is asked, without writing anything."""
        from toolkit.telemetry.control.silent_rank import SilentRank

        self._silent_rank = SilentRank(
            rank, run_name=self.run_name, log_every=self._options.log_every, clock=clock, guard=self.guard
        )
        self._rank_control = self._silent_rank.rank_control
        self._steps = silent_steps(self._rank_control)
        close_at_exit(self, in_forked_child=self._after_fork_in_child)
        self._silent_rank.start()

    def _publish_failure(self, doing: str, error: BaseException) -> None:
        if self._early is None and self._events is not None:
            self._events.own_failure.publish(doing, error)
        elif self._early is not None and len(self._early) < _MOST_EARLY:
            self._early.append((doing, error))

    def _live(self) -> LiveRun:
        assert self._run is not None, "only a live logger gets here"
        return self._run

    def _become_inert(self) -> None:
        self.is_live = False
        # For a thread that is in `log_step` at this moment.
        self._gate.due_at = -NEVER
        self._steps = NO_STEPS
        self._folding = {}
        self._make_span = _make_no_span
        if self._profiling is not None:
            self._profiling.switch_off()


class Internals:
    """What other packages of this project need of a logger beyond its public calls: a `JobLog` that never raises."""

    def __init__(
        self,
        log: TelemetryLogger,
        guard: Guard,
        run: Callable[[], LiveRun | None],
        options: Callable[[], TelemetryOptions],
        after_fork_in_child: Callable[[], None],
    ) -> None:
        # Only assignments, in which nothing can fail: nothing guards this.
        self.guard = guard
        self.after_fork_in_child = after_fork_in_child
        """Turns the logger into one that does nothing, in a forked child."""
        self.span, self.start_span, self.current_span = log.span, log.start_span, log.current_span
        self._log = log
        self._run = run
        self._options = options

    @property
    def begin_part(self) -> Callable[[str], AnySpan]:
        """What begins a span of a part of each step, where one call more counts; it never raises."""
        run = self._run()
        return _begin_no_span if run is None else run.spans.begin_part

    @property
    def is_live(self) -> bool:
        """Whether calls of the logger have an effect."""
        return self._log.is_live

    @property
    def run_id(self) -> str | None:
        """The id of the run; None where nothing is written."""
        return self._log.run_id

    @property
    def completions(self) -> CompletionRecorder | None:
        """Where completions collected from a trainer are written; None where they are not kept."""
        recorder: CompletionRecorder | None = None
        with self.guard.catch("looking up the completions"):
            run = self._live_run()
            recorder = run.completions if run is not None and run.completions.options.enabled else None
        return recorder

    @property
    def given_tags(self) -> tuple[str | tuple[str, ...] | None, str | None]:
        """The performance tag and the session tag of the options or of `set_tags`."""
        run = self._run()
        if run is not None:
            return run.tags
        return self._options().perf_tag, self._options().session_tag

    def set_tags(self, *, perf_tag: str | None = None, session_tag: str | None = None) -> None:
        """Change the tags of this session, which may be known only after the start."""
        with self.guard.catch("set_tags"):
            run = self._live_run()
            if run is not None:
                run.set_tags(perf_tag, session_tag)

    def span_totals(self, name: str) -> tuple[int, float]:
        """Return how many spans of `name` the training thread has ended in this session, and their seconds."""
        totals = (0, 0.0)
        with self.guard.catch("adding up spans"):
            run = self._run()
            times = run.spans.times.by_name.get(name) if run is not None else None
            totals = (times.count, times.seconds) if times is not None else totals
        return totals

    def event_outside_spans(
        self, name: str, attributes: Mapping[str, Any], time: float | None = None
    ) -> None:
        """Write an event that belongs to the run as a whole."""
        with self.guard.catch("event_outside_spans"):
            run = self._live_run()
            if run is not None:
                run.spans.put_event(None, "", name, attributes, time)

    def put(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write a record of any kind, also of those that a script has other calls for."""
        with self.guard.catch("writing a record"):
            run = self._live_run()
            if run is not None:
                run.put(event, fields)

    def latest_loss(self) -> float | None:
        """Return the newest training loss that is known without asking a device."""
        newest: Any = None
        with self.guard.catch("looking up the loss"):
            run = self._run()
            newest = None if run is None else run.latest_loss()
        return float(newest) if isinstance(newest, (int, float)) else None

    def _live_run(self) -> LiveRun | None:
        return self._run() if self._log.is_live else None


def internals(log: TelemetryLogger) -> Internals:
    """Return what this project's own packages need of a logger; nothing for scripts: it may change at any time."""
    return log._internals  # noqa: SLF001 - the one way in


def _are_plain(scalars: Mapping[str, Any]) -> bool:
    # A loop, because a set of the types would cost twice as much for a few scalars.
    for value in scalars.values():  # noqa: SIM110
        if type(value) is not float and type(value) is not int:
            return False
    return True


def _begin_no_span(_: str) -> AnySpan:
    return NO_SPAN


def _make_no_span(_: Any, __: dict[str, Any]) -> AnySpan:
    return NO_SPAN


def _inert_logger(run_name: str, options: TelemetryOptions) -> TelemetryLogger:
    return TelemetryLogger(run_name, options, enabled=False)
