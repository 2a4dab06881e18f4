"""Does the parts of a close one after the other, within the time that it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from toolkit.telemetry.core.clock import Countdown
from toolkit.telemetry.core.guard import Guard

_ONCE_INTERRUPTED_S: Final = 2.0
"""Seconds left for a close that is interrupted: enough for a disk that answers."""


class Part(NamedTuple):
    """One part of a close."""

    doing: str
    share: float
    """How much of the time that is left it may take."""
    do: Callable[[float], object] | None
    """Given its seconds; None where there is nothing to do."""
    is_needed: bool = False
    """Whether it is done, or done again, after an interrupt too."""


def do_parts(parts: Iterable[Part], time: Countdown, guard: Guard) -> None:
    """Do each part; one that hangs or fails leaves the others theirs.

    Raises:
        BaseException: what interrupted one, such as Ctrl-C or a time limit of the script, after the needed parts.
    """
    interrupt: BaseException | None = None
    for part in parts:
        for _ in range(2):
            if part.do is None or (interrupt is not None and not part.is_needed):
                break
            try:
                with guard.catch(part.doing):
                    part.do(time.left(part.share))
                break
            except BaseException as caught:  # noqa: BLE001 - it is raised again, after the end
                interrupt = interrupt or caught
                time.shorten(_ONCE_INTERRUPTED_S)
    if interrupt is not None:
        raise interrupt
