"""Which completions are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from toolkit.core import checks
from toolkit.core.toggle_block import ToggleBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions(ToggleBlock):
    """How many completions are kept, and how often a trainer's are collected."""

    enabled: bool = True
    interval: int = 100
    """Steps from one collecting of a trainer's completions to the next, and the steps that `buffer` is for."""
    buffer: int = 128
    """Completions that are written of each `interval` steps; more are counted, and the newest of the last ones kept."""
    collect: bool = True
    """Whether they are collected from trainers that make them or learn from them, without a call of the script."""

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        "interval": checks.whole(1, 1_000_000),
        "buffer": checks.whole(1, 100_000),
        "collect": checks.boolean,
    }
