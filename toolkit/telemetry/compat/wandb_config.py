"""A run's configuration as W&B scripts use it: by item or by attribute, and changed along the way."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some of them mean nothing here

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from toolkit.telemetry.compat.stand_ins import say_once


def config_mapping(given: Any) -> dict[str, Any]:
    """Return a configuration as a dictionary: a mapping, or an object such as the one that argparse makes."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if isinstance(given, str):
        say_once(
            "wandb.init(config=<file>)", "is not supported here: load the file and hand over the mapping"
        )
        return {}
    flags = getattr(given, "flag_values_dict", None)
    if callable(flags):
        # The flags of absl, which hides them from `vars`.
        return dict(flags())
    return {name: value for name, value in getattr(given, "__dict__", {}).items() if not name.startswith("_")}


class Config(MutableMapping[str, Any]):
    """Settings by name; `tell` hears of each change."""

    _values: dict[str, Any]
    _tell: Callable[[Mapping[str, Any]], None] | None

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        tell: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        # Attributes are settings here, so its own go around that.
        object.__setattr__(self, "_values", dict(values or {}))
        object.__setattr__(self, "_tell", tell)

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
            # As with W&B: `hasattr` and `getattr` with a default depend on it.
            raise AttributeError(f"the configuration has no {name!r}") from error

    def __setattr__(self, name: str, value: Any) -> None:
        self._change({name: value})

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, is values alone: nobody is told of its changes.
        return Config, (self.as_dict(),)

    def update(self, d: Any = None, allow_val_change: bool | None = None, **others: Any) -> None:  # type: ignore[override]  # W&B's
        """Set several; values may always be changed."""
        self._change({**config_mapping(d), **others})

    def setdefaults(self, d: Any) -> None:
        """Set those that have no value yet."""
        self._change({name: value for name, value in config_mapping(d).items() if name not in self._values})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._values)

    def persist(self) -> None:
        """Nothing is left to be done: each change is told at once."""

    def _change(self, changes: Mapping[str, Any]) -> None:
        self._values.update(changes)
        if changes and self._tell is not None:
            self._tell(changes)
