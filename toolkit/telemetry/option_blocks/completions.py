"""Which completions are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry import option_checks as checks


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """How many completions are kept, and how often a trainer's are collected."""

    enabled: bool = True
    interval: int = 100
    """Steps from one collecting of a trainer's completions to the next, and the steps that `buffer` is for."""
    buffer: int = 128
    """Completions that are written of each `interval` steps; more are counted, and the newest of the last ones kept."""
    collect: bool = True
    """Whether they are collected from trainers that make them or learn from them, without a call of the script."""

    @classmethod
    def from_block(cls, name: str, value: bool | Mapping[str, Any] | None) -> CompletionOptions:
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
    "interval": checks.whole(1, 1_000_000),
    "buffer": checks.whole(1, 100_000),
    "collect": checks.boolean,
}
