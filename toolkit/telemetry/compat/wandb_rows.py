"""Rows of values, numbered as W&B numbers steps, and written as step records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.compat.wandb_media import Media, MediaTarget, find_media
from toolkit.telemetry.compat.wandb_summary import Summary
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.records.media import PLAIN, flat_items


class Rows:
    """The rows of one run. May raise: callers guard the calls."""

    def __init__(
        self, log: TelemetryLogger, summary: Summary, *, first_step: int, before_first: Callable[[], None]
    ) -> None:
        self.step = first_step
        """The step that is logged next."""
        self.step_metric: str | None = None
        """The metric that the script defined as the step of all others."""
        self._log = log
        self._summary = summary
        self._before_first = before_first
        self._row: dict[str, Any] = {}
        self._last_step_metric: int | None = None

    def add(self, data: Any, step: int | None, commit: bool | None) -> None:
        """Add what a script logs: a new step, or more values for one that is not written yet."""
        if not isinstance(data, Mapping):
            warn_once("wandb.log", f"takes a dictionary, not a {type(data).__name__}")
            return
        if step is not None:
            step = int(step)
            if step < self.step:
                warn_once(
                    "wandb.log(step=…)", f"went back from {self.step} to {step}; such rows are left out"
                )
                return
            if step > self.step:
                self.put()
                self.step = step
        self._row.update(data)
        # W&B holds a row with a step until the next step. Here it is written at once, so that a kill loses nothing.
        if commit or commit is None:
            self.put()
        if commit or (commit is None and step is None):
            self.step += 1

    def put(self) -> None:
        """Write what is not written yet."""
        row, self._row = self._row, {}
        if not row:
            return
        self._before_first()
        values, media = _split(row)
        step = self._step_of(values)
        with self._log.guard.catch("summing up a row"):
            self._summary.add(values)
        if "global_step" in values:
            # Every record already has a field of that name.
            own = values.pop("global_step")
            if self.step_metric != "global_step":
                values["x_global_step"] = own
        if values:
            self._log.log_step(step, **values)
        # A rank that writes nothing counts its steps, to stop at the same one as the others.
        for name, found in media if self._log.is_live else ():
            for index, item in enumerate(found):
                with self._log.guard.catch(f"saving a {type(item).__name__}"):
                    item.save(MediaTarget(log=self._log, key=name, step=step, index=index))

    def _step_of(self, values: Mapping[str, Any]) -> int:
        if self.step_metric is None:
            return self.step
        given = _on_host(values.get(self.step_metric))
        if isinstance(given, (int, float)) and math.isfinite(given):
            if given != int(given):
                # Many rows would share a few steps.
                warn_once(
                    f"define_metric('*', step_metric={self.step_metric!r})",
                    f"has no effect here: {given} is not a whole number, so rows are counted instead",
                )
                self.step_metric = None
                return self.step
            self._last_step_metric = int(given)
        return self.step if self._last_step_metric is None else self._last_step_metric


def _on_host(value: Any) -> Any:
    """Return a number of numpy or torch as a Python number; one on a GPU is not waited for."""
    if not hasattr(value, "item") or getattr(value, "is_cuda", False):
        return value
    return value.item() if math.prod(value.shape) == 1 else value


def _split(row: Mapping[Any, Any]) -> tuple[dict[str, Any], list[tuple[str, list[Media]]]]:
    """Return a row's values and its media, both under flat names such as `outer/inner`."""
    values: dict[str, Any] = {}
    media: list[tuple[str, list[Media]]] = []
    for name, value in flat_items(row):
        found = None if type(value) in PLAIN else find_media(value)
        if found is None:
            values[name] = value
        else:
            media.append((name, found))
    return values, media
