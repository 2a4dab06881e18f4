"""What the command line changes in a configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from toolkit.core.fields import ConfigError


def with_overrides(mapping: Mapping[str, Any], *, steps: int | None, log_dir: str | None) -> dict[str, Any]:
    """Return a copy of `mapping` with the number of steps and the telemetry folder replaced where given.

    Raises:
        ConfigError: the place that is to be changed is not there.
    """
    changed = copy.deepcopy(dict(mapping))
    if steps is not None:
        _section(_process(changed), "train", "--steps")["steps"] = steps
    if log_dir is not None:
        _telemetry_parent(changed)["telemetry"]["log_dir"] = log_dir
    return changed


def _process(mapping: dict[str, Any]) -> dict[str, Any]:
    process: dict[str, Any] = mapping["config"]["process"][0]
    return process


def _section(parent: dict[str, Any], name: str, flag: str) -> dict[str, Any]:
    section = parent.get(name)
    if not isinstance(section, dict):
        raise ConfigError(f"{flag} needs a {name} section in the configuration, got {section!r}")
    return section


def _telemetry_parent(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the first of the three places that hold a `telemetry:` block, in the order the logger looks."""
    for place in (_process(mapping), mapping["config"], mapping):
        if isinstance(place.get("telemetry"), dict):
            return place
    raise ConfigError("--log-dir needs a telemetry block in the configuration, and there is none")
