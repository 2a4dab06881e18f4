"""What profiling times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry import option_checks as checks


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingOptions:
    """Which calls of a profiled function are logged."""

    enabled: bool = True
    min_duration_ms: float = 0.1
    """Calls that take less are not logged."""
    log_interval: int = 1
    """Log every so many calls of a name."""

    @classmethod
    def from_block(cls, name: str, value: bool | Mapping[str, Any] | None) -> ProfilingOptions:
        """Return what the block called `name` states; true and false switch it on and off as a whole.

        Raises:
            OptionsError: a key or value is wrong.
        """
        if value is None or isinstance(value, bool):
            return cls(enabled=value is not False)
        return cls(**checks.block(name, value, _CHECKS))

    @classmethod
    def check(cls, name: str, value: Any) -> None:
        """Raise `OptionsError` where the block is wrong."""
        cls.from_block(name, value)


_CHECKS: Final[Mapping[str, checks.Check]] = {
    "enabled": checks.boolean,
    "min_duration_ms": checks.number(0.0, 3_600_000.0),
    "log_interval": checks.whole(1, 1_000_000),
}
