"""What the dashboard needs and does not find installed, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
import sys
from pathlib import Path

_NEEDED = ("streamlit", "pandas", "plotly", "pyarrow", "orjson", "yaml")
_INSTALLED_AS = {"yaml": "PyYAML"}

_OLDEST_STREAMLIT = (1, 65)

_REQUIREMENTS = Path(__file__).resolve().parent.parent / "dashboard_requirements.txt"


def what_is_missing() -> str | None:
    """Return what to install and how, as a text for the terminal; None when everything is there.

    Nothing is imported to find out.
    """
    missing = [_INSTALLED_AS.get(name, name) for name in _NEEDED if not _is_installed(name)]
    complaints = [f"not installed: {', '.join(missing)}"] if missing else []
    if "streamlit" not in missing:
        found = _installed_version("streamlit")
        if _leading_numbers(found) < _OLDEST_STREAMLIT:
            oldest = ".".join(map(str, _OLDEST_STREAMLIT))
            complaints.append(f"streamlit {found} is too old, {oldest} or newer is needed")
    if not complaints:
        return None
    return (
        f"The dashboard cannot start; {'; '.join(complaints)}.\nThis installs what it needs:\n  {_command()}"
    )


def _command() -> str:
    if _REQUIREMENTS.is_file():
        wanted = ["-r", str(_REQUIREMENTS)]
    else:
        # Installed as a package: the list of requirements is part of its metadata.
        wanted = ["ai-toolkit-telemetry[dashboard]"]
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *wanted])


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _leading_numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; '1.62.0rc1' is (1, 62)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
