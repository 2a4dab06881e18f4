"""Finding the programs that tests need: the machine's own, else Debian's packages where we are root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

_PATIENCE_S = 200
"""Less than a test may take: without a network this has to end before the test is given up as hanging."""


class NoTool(Exception):
    """A tool is not here and could not be fetched; the message says what was tried."""


def tool(name: str, package: str) -> str:
    """Return where `name` is, its Debian package installed first where that can be done.

    Raises:
        NoTool: nothing worked.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        tried = install_package(package)
        found = shutil.which(name, path=path)
        if found is None:
            raise NoTool(f"{name} is not here: {tried}")
    return found


def install_package(package: str, patience_s: float = _PATIENCE_S) -> str:
    """Install a package of Debian's where we may; return what came of it, in words."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return f"only root may install {package}"
    if shutil.which("apt-get") is None:
        return f"there is no apt-get to install {package} with"
    deadline = time.monotonic() + patience_s
    options = {
        # Another worker may be installing something, and then holds the lock.
        "DPkg::Lock::Timeout": int(patience_s),
        # A network that answers nothing is soon given up.
        "Acquire::Retries": 1,
        "Acquire::http::Timeout": 20,
        "Acquire::https::Timeout": 20,
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    install = [*apt, "install", "-y", "--no-install-recommends", package]
    said = run_quietly(install, deadline - time.monotonic())
    if said is not None:
        # On a fresh machine the list of packages is empty.
        run_quietly([*apt, "update"], max(0.0, deadline - time.monotonic()))
        said = run_quietly(install, max(0.0, deadline - time.monotonic()))
    return f"apt-get install {package}: {said or 'done'}"


def run_quietly(command: list[str], timeout_s: float = _PATIENCE_S) -> str | None:
    """Run `command` to its end; return the last thing it said where it failed, None where it did not."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")
