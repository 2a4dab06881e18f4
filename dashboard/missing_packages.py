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
# Older ones take forged ID tokens (CVE-2026-27962) and logins that somebody else began (GHSA-jj8c-mmj3-mmgv).
_OLDEST_AUTHLIB = (1, 6, 11)

_ROOT = Path(__file__).resolve().parent.parent
_REQUIREMENTS = _ROOT / "dashboard_requirements.txt"
_LOGIN_REQUIREMENTS = _ROOT / "requirements" / "login.txt"


def what_is_missing() -> str | None:
    """Return what to install and how, as a text for the terminal; None when everything is there.

    Nothing is imported to find out.
    """
    missing = [_INSTALLED_AS.get(name, name) for name in _NEEDED if not _is_installed(name)]
    complaints = [f"not installed: {', '.join(missing)}"] if missing else []
    if "streamlit" not in missing:
        complaints += _too_old("streamlit", _OLDEST_STREAMLIT)
    if not complaints:
        return None
    return (
        f"The dashboard cannot start; {'; '.join(complaints)}.\nThis installs what it needs:\n  {_command()}"
    )


def what_login_misses() -> str | None:
    """Return what to install for `--login` and how; None when it is there."""
    if not _is_installed("authlib") or not (_is_installed("httpx") or _is_installed("httpx2")):
        complaints = ["Authlib and httpx are not installed"]
    else:
        complaints = _too_old("Authlib", _OLDEST_AUTHLIB)
    if not complaints:
        return None
    return (
        f"--login cannot be had; {complaints[0]}.\n"
        f"This installs what it needs:\n  {_command(_LOGIN_REQUIREMENTS, 'login')}"
    )


def _command(requirements: Path = _REQUIREMENTS, extra: str = "dashboard") -> str:
    if requirements.is_file():
        wanted = ["-r", str(requirements)]
    else:
        # Installed as a package: the list of requirements is part of its metadata.
        wanted = [f"ai-toolkit-telemetry[{extra}]"]
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


def _too_old(package: str, oldest: tuple[int, ...]) -> list[str]:
    found = _installed_version(package)
    # '1.62.0rc1' is 1.62 where two numbers are asked for.
    if tuple(int(number) for number in re.findall(r"\d+", found)[: len(oldest)]) >= oldest:
        return []
    return [f"{package} {found} is too old, {'.'.join(map(str, oldest))} or newer is needed"]
