"""What a visitor may do."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """The role of one visitor."""

    VIEWER = "viewer"
    """Sees every page and changes nothing."""

    OPERATOR = "operator"
    """May also control, label and delete runs, unless the dashboard is read-only."""


def role_named(name: object) -> Role | None:
    """Return the role with this name; None, which gives no access, for anything else."""
    return next((role for role in Role if role.value == name), None)
