"""A run as W&B scripts know it, in a run folder of ours."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some of them mean nothing here

from __future__ import annotations

import datetime
import glob as globbing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from toolkit.core.lifetime import close_at_exit, code_of, do_not_close_at_exit
from toolkit.privacy.masking import Masker
from toolkit.runfolder.codec import bounded
from toolkit.telemetry.compat.stand_ins import say_once, stand_in
from toolkit.telemetry.compat.tensorboard_sync import TensorBoardSync
from toolkit.telemetry.compat.wandb_artifacts import KeepsArtifacts
from toolkit.telemetry.compat.wandb_config import Config
from toolkit.telemetry.compat.wandb_files import link_into
from toolkit.telemetry.compat.wandb_home import last_step_of
from toolkit.telemetry.compat.wandb_identity import About, Identity
from toolkit.telemetry.compat.wandb_rows import Rows
from toolkit.telemetry.compat.wandb_summary import Metric, Summary, summary_kinds
from toolkit.telemetry.compat.wandb_watch import Watch
from toolkit.telemetry.logger import TelemetryLogger, internals
from toolkit.telemetry.machine.metadata import training_metadata
from toolkit.telemetry.options import TelemetryOptions

FILES: Final = "files"
"""Where in the run folder a script may put files of its own: `run.dir`."""

_OF_ANOTHER_STEP: Final = ("batch_size", "gradient_accumulation_steps", "effective_batch_size", "max_steps")
"""Settings that speak of optimizer steps: a step of W&B's is whatever a script logs."""


