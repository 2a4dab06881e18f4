"""W&B's settings, and a run's configuration: read and changed by item or by attribute."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from toolkit.telemetry.compat.null_object import null_object, warn_once
from toolkit.telemetry.core.config_mapping import mapping_in, resolved


def config_mapping(given: Any) -> dict[str, Any]:
    """Return a configuration as a dictionary; `given` is a mapping or an object such as argparse's namespace."""
    if given is None:
        return {}
    if isinstance(given, str):
        warn_once("wandb.init(config=<file>)", "is not supported here: load the file and pass the mapping")
        return {}
    return {str(name): value for name, value in (mapping_in(resolved(given)) or {}).items()}


class Config(MutableMapping[str, Any]):
    """Configuration values by name; `on_change` is called with each change."""

    _values: dict[str, Any]
    _on_change: Callable[[Mapping[str, Any]], None] | None

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        on_change: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        # Attributes are configuration values, so internal ones bypass `__setattr__`.
        object.__setattr__(self, "_values", dict(values or {}))
        object.__setattr__(self, "_on_change", on_change)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._change({str(name): value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError as error:
            # As in W&B: `hasattr` and `getattr` with a default depend on it.
            raise AttributeError(f"the configuration has no {name!r}") from error

    def __setattr__(self, name: str, value: Any) -> None:
        self._change({name: value})

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, holds the values only; its changes are not recorded.
        return Config, (self.as_dict(),)

    def update(self, d: Any = None, allow_val_change: bool | None = None, **others: Any) -> None:  # type: ignore[override]  # W&B's
        """Set several values; existing ones may always be changed."""
        self._change({**config_mapping(d), **others})

    def setdefaults(self, d: Any) -> None:
        """Set those that have no value yet."""
        self._change({name: value for name, value in config_mapping(d).items() if name not in self._values})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._values)

    def persist(self) -> None:
        """Do nothing: each change is recorded at once."""

    def _change(self, changes: Mapping[str, Any]) -> None:
        self._values.update(changes)
        if changes and self._on_change is not None:
            self._on_change(changes)


class Settings:
    """W&B's settings: any may be given; those that name a run and its location are used. Others read as None."""

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
    """What `wandb.setup()` returns: the settings of this process, used by every run that does not override them."""

    def __init__(self) -> None:
        self.settings = Settings()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return null_object(f"wandb.setup().{name}")


def settings_in(given: Any) -> dict[str, Any]:
    """Return settings as a dictionary; `given` is a mapping or an object."""
    return dict(given) if isinstance(given, Mapping) else dict(getattr(given, "__dict__", {}))
