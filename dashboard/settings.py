"""The settings of the dashboard: the launcher chooses them, and the pages of the same process read them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from toolkit.telemetry.core.user_folders import user_folder

from .access.login import AllowList

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

    in_use: ClassVar[DashboardSettings | None] = None
    """What the pages of this process go by; None for the defaults."""

    def __post_init__(self) -> None:
        if not self.log_dirs:
            raise SettingsError("log_dirs must name at least one folder")
        for path in (*self.log_dirs, *([] if self.cache_dir is None else [self.cache_dir])):
            if not path.is_absolute():
                raise SettingsError(f"log_dirs and cache_dir must be absolute paths, got {str(path)!r}")
