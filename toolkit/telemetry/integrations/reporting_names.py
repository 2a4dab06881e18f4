"""The name `telemetry` for `report_to` of transformers and TRL, and for `log_with` of Accelerate.

Both frameworks look a name up in a table. One entry is added to each: at once if the module with the table is already
imported, else right after its import. Nothing is imported for it, and nothing else of theirs is changed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard

NAME: Final = "telemetry"
SWITCH: Final = "TELEMETRY_REPORT_BY_NAME"
"""`off` in this environment variable leaves the tables and `sys.meta_path` alone."""


class CallbackByName:
    """Stands in transformers' table for `TelemetryCallback`, which is imported once a Trainer asks for it."""

    def __new__(cls) -> Any:
        """Return a callback with the default options."""
        callback = import_module("toolkit.telemetry.integrations.transformers").TelemetryCallback()
        callback.is_by_name = True
        return callback


class TrackerByName:
    """Stands in Accelerate's table for `TelemetryTracker`, which is imported once trackers are created."""

    name = NAME
    requires_logging_directory = False

    def __new__(cls, project_name: str, **options: Any) -> Any:
        """Return a tracker with the options of `init_kwargs`. Raises OptionsError if one is unknown or invalid."""
        tracker = import_module("toolkit.telemetry.integrations.accelerate").TelemetryTracker
        return tracker(**{"run_name": project_name, "project": project_name, **options})


_TABLES: Final[dict[str, tuple[str, type]]] = {
    "transformers.integrations.integration_utils": ("INTEGRATION_TO_CALLBACK", CallbackByName),
    "accelerate.tracking": ("LOGGER_TYPE_TO_CLASS", TrackerByName),
}


class _Finder:
    """Finds the two modules above as Python does, and completes their tables once they are executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return Python's own spec of a module with a table; None for any other module."""
        spec = PathFinder.find_spec(name, path, target) if name in _TABLES else None
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _complete(module)

            loader.exec_module = exec_module
        return spec


def add_names() -> None:
    """Add the name to tables that are imported, and to the others when they are; not if that is switched off."""
    if os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "false", "no"):
        return
    sys.meta_path.insert(0, _Finder)
    for name in _TABLES:
        if name in sys.modules:
            # Not `sys.modules[name]`: this waits for a thread that is importing it.
            with Guard().catch(f"adding a name to {name}"):
                _complete(import_module(name))


def _complete(module: ModuleType) -> None:
    with Guard().catch(f"adding the name {NAME} to {module.__name__}"):
        table, entry = _TABLES[module.__name__]
        # A version of theirs that has the name itself keeps its own.
        getattr(module, table, {}).setdefault(NAME, entry)
