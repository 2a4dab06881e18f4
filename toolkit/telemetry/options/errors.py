"""What is told of errors, and what is watched for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from toolkit.core import checks
from toolkit.core.toggle_block import ToggleBlock


def _flag_or_auto(name: str, value: Any) -> None:
    if not isinstance(value, bool) and not (isinstance(value, str) and value == "auto"):
        raise checks.wrong(name, value, "true, false or auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOptions(ToggleBlock):
    """What an error record holds, and where errors are looked for."""

    enabled: bool = True
    excepthook: bool = False
    """Whether an exception that ends the script is recorded from `sys.excepthook`."""
    threads: bool = False
    """Whether an exception that ends a thread is recorded."""
    signals: bool | str = "auto"
    """Whether a signal that ends the process is recorded before it does: `auto` for SIGTERM and SIGHUP where the script
    has no handler of its own, true for SIGXCPU too, and for signals that a handler of the script takes."""
    exit_code: bool = True
    """Whether a script that is left by `sys.exit` with a code other than 0 has failed: its calls are noted for that."""
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

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        "excepthook": checks.boolean,
        "threads": checks.boolean,
        "signals": _flag_or_auto,
        "exit_code": checks.boolean,
        "source": checks.boolean,
        "locals": checks.boolean,
        "output_lines": checks.whole(0, 1000),
        "hang": checks.boolean,
        "hang_after": checks.number(1.0, 86400.0),
    }
