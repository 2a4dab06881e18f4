"""W&B's settings, and a run's configuration: read and changed by item or by attribute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.core.config_mapping import mapping_in, resolved


def config_mapping(given: Any) -> dict[str, Any]:
    """Return a configuration as a dictionary; `given` is a mapping or an object such as argparse's namespace."""
    if isinstance(given, str):
        warn_once("wandb.init(config=<file>)", "is not supported here: load the file and pass the mapping")
        return {}
    return {str(name): value for name, value in (mapping_in(resolved(given)) or {}).items()} if given else {}


class Config(dict[str, Any]):
    """Configuration values by name; `on_change` is called with each change."""

    _on_change: Callable[[Mapping[str, Any]], None] | None = None

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        on_change: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(values or {})
        # Attributes are configuration values, so this one bypasses `__setattr__`.
        object.__setattr__(self, "_on_change", on_change)

    def __setitem__(self, name: str, value: Any) -> None:
        self._change({str(name): value})

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        # As in W&B: `hasattr` and `getattr` with a default depend on it.
        raise AttributeError(f"the configuration has no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._change({name: value})

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, holds the values only; its changes are not recorded.
        return Config, (dict(self),)

    def update(self, d: Any = None, allow_val_change: bool | None = None, **others: Any) -> None:  # type: ignore[override]  # noqa: ARG002  # W&B's
        """Set several values; existing ones may always be changed."""
        self._change({**config_mapping(d), **others})

    def setdefaults(self, d: Any) -> None:
        """Set those that have no value yet."""
        self._change({name: value for name, value in config_mapping(d).items() if name not in self})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self)

    def _change(self, changes: Mapping[str, Any]) -> None:
        super().update(changes)
        if changes and self._on_change is not None:
            self._on_change(changes)


class Settings(SimpleNamespace):
    """W&B's settings: any may be given; those that name a run and its location are used. Others read as None."""

    mode = "offline"
    _offline = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def settings_in(given: Any) -> dict[str, Any]:
    """Return settings as a dictionary; `given` is a mapping or an object."""
    return dict(given) if isinstance(given, Mapping) else dict(getattr(given, "__dict__", {}))
