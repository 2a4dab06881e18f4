"""Optuna: each trial of a study is a run of one project."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.logger_setup import in_project, options_of
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import TelemetryOptions


class TelemetryCallback:
    """Records trials as runs: `study.optimize(telemetry.live(objective))`.

    Nothing it does raises into the study, except invalid options when it is created.
    """

    def __init__(self, options: TelemetryOptions | Mapping[str, Any] | None = None, **others: Any) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        self._options = options_of(options, **others)
        self.guard = Guard()
        self._thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, for another process, records its own trials.
        return type(self), (self._options,)

    @property
    def log(self) -> TelemetryLogger:
        """The logger of the live trial of this thread, to log more; elsewhere one that writes nothing."""
        begin: Callable[[], TelemetryLogger] | None = getattr(self._thread, "begin", None)
        return TelemetryLogger("trial", TelemetryOptions(enabled=False)) if begin is None else begin()

    def live(self, objective: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the objective, recorded while it runs, with what it reports; every exception ends its run."""

        @functools.wraps(objective)
        def recorded(trial: Any) -> Any:
            # Only a study has runs: not a `FixedTrial`, the best trial once more, or None on another rank.
            study = getattr(trial, "study", None)
            log = study and self.guard.call("opening a run for a trial", self._open, study, trial.number)
            if study is None or log is None:
                return objective(trial)
            steps: list[int] = []

            @functools.cache
            def begin() -> TelemetryLogger:
                # As late as possible: the settings are those that were suggested by then.
                with log.guard.catch("writing the start of a trial"):
                    about = {"framework": "optuna", "study": study.study_name, "trial": trial.number}
                    log.log_start(config=trial.params, training={**about, **trial.user_attrs})
                return log

            def report(value: Any, step: int) -> Following:
                yield
                steps.append(step)
                begin().log_eval(step, _named(study, value))

            def end(error: BaseException | None, values: Any = None) -> None:
                patches.undo()
                self._thread.begin = outer
                with log.guard.catch("ending the run of a trial"):
                    begin()
                    if error is None:
                        named = _named(study, values)
                        log.log_eval(max(steps, default=0), named)
                        # As in Optuna, a trial that returns no number has failed.
                        if any(value is None or value != value for value in named.values()):
                            log.close("failed")
                    log.__exit__(None, error, None)

            patches = MethodPatches(log.guard)
            patches.follow(trial, "report", report)
            outer, self._thread.begin = getattr(self._thread, "begin", None), begin
            try:
                values = objective(trial)
            except BaseException as error:
                # In no variable that outlives this block: its traceback has what the objective holds on the device.
                end(error)
                raise
            end(None, values)
            return values

        return recorded

    def _open(self, study: Any, number: int) -> TelemetryLogger:
        options = in_project(self._options, study.study_name, "optuna", study.study_name)
        return TelemetryLogger(f"trial-{number}", options)


def _named(study: Any, given: Any) -> dict[str, Any]:
    """Return values of the objective by the study's names for them; without names, `value`, or `value_0` and so on."""
    values = given if isinstance(given, Sequence) else [given]
    names = study.metric_names or (
        ["value"] if len(values) == 1 else [f"value_{n}" for n in range(len(values))]
    )
    return dict(zip(names, values, strict=False))
