"""What users say of a run and of a project: labels.json and .projects.json; the run never reads or writes them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.runfolder.layout import LABELS, MANIFEST, PRIVATE
from toolkit.telemetry.runfolder.metrics import Direction
from toolkit.telemetry.runfolder.safefile import replace_file
from toolkit.telemetry.runfolder.untrusted import mapping_in, mappings_in, parse_object, read_object, texts_in

MAX_LABELS_BYTES = 256 * 1024
MAX_NAME_LENGTH = 200
MAX_TAG_LENGTH = 64
MAX_TAGS = 50
_COLOUR = re.compile(r"run-[0-9]{1,3}|#[0-9a-fA-F]{6}", re.ASCII)


class LabelsError(ValueError):
    """Invalid labels; the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Labels that users give a run. Raises LabelsError if a value is invalid."""

    display_name: str | None = None
    """Display name; None for the one in the manifest."""
    tags: tuple[str, ...] | None = None
    """None for those in the manifest; an empty tuple removes them."""
    notes: str = ""
    archived: bool = False
    acknowledged: tuple[str, ...] = ()
    """Ids of acknowledged findings."""
    muted: tuple[str, ...] = ()
    """Kinds of findings that are muted for this run."""
    colour: str | None = None
    """The run's colour in charts and lists: a name of the dashboard's palette such as `run-3`, or `#rrggbb`."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept as they are."""

    def __post_init__(self) -> None:
        if self.display_name is not None:
            _require_short("display_name", self.display_name, MAX_NAME_LENGTH)
        for key in ("tags", "acknowledged", "muted"):
            value = getattr(self, key)
            if not isinstance(value, tuple) and (value, key) != (None, "tags"):
                raise _wrong(key, value, "a list of texts")
            for item in value or ():
                _require_text(f"an item of {key}", item)
        if len(self.tags or ()) > MAX_TAGS:
            raise LabelsError(f"tags holds {len(self.tags or ())} tags, at most {MAX_TAGS} are allowed")
        for tag in self.tags or ():
            _require_short("a tag", tag, MAX_TAG_LENGTH)
        _require_text("notes", self.notes)
        if type(self.archived) is not bool:
            raise _wrong("archived", self.archived, "true or false")
        if self.colour is not None and not (isinstance(self.colour, str) and _COLOUR.fullmatch(self.colour)):
            raise _wrong("colour", self.colour, "a name such as run-3, or #rrggbb")


def read_labels(folder: Path) -> Labels:
    """Return the labels in `folder`'s labels.json; empty labels without one.

    Raises:
        LabelsError: it cannot be read or is invalid; the message says why.
    """
    path = folder / LABELS
    try:
        mapping = read_object(path, MAX_LABELS_BYTES, LabelsError, only_name=True)
    except FileNotFoundError:
        return Labels()
    except OSError as error:
        raise LabelsError(f"{path} cannot be read: {error}") from error
    try:
        return _from_mapping(mapping)
    except LabelsError as error:
        raise LabelsError(f"{path}: {error}") from error


def parse_labels(data: bytes) -> Labels:
    """Return the labels in `data`, the content of a labels.json.

    Raises:
        LabelsError: it is invalid; the message says why.
    """
    return _from_mapping(parse_object(data, LABELS, MAX_LABELS_BYTES, LabelsError))


def write_labels(folder: Path, labels: Labels) -> None:
    """Write `labels` to `folder` atomically.

    The file gets the manifest's permissions, or if there is no manifest those of a private file.

    Raises:
        LabelsError: they are too large, or contain something that JSON cannot represent.
        OSError: they cannot be written; the old file is unchanged.
    """
    replace_file(folder / LABELS, encode_labels(labels), mode=_mode_of_manifest(folder))


