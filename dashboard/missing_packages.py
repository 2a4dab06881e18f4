"""Which required packages are missing or too old, and the command that installs them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

from toolkit.telemetry.core.install import install_command, install_extra

_REQUIRED = ("streamlit", "pandas", "plotly", "pyarrow", "orjson", "yaml")
_INSTALLED_AS = {"yaml": "PyYAML"}

_OLDEST_STREAMLIT = (1, 65)
# Older ones accept forged ID tokens (CVE-2026-27962) and logins started by someone else (GHSA-jj8c-mmj3-mmgv).
_OLDEST_AUTHLIB = (1, 6, 11)

_ROOT = Path(__file__).resolve().parent.parent
_REQUIREMENTS = _ROOT / "dashboard_requirements.txt"
_LOGIN_REQUIREMENTS = _ROOT / "requirements" / "login.txt"


def missing_packages_message() -> str | None:
    """Return what to install and how, for the terminal; None if everything is there. Imports nothing."""
    missing = [_INSTALLED_AS.get(name, name) for name in _REQUIRED if not _is_installed(name)]
    verb = "is" if len(missing) == 1 else "are"
    problems = [f"{', '.join(missing)} {verb} not installed"] if missing else []
    if "streamlit" not in missing:
        problems += _too_old("streamlit", _OLDEST_STREAMLIT)
    if not problems:
        return None
    return (
        f"the dashboard cannot start: {'; '.join(problems)}.\nTo install what it needs, run:\n  {_command()}"
    )


def missing_login_packages_message() -> str | None:
    """Return what to install for `--login` and how; None if it is there."""
    if not _is_installed("authlib") or not (_is_installed("httpx") or _is_installed("httpx2")):
        problems = ["Authlib and httpx are not installed"]
    else:
        problems = _too_old("Authlib", _OLDEST_AUTHLIB)
    if not problems:
        return None
    return (
        f"--login is not available: {problems[0]}.\n"
        f"To install what it needs, run:\n  {_command(_LOGIN_REQUIREMENTS, 'login')}"
    )


def _command(requirements: Path = _REQUIREMENTS, extra: str = "dashboard") -> str:
    if requirements.is_file():
        return install_command("-r", str(requirements), short=False)
    # Installed as a package: the extra names the requirements.
    return install_extra(extra, short=False)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def _too_old(package: str, oldest: tuple[int, ...]) -> list[str]:
    found = _installed_version(package)
    # '1.62.0rc1' counts as 1.62 if two numbers are compared.
    if tuple(int(number) for number in re.findall(r"\d+", found)[: len(oldest)]) >= oldest:
        return []
    return [f"{package} {found} is too old, {'.'.join(map(str, oldest))} or newer is required"]
