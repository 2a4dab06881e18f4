"""The values that sum up a run: `log.summary["best_val_loss"] = 0.12`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolkit.telemetry.core.guard import Guard, MisuseError


class RunSummary(Mapping[str, Any]):
    """Values by name. Setting one writes it at once, so that a kill loses none; reading one gives back what was set."""

    def __init__(self, write: Callable[[Mapping[str, Any]], object], guard: Guard) -> None:
        self._write = write
        self._guard = guard
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, values: Mapping[str, Any] | None = None, /, **others: Any) -> None:
        """Set several values, and write them as one record."""
        with self._guard.catch("summary"):
            if not isinstance(values or {}, Mapping):
                raise MisuseError(f"summary.update takes values by name, not a {type(values).__name__}")
            given = {**(values or {}), **others}
            self._values.update(given)
            self._write(given)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)