def encode_labels(labels: Labels) -> bytes:
    """Return the content of a labels.json.

    Raises:
        LabelsError: they are too large, or contain something that JSON cannot represent.
    """
    try:
        data = orjson.dumps(_to_mapping(labels), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        raise LabelsError(f"the labels cannot be written as JSON: {error}") from error
    if len(data) > MAX_LABELS_BYTES:
        raise LabelsError(f"the labels take {len(data)} bytes, at most {MAX_LABELS_BYTES}; shorten the notes")
    return data


def _mode_of_manifest(folder: Path) -> int:
    try:
        mode = os.lstat(folder / MANIFEST).st_mode
    except OSError:
        return PRIVATE.file
    # A link's own permissions are always wide open, and no text file is a program.
    return stat.S_IMODE(mode) & 0o666 if stat.S_ISREG(mode) else PRIVATE.file


def _to_mapping(labels: Labels) -> dict[str, Any]:
    return {
        **labels.other,
        "display_name": labels.display_name,
        "tags": None if labels.tags is None else list(labels.tags),
        "notes": labels.notes,
        "archived": labels.archived,
        "acknowledged": list(labels.acknowledged),
        "muted": list(labels.muted),
        **({"colour": labels.colour} if labels.colour is not None else {}),
    }


def _from_mapping(mapping: dict[str, Any]) -> Labels:
    known = {f.name for f in fields(Labels)} - {"other"}
    # Written by hand, an absent value may be null as well as missing; for a name or tags that is what it means.
    given = {key: _frozen(value) for key, value in mapping.items() if key in known and value is not None}
    return Labels(**given, other={key: value for key, value in mapping.items() if key not in known})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _require_short(key: str, value: Any, limit: int) -> None:
    _require_text(key, value)
    if not value.strip():
        raise _wrong(key, value, f"a text of 1 to {limit} characters")
    if len(value) > limit:
        raise LabelsError(f"{key} is {ascii(value)[:60]}… of {len(value)} characters, not of at most {limit}")


def _require_text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _wrong(key, value, "a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair has no place in a JSON file, and a page that shows one dies.
        raise _wrong(key, value, "a text of whole characters") from None


def _wrong(key: str, value: Any, allowed: str) -> LabelsError:
    return LabelsError(f"{key} is {ascii(value)[:60]}, not {allowed}")


PROJECTS: Final = ".projects.json"
"""In the log directory, for all of its projects."""
MAX_BYTES: Final = 256 * 1024
_MAX_COLUMNS: Final = 200
_MAX_CHARS: Final = 200
_MAX_KEPT: Final = 50
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
    alerts: tuple[Mapping[str, Any], ...] = ()
    """Rules of one's own, as `alerts:` of a YAML has them; not checked here."""
    baseline: str | None = None
    """The key of the run that others are compared with."""
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named views: charts, columns, filter and sort of the pages; not checked here."""
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
    """Return the settings of one project in `data`. Raises ProjectSettingsError if they are invalid."""
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
        **{name: list(names) for name in (*_METRIC_LISTS, "alerts") if (names := getattr(settings, name))},
        **({"views": dict(settings.views)} if settings.views else {}),
        **({"baseline": settings.baseline} if settings.baseline else {}),
    }


def _settings_in(mapping: Any) -> ProjectSettings:
    if not isinstance(mapping, dict):
        return ProjectSettings()
    chosen = ("primary_metric", "direction", "columns", "baseline")
    metric, direction, columns, baseline = map(mapping.get, chosen)
    known = {*chosen, "alerts", "views", *_METRIC_LISTS}
    views = {name: one for name, one in mapping_in(mapping.get("views")).items() if isinstance(one, dict)}
    return ProjectSettings(
        primary_metric=metric if isinstance(metric, str) and 0 < len(metric) <= _MAX_CHARS else None,
        direction=direction if direction in ("min", "max") else None,
        columns=tuple(texts_in(columns)[:_MAX_COLUMNS]) if isinstance(columns, list) else None,
        **{name: tuple(texts_in(mapping.get(name))[:_MAX_COLUMNS]) for name in _METRIC_LISTS},
        alerts=tuple(mappings_in(mapping.get("alerts"))[:_MAX_KEPT]),
        baseline=baseline if isinstance(baseline, str) and baseline else None,
        views=dict(list(views.items())[:_MAX_KEPT]),
        other={key: value for key, value in mapping.items() if key not in known},
    )
