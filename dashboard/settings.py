"""The settings of the dashboard, passed from the launcher to the pages by environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dashboard.access.login import AllowList, LoginError
from toolkit.core.user_folders import user_folder

LOG_DIRS_VARIABLE = "TELEMETRY_DASHBOARD_LOG_DIRS"
READ_ONLY_VARIABLE = "TELEMETRY_DASHBOARD_READ_ONLY"
CACHE_DIR_VARIABLE = "TELEMETRY_DASHBOARD_CACHE_DIR"
ACCESS_VARIABLE = "TELEMETRY_DASHBOARD_ACCESS"
STORE_VARIABLE = "TELEMETRY_DASHBOARD_STORE"
OTHER_TOOLS_VARIABLE = "TELEMETRY_DASHBOARD_OTHER_TOOLS"

_BOOLEANS = {"1": True, "0": False, "": False}


class SettingsError(ValueError):
    """A setting has an invalid value; the message names both."""


def default_log_dirs() -> tuple[Path, ...]:
    """Return the logger's default folder, below the current folder."""
    return (Path(os.environ.get("TELEMETRY_LOG_DIR") or "logs").absolute(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAccess:
    """How visitors get access, as far as pages need to know; it contains no secrets."""

    by: Literal["anyone", "token", "login", "header"] = "anyone"
    allow_list: AllowList | None = None
    """Who has access by `login`."""

    def __post_init__(self) -> None:
        if (self.by == "login") != (self.allow_list is not None):
            raise SettingsError("a login needs an allow list, and only a login has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine that is shown instead of folders; the password stays in its file or in the environment."""

    url: str
    password_file: Path | None = None
    ca: Path | None = None
    request_key: Path | None = None
    """The file with the key that signs requests to runs; None for none."""
    objects: str | None = None
    """Where sample images and other files are stored; keys stay in the environment or in their file."""
    objects_endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Which runs the dashboard shows, and whether it may change them."""

    log_dirs: tuple[Path, ...] = field(default_factory=default_log_dirs)
    """Folders that contain run folders, as absolute paths; they need not exist yet."""

    read_only: bool = False
    """No control of runs, no labels, no deletion."""

    cache_dir: Path | None = field(default_factory=lambda: user_folder("cache"))
    """Where columns of large logs are cached; None for nowhere."""

    access: PageAccess = field(default_factory=PageAccess)

    engine: EngineSettings | None = None
    """The engine that is shown; `log_dirs` and `cache_dir` are then not used."""

    other_tools: bool = True
    """Whether runs that other tools logged below `log_dirs` are shown too."""

    def __post_init__(self) -> None:
        if not self.log_dirs:
            raise SettingsError("log_dirs must name at least one folder")
        for path in (*self.log_dirs, *([] if self.cache_dir is None else [self.cache_dir])):
            if not path.is_absolute():
                raise SettingsError(f"log_dirs and cache_dir must be absolute paths, got {str(path)!r}")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> DashboardSettings:
        """Read what `to_environment` wrote, else defaults. Raises SettingsError if a variable has an invalid value."""
        environ = os.environ if environ is None else environ
        return cls(
            log_dirs=_parse_log_dirs(environ.get(LOG_DIRS_VARIABLE, "")) or default_log_dirs(),
            read_only=_parse_boolean(READ_ONLY_VARIABLE, environ.get(READ_ONLY_VARIABLE, "")),
            cache_dir=_parse_cache_dir(environ),
            access=_parse_access(environ.get(ACCESS_VARIABLE, "")),
            engine=_parse_engine(environ.get(STORE_VARIABLE, "")),
            other_tools=_parse_boolean(OTHER_TOOLS_VARIABLE, environ.get(OTHER_TOOLS_VARIABLE, "1")),
        )

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables that `from_environment` reads."""
        return {
            # JSON, because a path may contain any separator.
            LOG_DIRS_VARIABLE: json.dumps([str(path) for path in self.log_dirs]),
            READ_ONLY_VARIABLE: "1" if self.read_only else "0",
            CACHE_DIR_VARIABLE: "" if self.cache_dir is None else str(self.cache_dir),
            ACCESS_VARIABLE: json.dumps(asdict(self.access)),
            OTHER_TOOLS_VARIABLE: "1" if self.other_tools else "0",
            STORE_VARIABLE: "" if self.engine is None else json.dumps(asdict(self.engine), default=str),
        }


def _parse_cache_dir(environ: Mapping[str, str]) -> Path | None:
    text = environ.get(CACHE_DIR_VARIABLE)
    if text is None:
        return user_folder("cache", environ)
    return Path(text) if text else None


def _parse_engine(text: str) -> EngineSettings | None:
    if not text:
        return None
    try:
        found = json.loads(text)
        files = {
            name: None if found[name] is None else Path(found[name])
            for name in ("password_file", "ca", "request_key")
        }
        return EngineSettings(
            url=found["url"], objects=found["objects"], objects_endpoint=found["objects_endpoint"], **files
        )
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{STORE_VARIABLE} must be what the launcher wrote, got {text!r}") from error


def _parse_log_dirs(text: str) -> tuple[Path, ...]:
    if not text:
        return ()
    try:
        paths = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{LOG_DIRS_VARIABLE} must be a JSON list of paths, got {text!r}") from error
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise SettingsError(f"{LOG_DIRS_VARIABLE} must be a JSON list of paths, got {text!r}")
    return tuple(Path(path) for path in paths)


def _parse_boolean(variable: str, text: str) -> bool:
    if text not in _BOOLEANS:
        raise SettingsError(f"{variable} must be 0 or 1, got {text!r}")
    return _BOOLEANS[text]


@lru_cache(maxsize=4)
def _parse_access(text: str) -> PageAccess:
    if not text:
        return PageAccess()
    try:
        found = json.loads(text)
        allow_list = found["allow_list"]
        if found["by"] not in ("anyone", "token", "login", "header"):
            raise ValueError(found["by"])
        return PageAccess(
            by=found["by"],
            allow_list=None
            if allow_list is None
            else AllowList(operators=tuple(allow_list["operators"]), viewers=tuple(allow_list["viewers"])),
        )
    except (ValueError, TypeError, KeyError, LoginError) as error:
        # Never give access because of an invalid value.
        raise SettingsError(f"{ACCESS_VARIABLE} must be what the launcher wrote, got {text!r}") from error
