"""What somebody who came in may do."""

from __future__ import annotations

from enum import Enum


class Rights(Enum):
    """What one visitor may do."""

    LOOK = "look"
    """See every page, and change nothing."""

    STEER = "steer"
    """Ask things of runs, label them, delete them, as far as the dashboard itself may."""


def rights_named(name: object) -> Rights | None:
    """Return the rights with this name; None for anything else, which opens nothing."""
    return next((rights for rights in Rights if rights.value == name), None)
