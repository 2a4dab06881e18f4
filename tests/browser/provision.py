"""Finding a Chromium to drive: the machine's own, else Debian's package, else the one Playwright downloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_S = 300


class NoBrowser(Exception):
    """There is no browser here, and none could be fetched; the message says what was tried."""


def chromium_file() -> Path:
    """Return a Chromium that can be started, fetched first where there is none.

    Raises:
        NoBrowser: nothing worked, with what was tried.
    """
    tried = [f"none of {', '.join(_NAMES)} is on the PATH"]
    found = _on_path()
    if found is None:
        tried.append(_from_debian())
        found = _on_path()
    if found is None:
        found = _of_playwright()
    if found is None:
        tried.append(_download())
        found = _of_playwright()
    if found is None:
        raise NoBrowser("; ".join(tried))
    return found


def _on_path() -> Path | None:
    return next((Path(path) for name in _NAMES if (path := shutil.which(name))), None)


def _from_debian() -> str:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root may install Debian's"
    if shutil.which("apt-get") is None:
        return "there is no apt-get"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Another worker may be installing something, and then holds the lock.
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
    install = [*apt, "install", "-y", "--no-install-recommends", "chromium"]
    said = _run(install, env=quiet)
    if said is None or _on_path() is not None:
        return "apt-get installed no chromium"
    # On a fresh machine the list of packages is empty.
    _run([*apt, "update"], env=quiet)
    again = _run(install, env=quiet)
    return f"apt-get install chromium: {again or 'done'}"


def _of_playwright() -> Path | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


def _download() -> str:
    said = _run([sys.executable, "-m", "playwright", "install", "chromium"])
    return f"playwright install chromium: {said or 'done'}"


def _run(command: list[str], env: dict[str, str] | None = None) -> str | None:
    """Run `command`; return the last thing it said where it failed, None where it did not."""
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")
