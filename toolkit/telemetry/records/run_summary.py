"""The values that sum up a run: `log.summary["best_val_loss"] = 0.12`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class RunSummary(Mapping[str, Any]):
    """Values by name. Setting one writes it at once, so that a kill loses none; reading one gives back what was set."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._write = write
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, values: Mapping[str, Any]) -> None:
        """Set several values, and write them as one record."""
        self._values.update(values)
        self._write(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)
