"""Where files of a user are kept that belong to no run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

_NAME: Final = "ai-toolkit-telemetry"
_VARIABLES: Final = {"cache": "XDG_CACHE_HOME", "data": "XDG_DATA_HOME"}
_USUAL: Final = {
    ("cache", "win32"): "AppData/Local",
    ("data", "win32"): "AppData/Local",
    ("cache", "darwin"): "Library/Caches",
    ("data", "darwin"): "Library/Application Support",
}
_ELSEWHERE: Final = {"cache": ".cache", "data": ".local/share"}


def user_folder(kind: Literal["cache", "data"], environ: Mapping[str, str] | None = None) -> Path | None:
    """Return this user's folder of a kind, which may not exist yet; None for a user without a home folder."""
    environ = os.environ if environ is None else environ
    named = environ.get("LOCALAPPDATA" if sys.platform == "win32" else _VARIABLES[kind], "")
    # The XDG specification says to ignore a relative path. macOS does not use the variable.
    if sys.platform != "darwin" and os.path.isabs(named):
        return Path(named) / _NAME
    try:
        base = Path.home() / _USUAL.get((kind, sys.platform), _ELSEWHERE[kind])
    except RuntimeError:
        return None
    # With an empty or relative HOME it would be created in the current folder.
    return base / _NAME if base.is_absolute() else None


def labels_dir() -> Path | None:
    """Return where names and notes of other tools' runs are saved; None for a user without a home folder."""
    data = user_folder("data")
    return None if data is None else data / "labels"
