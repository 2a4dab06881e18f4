"""What the dashboard is started with, and how it travels from the launcher to the pages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dashboard.access.allow_list import GuestList, GuestListError

LOG_DIRS_VARIABLE = "TELEMETRY_DASHBOARD_LOG_DIRS"
READ_ONLY_VARIABLE = "TELEMETRY_DASHBOARD_READ_ONLY"
CACHE_DIR_VARIABLE = "TELEMETRY_DASHBOARD_CACHE_DIR"
ADMISSION_VARIABLE = "TELEMETRY_DASHBOARD_ADMISSION"

_CACHE_NAME = "ai-toolkit-telemetry"
_TRUTH = {"1": True, "0": False, "": False}


class SettingsError(ValueError):
    """A setting has a value it cannot have; the message names both."""


def default_log_dirs() -> tuple[Path, ...]:
    """Return the folder the logger writes to when nobody says otherwise, seen from the current folder."""
    return (Path("logs").absolute(),)


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder this system keeps for what can be computed again; it may not exist yet.

    None where nothing says where that is: a container may run as a user without a home and without a name.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path. On macOS the variable is not in use.
    if sys.platform != "darwin" and os.path.isabs(named):
        return Path(named) / _CACHE_NAME
    try:
        home = Path.home()
    except RuntimeError:
        return None
    usual = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}
    base = usual.get(sys.platform, home / ".cache")
    # An empty or relative HOME would put the folder wherever the dashboard was started.
    return base / _CACHE_NAME if base.is_absolute() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How people come in, as far as pages have to know; the secrets behind it are not theirs."""

    by: Literal["anyone", "token", "login"] = "anyone"
    guests: GuestList | None = None
    """Who may come in by `login`."""

    providers: tuple[str, ...] = ()
    """Where people can log in; none stands for the only one there is."""

    def __post_init__(self) -> None:
        if (self.by == "login") != (self.guests is not None):
            raise SettingsError("a login needs a list of who may come in, and nothing else has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Which runs the dashboard shows, and whether it may touch them."""

    log_dirs: tuple[Path, ...] = field(default_factory=default_log_dirs)
    """Folders of run folders, as absolute paths; one that does not exist yet has no runs."""

    read_only: bool = False
    """No control of running trainings, no labels, no deleting."""

    cache_dir: Path | None = field(default_factory=default_cache_dir)
    """Where the pages keep what they can compute again; None for nowhere."""

    admission: Admission = field(default_factory=Admission)

    def __post_init__(self) -> None:
        if not self.log_dirs:
            raise SettingsError("log_dirs must name at least one folder, got none")
        for path in (*self.log_dirs, *([] if self.cache_dir is None else [self.cache_dir])):
            if not path.is_absolute():
                raise SettingsError(f"log_dirs and cache_dir must be absolute paths, got {str(path)!r}")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> DashboardSettings:
        """Read what `to_environment` wrote; what is not there has its default.

        Raises:
            SettingsError: a variable is set to something that `to_environment` never writes.
        """
        environ = os.environ if environ is None else environ
        return cls(
            log_dirs=_parse_log_dirs(environ.get(LOG_DIRS_VARIABLE, "")) or default_log_dirs(),
            read_only=_parse_read_only(environ.get(READ_ONLY_VARIABLE, "")),
            cache_dir=_parse_cache_dir(environ),
            admission=_parse_admission(environ.get(ADMISSION_VARIABLE, "")),
        )

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which `from_environment` makes these settings again."""
        return {
            # JSON, because a path may contain whatever would separate it from the next one.
            LOG_DIRS_VARIABLE: json.dumps([str(path) for path in self.log_dirs]),
            READ_ONLY_VARIABLE: "1" if self.read_only else "0",
            CACHE_DIR_VARIABLE: "" if self.cache_dir is None else str(self.cache_dir),
            ADMISSION_VARIABLE: json.dumps(asdict(self.admission)),
        }


def _parse_cache_dir(environ: Mapping[str, str]) -> Path | None:
    text = environ.get(CACHE_DIR_VARIABLE)
    if text is None:
        return default_cache_dir(environ)
    return Path(text) if text else None


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


def _parse_read_only(text: str) -> bool:
    if text not in _TRUTH:
        raise SettingsError(f"{READ_ONLY_VARIABLE} must be 0 or 1, got {text!r}")
    return _TRUTH[text]


@lru_cache(maxsize=4)
def _parse_admission(text: str) -> Admission:
    if not text:
        return Admission()
    try:
        found = json.loads(text)
        guests = found["guests"]
        if found["by"] not in ("anyone", "token", "login"):
            raise ValueError(found["by"])
        return Admission(
            by=found["by"],
            guests=None
            if guests is None
            else GuestList(steer=tuple(guests["steer"]), look=tuple(guests["look"])),
            providers=tuple(found["providers"]),
        )
    except (ValueError, TypeError, KeyError, GuestListError) as error:
        # Nobody is let in by a mistake.
        raise SettingsError(f"{ADMISSION_VARIABLE} must be what the launcher wrote, got {text!r}") from error
