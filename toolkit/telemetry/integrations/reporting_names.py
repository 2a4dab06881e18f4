"""The name `telemetry` for `report_to` of transformers and TRL, and for `log_with` of Accelerate.

Both frameworks look a name up in a table. One entry is added to each: at once if the module with the table is already
imported, else right after its import. Nothing is imported for it, and nothing else of theirs is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
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
    """Finds no module itself: it completes the tables of the two modules above when they are imported later."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return what the other finders have for a module with a table; None for any other module."""
        if name not in _TABLES:
            return None
        # By name: if our modules were imported a second time, there are two of this class.
        for finder in [finder for finder in sys.meta_path if repr(finder) != repr(cls)]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                execute = getattr(spec.loader, "exec_module", None)
                # A loader that takes no attributes is left as it is.
                if execute is not None and hasattr(spec.loader, "__dict__"):
                    _complete_after(vars(spec.loader), execute)
                return spec
        return None


def add_names() -> None:
    """Add the name to tables that are imported, and to the others when they are; not if that is switched off."""
    if os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "false", "no"):
        return
    if repr(_Finder) not in map(repr, sys.meta_path):
        sys.meta_path.insert(0, _Finder)
    for name in _TABLES:
        if name in sys.modules:
            # Not `sys.modules[name]`: this waits for a thread that is importing it.
            with Guard().catch(f"adding a name to {name}"):
                _complete(import_module(name))


def _complete_after(of_loader: dict[str, Any], execute: Callable[[ModuleType], None]) -> None:
    """Let a loader complete the table once it has executed the module, and then be as it was."""

    def exec_module(module: ModuleType) -> None:
        execute(module)
        # A loader may be shared: that of an archive loads all of its modules.
        if module.__name__ in _TABLES:
            of_loader.pop("exec_module", None)
            _complete(module)

    of_loader["exec_module"] = exec_module


def _complete(module: ModuleType) -> None:
    with Guard().catch(f"adding the name {NAME} to {module.__name__}"):
        table, entry = _TABLES[module.__name__]
        # A version of theirs that has the name itself keeps its own.
        getattr(module, table, {}).setdefault(NAME, entry)
