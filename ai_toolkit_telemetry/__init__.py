"""Our names in every project: `from ai_toolkit_telemetry import TelemetryLogger`.

`toolkit` is a namespace, which several distributions share. A project's own package or module of that name hides it:
then our folder is added after its own, once a script asks for one of our names. Importing this package does nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolkit.telemetry import (
        MemorySink,
        OptionsError,
        RunData,
        Sink,
        TelemetryLogger,
        TelemetryOptions,
        integrations,
        read_run,
    )
    from toolkit.telemetry.integrations.accelerate import TelemetryTracker
    from toolkit.telemetry.integrations.lightning import TelemetryLightningLogger
    from toolkit.telemetry.integrations.transformers import TelemetryCallback

__all__ = [
    "MemorySink",
    "OptionsError",
    "RunData",
    "Sink",
    "TelemetryCallback",
    "TelemetryLightningLogger",
    "TelemetryLogger",
    "TelemetryOptions",
    "TelemetryTracker",
    "integrations",
    "read_run",
]

_TOOLKIT: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "toolkit")
_CALLBACKS: Final = {
    "TelemetryCallback": "transformers",
    "TelemetryLightningLogger": "lightning",
    "TelemetryTracker": "accelerate",
}


def find_toolkit(*, ours_first: bool = False) -> None:
    """Make `toolkit.telemetry` importable where a package or a module of the project is called `toolkit`.

    With `ours_first` it is our package even if the project's has a `telemetry` too: for the processes of our commands.

    Raises:
        ImportError: the project's `toolkit` has a `telemetry` of its own, which is kept.
    """
    toolkit = import_module("toolkit")
    ours = os.path.realpath(_TOOLKIT)
    theirs = [folder for folder in getattr(toolkit, "__path__", ()) if os.path.realpath(folder) != ours]
    if ours_first:
        toolkit.__path__ = [_TOOLKIT, *theirs]
        return
    own = PathFinder.find_spec("toolkit.telemetry", theirs)
    if own is not None:
        raise ImportError(
            f"toolkit.telemetry is this project's own, at {own.origin}, and is kept. "
            f"To use the one at {_TOOLKIT}, move the project's own away",
            name="toolkit.telemetry",
        )
    if len(theirs) == len(getattr(toolkit, "__path__", ())):
        toolkit.__path__ = [*theirs, _TOOLKIT]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    find_toolkit()
    integration = _CALLBACKS.get(name)
    if integration is not None:
        return getattr(import_module(f"toolkit.telemetry.integrations.{integration}"), name)
    if name == "integrations":
        return import_module("toolkit.telemetry.integrations")
    return getattr(import_module("toolkit.telemetry"), name)