class Run(Identity, KeepsArtifacts):
    """One run. No call of a run raises, and none changes what the script does.

    `telemetry` is the logger behind it, for what W&B has no word for: spans, knobs, `should_stop`.
    """

    def __init__(
        self,
        about: About,
        options: TelemetryOptions,
        config: Mapping[str, Any],
        *,
        on_finish: Callable[[Run], None] | None = None,
    ) -> None:
        self._config = Config(config, self._tell_of_config)
        # Looked at only when the start record is written, so what is set until then stands in it.
        super().__init__(about, TelemetryLogger(about.name, options, config=self._config))
        self._on_finish = on_finish
        self.guard = self.telemetry.guard
        self.summary = Summary()
        self._last_step = last_step_of(self.telemetry)
        self.resumed = self._last_step is not None
        """Whether it goes on with an earlier run."""
        self.starting_step = 0 if self._last_step is None else self._last_step + 1
        """The first step of this session."""
        self._rows = Rows(
            self.telemetry, self.summary, first_step=self.starting_step, before_first=self._begin
        )
        self._has_begun = False
        self._is_finished = False
        self._alerts: dict[str, float] = {}
        self._held_back: list[tuple[str, Mapping[str, Any]]] = []
        """What a script says before the start record is written, for the configuration may not be whole by then."""
        self._temporary: str | None = None
        self._tensorboard: TensorBoardSync | None = None
        self._watch: Watch | None = None
        self._lock = threading.RLock()
        self._process = os.getpid()
        self.start_time = time.time()
        if options.enabled:
            # In the logger's place, for what is left must be written before that is closed.
            do_not_close_at_exit(self.telemetry)
            close_at_exit(self, in_forked_child=self._after_fork_in_child)

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process began it, and not one that it was forked from."""
        return self._process == os.getpid()

    # What a script says of it.

    @property
    def config(self) -> Config:
        """The configuration, to read and to change."""
        return self._config

    @property
    def dir(self) -> str:
        """A folder for files of the script's own, inside the run folder."""
        folder = self.telemetry.run_folder
        if folder is None:
            # Scripts write there without asking whether they are logged.
            self._temporary = self._temporary or tempfile.mkdtemp(prefix="telemetry-")
            return self._temporary
        with self.guard.catch("making the folder for files"):
            (folder / FILES).mkdir(mode=0o700, exist_ok=True)
        return str(folder / FILES)

    # What a script logs.

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Log a row of values: a step of its own, unless `step` names one or `commit=False` lets the next call add.

        A row with `step` is written at once, and others of that step may follow.
        """
        if not self.telemetry.is_live:
            if self._is_finished:
                say_once("run.log() of a run that is finished", "does nothing")
            elif not self.is_of_this_process:
                say_once(
                    "run.log() in a forked process", "does nothing: log where the run was begun, or begin one"
                )
            with self.guard.catch("wandb.log"):
                self._rows.only_count(data, step, commit)
            return
        with self.guard.catch("wandb.log"), self._lock:
            self._rows.take(data, step, commit)

    @property
    def step(self) -> int:
        """The step that is logged next, counted as W&B does."""
        return self._rows.step

    def define_metric(
        self,
        name: str,
        step_metric: str | Metric | None = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        overwrite: bool | None = None,
        goal: str | None = None,
    ) -> Metric:
        """Say how a metric is summed up. With `"*"` and a `step_metric`, that metric becomes the run's step."""
        if step_metric is not None and name != "*":
            say_once(
                f"define_metric({str(name)!r}, step_metric=…)",
                "is only a record here: charts are drawn over the run's own step",
            )
        metric = Metric(
            name=str(name),
            step_metric=step_metric.name if isinstance(step_metric, Metric) else step_metric,
            step_sync=step_sync,
            hidden=hidden,
            summary=summary_kinds(summary),
            goal=goal,
        )
        with self.guard.catch("wandb.define_metric"), self._lock:
            self.summary.define(metric)
            if metric.name == "*" and metric.step_metric:
                self._rows.step_metric = metric.step_metric
            said = {"name": metric.name, "step_metric": metric.step_metric, "hidden": hidden, "goal": goal}
            said["summary"] = ",".join(metric.summary) or None
            self._note("metric_defined", said)
        return metric

    def alert(
        self,
        title: str,
        text: str,
        level: Any = None,
        wait_duration: float | datetime.timedelta | None = None,
    ) -> None:
        """Put an alert into the records, unless one of this title came less than `wait_duration` ago."""
        with self.guard.catch("wandb.alert"):
            wait_s = (
                wait_duration.total_seconds()
                if isinstance(wait_duration, datetime.timedelta)
                else float(wait_duration or 0.0)
            )
            now = time.monotonic()
            if now - self._alerts.get(title, -1e9) < wait_s:
                return
            self._alerts[title] = now
            level = str(getattr(level, "value", level) or "INFO").upper()
            self._event("alert", title=title, text=text, level=level, global_step=self.step)

    def save(
        self,
        glob_str: str | os.PathLike[str] | None = None,
        base_path: str | os.PathLike[str] | None = None,
        policy: str = "live",
        glob: bool = True,
    ) -> bool | list[str]:
        """Link the files that fit into the run folder's `files/`, and return where they are."""
        if glob_str is None or not self.telemetry.is_live:
            return glob_str is None
        kept: list[str] = []
        with self.guard.catch("wandb.save"):
            pattern = os.fspath(glob_str)
            for path in sorted(globbing.glob(pattern)) if glob else [pattern]:
                kept.append(link_into(Path(self.dir), Path(path), base_path))
                size = os.stat(path).st_size
                self._event("saved_file", path=os.path.abspath(path), bytes=size, global_step=self.step)
        return kept

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Have histograms of a model's gradients, parameters or both written at each `log_freq`-th training batch."""
        if log_graph:
            say_once("wandb.watch(log_graph=True)", "draws no graph here")
        if not self.telemetry.is_live:
            return
        with self.guard.catch("wandb.watch"):
            if self._watch is None:
                self._watch = Watch(self._keep_histogram, self.guard, step=lambda: self.step)
            self._watch.add(models, what=log, log_freq=log_freq, idx=idx)

    def unwatch(self, models: Any = None) -> None:
        """Look at one model, or at all of them, no more."""
        if self._watch is not None:
            self._watch.remove(models)

    def sync_tensorboard(self) -> None:
        """Have what is written with a SummaryWriter go into the run as well, from now on."""
        if self._tensorboard is None and self.telemetry.is_live:
            with self.guard.catch("wandb.init(sync_tensorboard=True)"):
                self._tensorboard = TensorBoardSync(self)
                self._tensorboard.start()

    def log_at(self, row: dict[str, Any], step: int) -> None:
        """Write a row of values under a step of another's counting."""
        if self.telemetry.is_live:
            with self.guard.catch("writing a SummaryWriter's values"), self._lock:
                self._rows.put_at(row, step)

    def _keep_histogram(
        self, name: str, step: int, counts: list[float], edges: list[float], more: dict[str, Any]
    ) -> None:
        self._event("histogram", name=name, global_step=step, values=counts, bins=edges, **more)

    # How it ends.

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run: as failed where `exit_code` is not 0."""
        if exit_code:
            self._finish("failed", sys.exc_info()[1])
        else:
            self._finish(None, None)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or code_of(error) == 0:
            self._finish(None, None)
        elif isinstance(error, KeyboardInterrupt):
            self._finish("interrupted", None)
        else:
            self._finish("failed", error)

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """End the run, as a logger is ended: the process does so where the script does not."""
        self._finish(reason, error)

    def _after_fork_in_child(self) -> None:
        # It is the parent's run.
        internals(self.telemetry).after_fork_in_child()
        if self._tensorboard is not None:
            self._tensorboard.after_fork_in_child()
        if self._watch is not None:
            self._watch.remove()
        # Another thread of the parent's may have held it at that moment.
        self._lock = threading.RLock()

    def _finish(self, reason: str | None, error: BaseException | None) -> None:
        if self._is_finished:
            return
        if self.is_of_this_process:
            if self._tensorboard is not None:
                self._tensorboard.close()
            if self._watch is not None:
                self._watch.close()
        self._put_what_is_left()
        do_not_close_at_exit(self)
        self._is_finished = True
        self.telemetry.close(reason, error=error)
        if self._temporary is not None and self.is_of_this_process:
            shutil.rmtree(self._temporary, ignore_errors=True)
        if self._on_finish is not None:
            self._on_finish(self)

    def _put_what_is_left(self) -> None:
        """Write the row that nobody committed, and the summary."""
        if not self.telemetry.is_live:
            return
        with self.guard.catch("wandb.finish"), self._lock:
            self._rows.put()
            self._begin()
            summary = self.summary.as_dict()
            if summary:
                self._event("summary", **summary)

    # Within.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return stand_in(f"run.{name}")

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process must not write, so it is one that does nothing.
        return _inert_run, (self._about, self._config.as_dict())

    def _begin(self) -> None:
        """Write the start record, once: with the configuration as it stands when the first thing is logged."""
        if self._has_begun:
            return
        self._has_begun = True
        config = self._config.as_dict()
        stated = training_metadata({"train": config})
        about = self._about
        self.telemetry.log_start(
            config=config,
            training={name: value for name, value in stated.items() if name not in _OF_ANOTHER_STEP},
            group=about.group,
            job_type=about.job_type,
            entity=about.entity,
            notes=about.notes,
            resumed_from_step=self._last_step if self.starting_step else None,
        )
        for event, fields in self._held_back:
            self.telemetry.log_event(event, **fields)

    def _tell_of_config(self, changes: Mapping[str, Any]) -> None:
        if self._has_begun:
            with self.guard.catch("wandb.config"):
                masker = Masker()
                self._event("config_change", changed=masker.mask(bounded(dict(changes), masker.cut)))

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        if self._has_begun:
            self._event(event, **fields)
        elif self.telemetry.is_live:
            self._held_back.append((event, fields))

    def _event(self, event: str, /, **fields: Any) -> None:
        if self.telemetry.is_live:
            with self._lock:
                self._begin()
            self.telemetry.log_event(event, **fields)


def _inert_run(about: About, config: Mapping[str, Any]) -> Run:
    return Run(about, TelemetryOptions(enabled=False), config)
