"""The settings of the dashboard, passed from the launcher to the pages by environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from toolkit.telemetry.core.user_folders import user_folder

from .access.login import AllowList, LoginError

SETTINGS_VARIABLE = "TELEMETRY_DASHBOARD_SETTINGS"
CACHE_DIR_VARIABLE = "TELEMETRY_DASHBOARD_CACHE_DIR"

_FILES = ("password_file", "ca")
_WAYS_IN = ("anyone", "token", "login", "header")


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
        # Never give access because of an invalid value.
        if self.by not in _WAYS_IN:
            raise SettingsError(f"access must be by {', '.join(_WAYS_IN)}, got {self.by!r}")
        if (self.by == "login") != (self.allow_list is not None):
            raise SettingsError("a login needs an allow list, and only a login has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """An engine that is shown instead of folders; the password stays in its file or in the environment."""

    url: str
    team: str = ""
    """What it is called if several are shown."""
    password_file: Path | None = None
    ca: Path | None = None
    objects: str | None = None
    """Where sample images and other files are stored; keys stay in the environment or in their file."""


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

    engines: tuple[EngineSettings, ...] = ()
    """The engines that are shown; `log_dirs` and `cache_dir` are then not used."""

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
        """Read what `to_environment` wrote, else defaults. Raises SettingsError if it is something else."""
        environ = os.environ if environ is None else environ
        if text := environ.get(SETTINGS_VARIABLE):
            return _parsed(text)
        cache = environ.get(CACHE_DIR_VARIABLE)
        return cls(cache_dir=user_folder("cache", environ) if cache is None else _path(cache))

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that `from_environment` reads."""
        # JSON, because a path may contain any separator.
        return {SETTINGS_VARIABLE: json.dumps(asdict(self), default=str)}


@lru_cache(maxsize=4)
def _parsed(text: str) -> DashboardSettings:
    try:
        found = json.loads(text)
        allowed = found["access"]["allow_list"]
        return DashboardSettings(
            log_dirs=tuple(map(Path, found["log_dirs"])),
            read_only=found["read_only"] is not False,
            cache_dir=_path(found["cache_dir"]),
            access=PageAccess(
                by=found["access"]["by"],
                allow_list=None
                if allowed is None
                else AllowList(operators=tuple(allowed["operators"]), viewers=tuple(allowed["viewers"])),
            ),
            engines=tuple(
                EngineSettings(**engine | {name: _path(engine[name]) for name in _FILES})
                for engine in found["engines"]
            ),
            other_tools=found["other_tools"],
        )
    except (ValueError, TypeError, KeyError, LoginError) as error:
        raise SettingsError(f"{SETTINGS_VARIABLE} must be what the launcher wrote, got {text!r}") from error


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
