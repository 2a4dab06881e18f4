"""What the users of a log directory chose for a project: primary metric, columns of the run table, pinned metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.runfolder.metric_meaning import Direction
from toolkit.runfolder.safefile import replace_file
from toolkit.runfolder.untrusted import mapping_in, parse_object, read_object, texts_in

PROJECTS: Final = ".projects.json"
"""In the log directory, for all of its projects."""
MAX_BYTES: Final = 256 * 1024
_MAX_COLUMNS: Final = 200
_MAX_CHARS: Final = 200
_METRIC_LISTS: Final = ("pinned_metrics", "hidden_metrics")


class ProjectSettingsError(ValueError):
    """Settings that cannot be read or written; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """The choices for one project. None means that nothing was chosen."""

    primary_metric: str | None = None
    """The metric by which runs are compared."""
    direction: Direction | None = None
    """Whether lower or higher is better, if the metric's name does not say it."""
    columns: tuple[str, ...] | None = None
    """The columns of the run table, in their order."""
    pinned_metrics: tuple[str, ...] = ()
    """Metrics that come first on the pages of a run, in their order."""
    hidden_metrics: tuple[str, ...] = ()
    """Metrics that the pages of a run leave out."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept as they are."""


def read_project(log_dir: Path, project: str | None) -> ProjectSettings:
    """Return the settings of a project in `log_dir`; runs without a project have settings of their own.

    Raises:
        ProjectSettingsError: the file cannot be read or is invalid.
    """
    return _settings_in(_projects(log_dir).get(project or ""))


def write_project(log_dir: Path, project: str | None, settings: ProjectSettings) -> None:
    """Save the settings of a project in `log_dir` atomically.

    Raises:
        ProjectSettingsError: the file there cannot be read, so it is not replaced; or the settings are too large.
        OSError: it cannot be written.
    """
    projects = {**_projects(log_dir), project or "": _as_mapping(settings)}
    data = orjson.dumps({"projects": projects}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if len(data) > MAX_BYTES:
        raise ProjectSettingsError(f"the settings take {len(data)} bytes, at most {MAX_BYTES} are allowed")
    replace_file(log_dir / PROJECTS, data, mode=0o600)


def encode_project(settings: ProjectSettings) -> bytes:
    """Return the settings of one project as JSON."""
    return orjson.dumps(_as_mapping(settings))


def parse_project(data: bytes) -> ProjectSettings:
    """Return the settings of one project in `data`.

    Raises:
        ProjectSettingsError: they are invalid.
    """
    return _settings_in(parse_object(data, PROJECTS, MAX_BYTES, ProjectSettingsError))


def _projects(log_dir: Path) -> dict[str, Any]:
    try:
        found = read_object(log_dir / PROJECTS, MAX_BYTES, ProjectSettingsError).get("projects")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ProjectSettingsError(f"{log_dir / PROJECTS} cannot be read: {error.strerror}") from error
    return mapping_in(found)


def _as_mapping(settings: ProjectSettings) -> dict[str, Any]:
    return {
        **settings.other,
        "primary_metric": settings.primary_metric,
        "direction": settings.direction,
        "columns": None if settings.columns is None else list(settings.columns),
        **{name: list(names) for name in _METRIC_LISTS if (names := getattr(settings, name))},
    }


def _settings_in(mapping: Any) -> ProjectSettings:
    if not isinstance(mapping, dict):
        return ProjectSettings()
    metric, direction, columns = (mapping.get(name) for name in ("primary_metric", "direction", "columns"))
    known = {"primary_metric", "direction", "columns", *_METRIC_LISTS}
    return ProjectSettings(
        primary_metric=metric if isinstance(metric, str) and 0 < len(metric) <= _MAX_CHARS else None,
        direction=direction if direction in ("min", "max") else None,
        columns=tuple(texts_in(columns)[:_MAX_COLUMNS]) if isinstance(columns, list) else None,
        **{name: tuple(texts_in(mapping.get(name))[:_MAX_COLUMNS]) for name in _METRIC_LISTS},
        other={key: value for key, value in mapping.items() if key not in known},
    )
