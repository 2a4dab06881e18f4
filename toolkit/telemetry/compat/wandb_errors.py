"""W&B's exceptions, for scripts that catch them; nothing here raises one."""

from __future__ import annotations

from typing import Any

from toolkit.telemetry.compat.stand_ins import stand_in


class Error(Exception):
    """What all of W&B's exceptions are."""


class CommError(Error):
    """W&B could not be reached."""


class UsageError(Error):
    """W&B was called wrongly."""


class _Errors:
    """`wandb.errors`: an exception for every name, since `except` takes nothing else."""

    def __init__(self) -> None:
        self.Error, self.CommError, self.UsageError = Error, CommError, UsageError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[:1].isupper():
            return stand_in(f"wandb.errors.{name}")
        self.__dict__[name] = made = type(name, (Error,), {})
        return made


errors = _Errors()
