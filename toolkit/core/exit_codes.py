"""The code that a process ends with where an exception leaves it."""

from __future__ import annotations

from typing import Any


def exit_code(status: Any) -> int:
    """Return the code of a process that is left by `SystemExit(status)`: 1 for a text, which is printed."""
    if status is None:
        return 0
    return int(status) if isinstance(status, int) else 1


def code_of(error: BaseException | None) -> int | None:
    """Return the code that a `SystemExit` ends its process with; None for anything else."""
    return exit_code(error.code) if isinstance(error, SystemExit) else None
