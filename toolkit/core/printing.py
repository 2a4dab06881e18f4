"""The one place where a line for the user is printed: above the progress bars of tqdm, if there are any."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Final, TextIO

PREFIX: Final = "[telemetry]"
_log = logging.getLogger("toolkit.telemetry")


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print `line` on standard error, or on `stream`. Raises OSError or ValueError if that is closed."""
    stream = stream or sys.stderr
    # Never imported here: a script that draws bars has it.
    std: ModuleType | None = sys.modules.get("tqdm.std")
    bars: Any = getattr(std, "tqdm", None)
    with bars.external_write_mode(file=stream) if getattr(bars, "_instances", None) else nullcontext():
        print(line, file=stream, flush=True)


def warn(text: str, *arguments: object, error: BaseException | None = None) -> None:
    """Log a warning, with the traceback of `error`; print it if the script has set up no logging."""
    trace = None if error is None else (type(error), error, error.__traceback__)
    if _log.hasHandlers() or logging.lastResort is None:
        _log.warning(f"{PREFIX} {text}", *arguments, exc_info=trace)
    elif _log.isEnabledFor(logging.WARNING):
        record = _log.makeRecord(
            _log.name, logging.WARNING, "", 0, f"{PREFIX} {text}", arguments, exc_info=trace
        )
        print_line(logging.Formatter().format(record))
