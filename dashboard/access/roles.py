"""What a visitor may do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final


class Role(Enum):
    """The role of one visitor."""

    VIEWER = "viewer"
    """Sees every page and changes nothing."""

    OPERATOR = "operator"
    """May also control, label and delete runs, unless the dashboard is read-only."""


def role_named(name: object) -> Role | None:
    """Return the role with this name; None, which gives no access, for anything else."""
    return next((role for role in Role if role.value == name), None)


_ROLE: Final = "telemetry.role"


def with_role(scope: Mapping[str, Any], role: Role | None) -> dict[str, Any]:
    """Return a request with the role that a gate has proven for it; nothing a visitor sends can set it."""
    return {**scope, _ROLE: role}


def role_of(scope: Mapping[str, Any]) -> Role | None:
    """Return the proven role of a request; None without one."""
    role = scope.get(_ROLE)
    return role if isinstance(role, Role) else None
