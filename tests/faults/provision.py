"""Finding the tools that make and break file systems: the machine's own, else Debian's packages where we are root."""

from __future__ import annotations

import os
import shutil
import subprocess

_PATIENCE_S = 200


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
        tried = _install(package)
        found = shutil.which(name, path=path)
        if found is None:
            raise NoTool(f"{name} is not here: {tried}")
    return found


def _install(package: str) -> str:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return f"only root may install {package}"
    if shutil.which("apt-get") is None:
        return f"there is no apt-get to install {package} with"
    # Another worker may be installing something, and then holds the lock.
    wait = ["-o", "DPkg::Lock::Timeout=180"]
    install = ["apt-get", *wait, "install", "-y", "--no-install-recommends", package]
    # On a fresh machine the list of packages is empty.
    for command in (install, ["apt-get", *wait, "update"], install):
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                timeout=_PATIENCE_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(command)}: {error}"
        if command is install and done.returncode == 0:
            break
    return f"apt-get install {package} did not bring it"
