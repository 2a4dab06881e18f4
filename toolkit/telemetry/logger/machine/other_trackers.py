"""Which other trackers log the same process; only what the script has imported is looked at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard

_LOOKS: Final = 24
"""At a look every five seconds, up to two minutes after the first step: no tracker is begun in the middle of it."""


class TrackerWatch:
    """Says once which other trackers are active together with this one; they often begin after the training has."""

    def __init__(
        self, report: Callable[[list[str]], None], guard: Guard, *, has_begun: Callable[[], bool]
    ) -> None:
        self._report = report
        self._guard = guard
        self._has_begun = has_begun
        self._known: list[str] = []
        self._looks_left = _LOOKS

    def look(self) -> None:
        """Look, and report those that are new."""
        if not self._looks_left:
            return
        # Data and models may take longer to load than any number of looks, and trackers often wait for them.
        if self._has_begun():
            self._looks_left -= 1
        active = active_trackers(self._guard)
        new = [name for name in active if name not in self._known]
        if not new:
            return
        self._known += new
        self._report(new)
        verb = "logs" if len(new) == 1 else "log"
        self._guard.say(
            f"{_listed(new)} {verb} this process too: each tracker keeps its own copy of the metrics"
        )


def active_trackers(guard: Guard, modules: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of other trackers that have a run open in this process."""
    loaded = sys.modules if modules is None else modules
    found = []
    for title, (module, is_active) in _TRACKERS.items():
        tracker = loaded.get(module)
        if tracker is None:
            continue
        # Something else may have its name, such as an empty folder.
        with guard.catch(f"asking whether {title} is active"), suppress(AttributeError):
            if is_active(tracker):
                found.append(title)
    return found


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _has_wandb_run(wandb: Any) -> bool:
    run = getattr(wandb, "run", None)
    # In disabled mode it is a null object that writes nothing.
    return run is not None and not getattr(run, "disabled", False)


def _has_swanlab_run(swanlab: Any) -> bool:
    try:
        return swanlab.get_run() is not None
    except RuntimeError:
        # Newer versions raise if there is none.
        return False


def _has_mlflow_run(mlflow: Any) -> bool:
    if mlflow.active_run() is not None:
        return True
    # Newer ones answer for the thread that asks alone, and this one is not the training's.
    fluent = getattr(getattr(mlflow, "tracking", None), "fluent", None)
    of_threads = getattr(getattr(fluent, "_active_run_stack", None), "get_all_thread_values", None)
    return of_threads is not None and any(of_threads().values())


def _has_trackio_run(trackio: Any) -> bool:
    # Which run is current is the secret of the thread that began it; the run's config everybody sees.
    return trackio.context_vars.current_run.get() is not None or bool(getattr(trackio, "config", None))


_TRACKERS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "W&B": ("wandb", _has_wandb_run),
    "MLflow": ("mlflow", _has_mlflow_run),
    "Comet": ("comet_ml", lambda comet: comet.get_running_experiment() is not None),
    "SwanLab": ("swanlab", _has_swanlab_run),
    "Trackio": ("trackio", _has_trackio_run),
    "ClearML": ("clearml", lambda clearml: clearml.Task.current_task() is not None),
}
