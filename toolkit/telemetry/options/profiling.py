"""What profiling times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from toolkit.core import checks
from toolkit.core.toggle_block import ToggleBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingOptions(ToggleBlock):
    """Which calls of a profiled function are logged."""

    enabled: bool = True
    min_duration_ms: float = 0.1
    """Calls that take less are not logged."""
    log_interval: int = 1
    """Log every so many calls of a name."""

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        "min_duration_ms": checks.number(0.0, 3_600_000.0),
        "log_interval": checks.whole(1, 1_000_000),
    }
