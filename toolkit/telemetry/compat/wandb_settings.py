"""W&B's settings, of a process and of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.compat.stand_ins import stand_in


class Settings:
    """W&B's settings: any may be given, and those that say what a run is called and where it goes are used.

    One that was not given is None; what can be known without an account is there.
    """

    mode = "offline"
    _offline = True

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def update(self, settings: Any = None, **others: Any) -> None:
        """Set several."""
        self.__dict__.update({**settings_in(settings), **others})


class Setup:
    """What `wandb.setup()` gives back: the settings of this process, for every run that says nothing else."""

    def __init__(self) -> None:
        self.settings = Settings()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"wandb.setup().{name}")


def settings_in(given: Any) -> dict[str, Any]:
    """Return the settings that were given, as a mapping or as an object."""
    return dict(given) if isinstance(given, Mapping) else dict(getattr(given, "__dict__", {}))
