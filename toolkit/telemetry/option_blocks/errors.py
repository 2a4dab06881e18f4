"""What is told of errors, and what is watched for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry import option_checks as checks


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOptions:
    """What an error record holds, and where errors are looked for."""

    enabled: bool = True
    excepthook: bool = False
    """Whether an exception that ends the script is recorded from `sys.excepthook`."""
    threads: bool = False
    """Whether an exception that ends a thread is recorded."""
    signals: bool = False
    """Whether a signal that ends the process (SIGTERM, SIGHUP, …) is recorded before it does."""
    source: bool = False
    """Whether the stack shows source lines."""
    locals: bool = False
    """Whether the stack shows local values."""
    output_lines: int = 20
    """Last lines of output that an error record repeats; 0 leaves standard output alone."""
    hang: bool = True
    """Whether the stacks of all threads are recorded when no step has come for far too long."""
    hang_after: float = 60.0
    """Seconds without a step before that, at the least."""

    @classmethod
    def from_block(cls, name: str, value: bool | Mapping[str, Any] | None) -> ErrorOptions:
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
    "excepthook": checks.boolean,
    "threads": checks.boolean,
    "signals": checks.boolean,
    "source": checks.boolean,
    "locals": checks.boolean,
    "output_lines": checks.whole(0, 1000),
    "hang": checks.boolean,
    "hang_after": checks.number(1.0, 86400.0),
}
