"""Where the commands start, under a name that no other project uses.

`toolkit` is also the name of ai-toolkit's package, and many projects have a folder called `dashboard`. In a process of
ours both names must mean our packages, whatever the current folder and PYTHONPATH contain: `use_our_packages` sees to
that. In other programs their own packages win; `spec_of_missing` finds ours only where they have none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, Final

_HERE: Final = os.path.dirname(os.path.abspath(__file__))
_INSTALLED_DASHBOARD: Final = os.path.join(_HERE, "ai_toolkit_telemetry_dashboard")
"""A wheel has the dashboard here: `dashboard` in site-packages is left to others."""

_FOLDERS: Final = {
    "toolkit": os.path.join(_HERE, "toolkit"),
    "dashboard": _INSTALLED_DASHBOARD
    if os.path.isdir(_INSTALLED_DASHBOARD)
    else os.path.join(_HERE, "dashboard"),
}


def telemetry() -> int:
    """Run the command `telemetry`."""
    return _main_of("toolkit.telemetry.cli.main")


def telemetry_dashboard() -> int:
    """Run the command `telemetry-dashboard`."""
    return _main_of("dashboard.launcher")


def mlflow_store(store_uri: str | None = None, artifact_uri: str | None = None) -> Any:
    """Return MLflow's tracking store for `telemetry://FOLDER`; MLflow imports this module in every program."""
    from toolkit.telemetry.compat.mlflow_store.store import TelemetryStore

    return TelemetryStore(store_uri, artifact_uri)


def _main_of(module: str) -> int:
    use_our_packages()
    # By name: the line above decides which package it means.
    code: int = import_module(module).main()
    return code


def use_our_packages() -> None:
    """Make `toolkit` and `dashboard` our packages in this process, even if another one was imported as `toolkit`.

    Only for a process that runs one of our commands: other programs may need the package that it replaces.
    """
    for name, folder in _FOLDERS.items():
        if _is_at(sys.modules.get(name), folder):
            continue
        for other in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
            del sys.modules[other]
        spec = _spec(name, folder)
        if spec is None or spec.loader is None:
            continue
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def spec_of_missing(name: str, path: Sequence[str] | None, asked: Any) -> ModuleSpec | None:
    """Return where our package `name` is. `asked` is the finder that calls this: those before it have no such package.

    If `toolkit` is ai-toolkit's and has no `toolkit.NAME`, our folder is added behind its own, as `telemetry attach`
    does, so that what our package imports is found as well.
    """
    after = sys.meta_path[sys.meta_path.index(asked) + 1 :] if asked in sys.meta_path else ()
    for finder in after:
        find_spec = getattr(finder, "find_spec", None)
        found: ModuleSpec | None = None if find_spec is None else find_spec(name, path)
        if found is not None:
            return found
    package, _, inner = name.partition(".")
    if inner and isinstance(path, list) and _FOLDERS[package] not in path:
        path.append(_FOLDERS[package])
    return _spec(name, os.path.join(_FOLDERS[package], inner))


def _is_at(module: ModuleType | None, folder: str) -> bool:
    # The first entry: behind it may be ours, added to another package of that name.
    first = next(iter(getattr(module, "__path__", ())), None)
    return first is not None and os.path.realpath(first) == os.path.realpath(folder)


def _spec(name: str, folder: str) -> ModuleSpec | None:
    file = os.path.join(folder, "__init__.py")
    if not os.path.isfile(file):
        return None
    return spec_from_file_location(name, file, submodule_search_locations=[folder])


if __name__ == "__main__":
    raise SystemExit(telemetry())
