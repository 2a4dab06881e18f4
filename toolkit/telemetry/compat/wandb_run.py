"""W&B's `Run`, writing a local run folder."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import datetime
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit.telemetry.compat.null_object import null_object, warn_once
from toolkit.telemetry.compat.wandb_config import Config
from toolkit.telemetry.compat.wandb_media import MediaTarget, split_row
from toolkit.telemetry.compat.wandb_summary import Metric, Summary, summary_kinds
from toolkit.telemetry.core.lifetime import close_at_exit, do_not_close_at_exit, reason_of
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import training_fields
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.codec import bounded

FILES: Final = "files"
"""The folder for a script's own files inside the run folder: `run.dir`."""

_PER_OPTIMIZER_STEP: Final = (
    "batch_size",
    "gradient_accumulation_steps",
    "effective_batch_size",
    "max_steps",
)
"""Settings about optimizer steps; a W&B step is whatever a script logs."""


class Run:
    """One run. No call of a run raises, and none changes what the script does.

    `telemetry` is the underlying logger, for what W&B does not have: spans, knobs, `should_stop`.
    """

    offline = True
    """Nothing is sent anywhere."""

    def __init__(
        self,
        requested: Mapping[str, Any],
        options: TelemetryOptions,
        config: Mapping[str, Any],
        *,
        on_finish: Callable[[Run], None] | None = None,
    ) -> None:
        self.config = Config(config, self._write_config_change)
        """Read when the start record is written, so it includes what is set until then."""
        self.name, self.notes, self.tags = requested["name"], requested["notes"], options.tags
        self.telemetry = TelemetryLogger(self.name, options, config=self.config)
        self._requested = requested
        self.id = self.telemetry.run_id or "disabled"
        """The same in all sessions of a run."""
        self.project = str(requested["project"] or "uncategorized")
        self.entity, self.group, self.job_type = (
            requested[name] or "" for name in ("entity", "group", "job_type")
        )
        self.path = "/".join(part for part in (self.entity, self.project, self.id) if part)
        self._on_finish = on_finish
        self.guard = self.telemetry.guard
        self.summary = Summary()
        self._last_step = internals(self.telemetry).resumed_after
        self.resumed = self._last_step is not None
        """Whether it resumes an earlier run."""
        self.starting_step = 0 if self._last_step is None else self._last_step + 1
        """The first step of this session."""
        self.step = self.starting_step
        """The step that is logged next, counted as in W&B."""
        self._row: dict[str, Any] = {}
        """Not written yet."""
        self._step_metric: str | None = None
        """The metric that the script defined as the step of all others."""
        self._last_step_metric: int | None = None
        self._has_begun = False
        self._is_finished = False
        self._alerts: dict[str, float] = {}
        self._temporary: str | None = None
        self._lock = threading.RLock()
        self._process = os.getpid()
        self.start_time = time.time()
        if options.enabled:
            # Instead of the logger: the rest must be written before it is closed.
            do_not_close_at_exit(self.telemetry)
            close_at_exit(
                self,
                in_forked_child=self._after_fork_in_child,
                timeout_s=options.close_timeout,
                disk=self.telemetry.run_folder and self.telemetry.run_folder.parent,
            )

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process began it, not a parent that it was forked from."""
        return self._process == os.getpid()

    @property
    def url(self) -> str | None:
        """The run folder as a `file://` URL."""
        folder = self.telemetry.run_folder
        return folder.as_uri() if folder is not None else None

    @property
    def disabled(self) -> bool:
        """Whether nothing is written."""
        return self.telemetry.run_folder is None

    @property
    def dir(self) -> str:
        """A folder for the script's own files, inside the run folder."""
        folder = self.telemetry.run_folder
        if folder is None:
            # Scripts write there even if nothing is logged.
            self._temporary = self._temporary or tempfile.mkdtemp(prefix="telemetry-")
            return self._temporary
        with self.guard.catch("making the folder for files"):
            (folder / FILES).mkdir(mode=0o700, exist_ok=True)
        return str(folder / FILES)

    # Logging.

    def log(self, data: Any, step: int | None = None, commit: bool | None = None) -> None:
        """Log a row of values: a new step, unless `step` names one or `commit=False` lets the next call add to it.

        A row with `step` is written at once; others of that step may follow.
        """
        if self._is_finished:
            warn_once("run.log() of a run that is finished", "does nothing")
        with self.guard.catch("wandb.log"), self._lock:
            if not isinstance(data, Mapping):
                warn_once("wandb.log", f"takes a dictionary, not a {type(data).__name__}")
                return
            if step is not None and int(step) < self.step:
                why = f"went back from {self.step} to {step}; such rows are left out"
                warn_once("wandb.log(step=…)", why)
                return
            if step is not None and int(step) > self.step:
                self._put_row()
                self.step = int(step)
            self._row.update(data)
            # W&B holds a row with a step until the next step. Here a kill loses nothing.
            if commit or commit is None:
                self._put_row()
            if commit or (commit is None and step is None):
                self.step += 1

    def _put_row(self) -> None:
        """Write what is not written yet."""
        row, self._row = self._row, {}
        if not row:
            return
        self._begin()
        values, media = split_row(row)
        step = self._step_of(values)
        with self.guard.catch("summing up a row"):
            self.summary.add(values)
        if "global_step" in values:
            # Every record already has a field of that name.
            own = values.pop("global_step")
            if self._step_metric != "global_step":
                values["x_global_step"] = own
        if values:
            self.telemetry.log_step(step, **values)
        # A rank that writes nothing counts its steps, to stop at the same one as the others.
        for name, found in media if self.telemetry.is_live else ():
            for index, item in enumerate(found):
                with self.guard.catch(f"saving a {type(item).__name__}"):
                    item.save(MediaTarget(log=self.telemetry, key=name, step=step, index=index))

    def _step_of(self, values: Mapping[str, Any]) -> int:
        given: Any = values.get(self._step_metric or "")
        if hasattr(given, "item") and not getattr(given, "is_cuda", False) and math.prod(given.shape) == 1:
            given = given.item()
        if isinstance(given, int) or (isinstance(given, float) and given.is_integer()):
            self._last_step_metric = int(given)
        elif isinstance(given, float) and math.isfinite(given):
            # Many rows would share a few steps.
            why = f"has no effect here: {given} is not a whole number, so rows are counted instead"
            warn_once(f"define_metric('*', step_metric={self._step_metric!r})", why)
            self._step_metric = self._last_step_metric = None
        return self.step if self._last_step_metric is None else self._last_step_metric

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
        """Define how a metric is summarised. With `"*"` and a `step_metric`, that metric becomes the run's step."""
        if step_metric is not None and name != "*":
            warn_once(
                f"define_metric({str(name)!r}, step_metric=…)",
                "has no effect here: charts are drawn over the run's own step",
            )
        step_metric = step_metric.name if isinstance(step_metric, Metric) else step_metric
        metric = Metric(name=str(name), step_metric=step_metric, summary=summary_kinds(summary))
        with self.guard.catch("wandb.define_metric"), self._lock:
            self.summary.define(metric)
            if metric.name == "*" and metric.step_metric:
                self._step_metric = metric.step_metric
        return metric

    def alert(
        self,
        title: str,
        text: str,
        level: Any = None,
        wait_duration: float | datetime.timedelta | None = None,
    ) -> None:
        """Write an alert record, unless one with this title was written less than `wait_duration` ago."""
        with self.guard.catch("wandb.alert"):
            if isinstance(wait_duration, datetime.timedelta):
                wait_duration = wait_duration.total_seconds()
            wait_s = float(wait_duration or 0.0)
            now = time.monotonic()
            if now - self._alerts.get(title, -math.inf) >= wait_s:
                self._alerts[title] = now
                level = str(getattr(level, "value", level) or "INFO").upper()
                self._event("alert", title=title, text=text, level=level, global_step=self.step)

    # Finishing.

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run: as failed if `exit_code` is not 0."""
        if exit_code:
            self._finish("failed", sys.exc_info()[1])
        else:
            self._finish(None, None)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reason = reason_of(error)
        self._finish(reason, error if reason == "failed" else None)

    def close(self, reason: str | None = None, *, error: BaseException | None = None) -> None:
        """End the run like a logger, at the end of the process if the script does not."""
        self._finish(reason, error)

    def _after_fork_in_child(self) -> None:
        # It is the parent's run.
        internals(self.telemetry).after_fork_in_child()
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()

    def _finish(self, reason: str | None, error: BaseException | None) -> None:
        if self._is_finished:
            return
        self._write_remaining()
        do_not_close_at_exit(self)
        self._is_finished = True
        self.telemetry.close(reason, error=error)
        if self._on_finish is not None:
            self._on_finish(self)

    def _write_remaining(self) -> None:
        """Write the uncommitted row, and the summary."""
        if not self.telemetry.is_live:
            return
        with self.guard.catch("wandb.finish"), self._lock:
            self._put_row()
            self._begin()
            summary = self.summary.as_dict()
            if summary:
                self._event("summary", **summary)

    # Internal.

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("name", "notes", "tags") and name in self.__dict__:
            why = f"changes nothing in the run folder: give {name}= to wandb.init, or change it on the run's page"
            warn_once(f"run.{name} = …", why)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return null_object(f"run.{name}")

    def __deepcopy__(self, _: dict[int, Any]) -> Run:
        # As in W&B.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process must not write.
        return null_object, ("a run of another process",)

    def _begin(self) -> None:
        """Write the start record once, with the configuration as it is at the first log."""
        if self._has_begun or not self.telemetry.is_live:
            return
        self._has_begun = True
        config = self.config.as_dict()
        stated = training_fields({"train": config})
        self.telemetry.log_start(
            config=config,
            training={name: value for name, value in stated.items() if name not in _PER_OPTIMIZER_STEP},
            **{name: self._requested[name] for name in ("group", "job_type", "entity")},
            notes=self.notes,
            resumed_from_step=self._last_step if self.starting_step else None,
        )

    def _write_config_change(self, changes: Mapping[str, Any]) -> None:
        if self._has_begun:
            with self.guard.catch("wandb.config"):
                masker = Masker()
                self._event("config_change", changed=masker.mask(bounded(dict(changes), masker.cut)))

    def _event(self, event: str, /, **fields: Any) -> None:
        if self.telemetry.is_live:
            with self._lock:
                self._begin()
            self.telemetry.log_event(event, **fields)
